"""What a server of a model counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from penstock.core.types import GeneratorStats
from penstock.web.metrics import Histogram, values


@dataclass
class Metrics:
    """What a server counts itself; the engine counts the rest."""

    requests: Counter[tuple[str, int]] = field(default_factory=Counter)
    """By route and status."""
    updates: Counter[str] = field(default_factory=Counter)
    """Weight updates, by ``loaded`` or ``refused``."""
    first_token: Histogram = field(default_factory=Histogram)
    answered: Histogram = field(default_factory=Histogram)

    def text(self, stats: GeneratorStats, paused: bool) -> str:
        """All counts as Prometheus text."""
        engine = {
            "samples_running": ("gauge", "samples being generated", stats.running),
            "samples_waiting": ("gauge", "samples waiting for a place", stats.waiting),
            "cache_use": ("gauge", "share of the cache in use", round(stats.cache_use, 6)),
            "weight_version": ("gauge", "version of the weights in use", stats.version),
            "paused": ("gauge", "whether generating is paused", int(paused)),
            "generated_tokens_total": ("counter", "tokens generated", stats.generated_tokens),
            "busy_seconds_total": ("counter", "seconds the engine has worked", round(stats.busy_seconds, 6)),
        }
        lines = [line for name, (kind, what, value) in engine.items() for line in values(name, kind, what, [({}, value)])]
        requests = [({"route": route, "status": status}, n) for (route, status), n in sorted(self.requests.items())]
        lines += values("requests_total", "counter", "requests answered, by route and status", requests)
        updates = [({"outcome": outcome}, n) for outcome, n in sorted(self.updates.items())]
        lines += values("weight_updates_total", "counter", "weight updates, by outcome", updates)
        lines += self.first_token.lines("first_token_seconds", "from a request to its first token")
        lines += self.answered.lines("answer_seconds", "from a request for tokens or scores to the end of its answer")
        return "\n".join(lines) + "\n"

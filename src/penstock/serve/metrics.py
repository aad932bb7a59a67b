"""Counts of a server in the text format that Prometheus reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.core.types import GeneratorStats

SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
"""Upper bounds of the histograms' buckets."""


@dataclass
class Histogram:
    """Durations in seconds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    total: float = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[sum(seconds > bound for bound in SECONDS)] += 1
        self.total += seconds

    def lines(self, name: str) -> Iterator[str]:
        reached = 0
        for bound, count in zip((*map(str, SECONDS), "+Inf"), self.counts, strict=True):
            reached += count
            yield f'{name}_bucket{{le="{bound}"}} {reached}'
        yield f"{name}_sum {self.total:.6f}"
        yield f"{name}_count {reached}"


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
        """All counts as Prometheus text, version 0.0.4."""
        engine = {
            "samples_running": ("gauge", "samples being generated", stats.running),
            "samples_waiting": ("gauge", "samples waiting for a place", stats.waiting),
            "cache_use": ("gauge", "share of the cache in use", round(stats.cache_use, 6)),
            "weight_version": ("gauge", "version of the weights in use", stats.version),
            "paused": ("gauge", "whether generating is paused", int(paused)),
            "generated_tokens_total": ("counter", "tokens generated", stats.generated_tokens),
            "busy_seconds_total": ("counter", "seconds the engine has worked", round(stats.busy_seconds, 6)),
        }
        lines = []
        for name, (kind, what, value) in engine.items():
            lines += [*_head(name, kind, what), f"penstock_{name} {value}"]
        lines += _head("requests_total", "counter", "requests answered, by route and status")
        lines += [f'penstock_requests_total{{route="{r}",status="{s}"}} {n}' for (r, s), n in sorted(self.requests.items())]
        lines += _head("weight_updates_total", "counter", "weight updates, by outcome")
        lines += [f'penstock_weight_updates_total{{outcome="{o}"}} {n}' for o, n in sorted(self.updates.items())]
        lines += _head("first_token_seconds", "histogram", "from a request to its first token")
        lines += self.first_token.lines("penstock_first_token_seconds")
        lines += _head("answer_seconds", "histogram", "from a request for tokens or scores to the end of its answer")
        lines += self.answered.lines("penstock_answer_seconds")
        return "\n".join(lines) + "\n"


def _head(name: str, kind: str, what: str) -> list[str]:
    return [f"# HELP penstock_{name} {what}", f"# TYPE penstock_{name} {kind}"]

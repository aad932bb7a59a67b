"""What breakers compare a batch with: limits, the latest healthy batches, and prompts that came before."""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.core.types import Group, Metrics
from penstock.observe.rules import generated

MEMORY = 100
"""Batches that breakers compare with."""
PROMPTS_REMEMBERED = 8192
"""Prompts among which repetitions are looked for."""
REPEATED = "prompts/repeated"
"""Share of a batch's prompts that came before in the same pass over the data."""
AGAIN = "reward/again"
"""Mean reward of prompts that came before, less what they had then; there if enough of the batch's prompts did."""
ROBUST = 1.4826
"""A normal distribution's standard deviation in median absolute deviations."""


@dataclass(frozen=True)
class Limits:
    """Where breakers trip; the same for every run."""

    deviations: float = 8.0
    """Robust standard deviations from the median."""
    least: int = 10
    """Healthy batches without which nothing can be compared."""
    spike_times: float = 5.0
    """A gradient norm, or a step, is large if it is so many times the largest of the latest healthy ones as well."""
    recent: int = 20
    """Batches whose rewards a fall is compared with, since rewards are to rise."""
    fall: float = 0.5
    """A reward has fallen in two batches if it did by so many standard deviations of single samples as well."""
    outlier: float = 30.0
    """A reward is out of range if it is further outside of those seen than so many times their range, their largest absolute
    value and 1, the unit of most rewards ..."""
    outlier_share: float = 0.1
    """... and a batch if so many of its samples are, three at least: what changed concerns many, a first success few."""
    reference_times: float = 5.0
    """KL to the reference: so many times the largest of the latest ..."""
    reference_least: float = 2.0
    """... and so many nats a sample ..."""
    reference_token: float = 0.1
    """... and so many a token."""
    step_kl: float = 5.0
    """Nats a token from the policy that a batch began with to the one that is trained, above which the batch is over."""
    entropy_times: float = 3.0
    """Entropy of samples: so many times the median ..."""
    entropy_least: float = 0.5
    """... and so many nats a token above it, with a reward that is lower by a quarter of a sample's standard deviation."""
    clipped_times: float = 10.0
    """A gradient norm below so many times learner.clip_norm is what clipping is for, and no spike."""
    moved: float = 3.0
    """Weights are suspected where one of the latest steps, or its gradient, was so many times the median."""
    again: float = 0.25
    """Share of a batch's prompts that must have come before, so that their rewards then and now are compared."""
    loss_times: float = 2.0
    """Loss of an offline stage: so many times the median as well."""
    repeated: float = 0.4
    """Prompts that came before in the same pass, as a share of those of a batch that usually are new."""
    skips: int = 3
    """Skipped steps ..."""
    skip_window: int = 20
    """... in so many batches, which are no accident any more."""
    rollbacks: int = 3
    """Rollbacks in ``rollback_window`` batches; one more stops the run."""
    rollback_window: int = 500
    slower: float = 0.3
    """Factor of the learning rate after each rollback."""
    doubted: int = 10
    """Batches as bad as before a rollback, after which it is not the weights."""
    gold_falls: int = 3
    """Evaluations in a row that must fall short of the best one ..."""
    gold_errors: float = 3.0
    """... each by so many standard errors of the difference, prompt by prompt."""


LIMITS = Limits()

KEPT = ("gradient_norm", "update_size", "reward/mean", "reward/range", "entropy/sampled", "kl/reference", "loss", REPEATED)
"""Metrics whose latest healthy values are remembered."""
OF_STEPS = ("gradient_norm", "update_size", "reward/range")
"""Those that say nothing where a batch had no signal, since all rewards were equal: what moved the weights was momentum, the
KL to a reference or a critic, next to which the first success is a large step."""


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Median, and the standard deviation that the median absolute deviation stands for."""
    middle = statistics.median(values)
    return middle, ROBUST * statistics.median(abs(value - middle) for value in values)


@dataclass
class History:
    """Values of the latest healthy batches, by metric, and the smallest and the largest reward of a sample so far.

    What was left out as too large is ``outside`` until a batch is healthy again: then it was an odd one, and is compared with
    like the others, so that the next of its kind is not left out.
    """

    values: dict[str, list[float]] = field(default_factory=dict)
    lowest: float = math.inf
    highest: float = -math.inf
    outside: dict[str, list[float]] = field(default_factory=dict)

    def add(self, metrics: Metrics) -> None:
        """Remember a healthy batch."""
        signal = metrics.get("gradient_norm", 0.0) > 0 and metrics.get("reward/range", 1.0) > 0
        seen = {name: metrics[name] for name in KEPT if name in metrics and (signal or name not in OF_STEPS)}
        low, high = self.outside.pop("reward/low", []), self.outside.pop("reward/high", [])
        for name, value in seen.items():
            self.values[name] = [*self.values.get(name, []), *self.outside.pop(name, ()), value][-MEMORY:]
        if "reward/mean" in metrics and "reward/low" in metrics:
            self.lowest = min(self.lowest, metrics["reward/low"], *low)
            self.highest = max(self.highest, metrics["reward/high"], *high)

    def leave_out(self, **values: float) -> None:
        """Note what a batch was left out for, by metric."""
        for name, value in values.items():
            if math.isfinite(value):
                self.outside[name] = [*self.outside.get(name, []), value][-MEMORY:]

    def of(self, name: str, limits: Limits = LIMITS) -> list[float]:
        """The remembered values of a metric; none while there are too few."""
        found = self.values.get(name, [])
        return found if len(found) >= limits.least else []

    def plain(self) -> dict[str, Any]:
        """As JSON holds it."""
        known = math.isfinite(self.lowest)
        kept = {"values": self.values, "outside": self.outside}
        return {key: {name: list(found) for name, found in lists.items()} for key, lists in kept.items()} | (
            {"lowest": self.lowest, "highest": self.highest} if known else {}
        )

    @classmethod
    def of_plain(cls, kept: Mapping[str, Any]) -> History:
        """What :meth:`plain` gave."""
        values, outside = ({name: list(found) for name, found in kept.get(key, {}).items()} for key in ("values", "outside"))
        return cls(values, kept.get("lowest", math.inf), kept.get("highest", -math.inf), outside)


def suspected(metrics: Metrics, history: History, limits: Limits = LIMITS) -> bool:
    """Whether it may be the weights that a metric crossed its bound for, and not other data.

    Either the prompts that came before have lower rewards than then, or one of the latest steps was unusually large. Where
    neither is so, the weights moved as they did while all was well, and going back would lose what they learned.
    """
    of_samples = metrics.get("reward/std", 0.0)
    worse = metrics.get(AGAIN, 0.0) < -limits.fall * of_samples if of_samples else metrics.get(AGAIN, 0.0) < 0
    large = False
    for name in ("update_size", "gradient_norm"):
        values = history.of(name, limits)
        latest = [*values[-5:], metrics.get(name, 0.0)]
        large = large or (bool(values) and max(latest) > limits.moved * statistics.median(values))
    return worse or large


class PromptMemory:
    """Which prompts came lately, in which pass over the data, and what their rewards were."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int, float | None]] = {}  # by prompt: epoch, ordinal, mean reward

    def facts(self, groups: Sequence[Group], limits: Limits = LIMITS) -> Metrics:
        """:data:`REPEATED`: the share of the groups whose prompt came before under another ordinal of the same pass; and
        :data:`AGAIN`. Remembers the groups."""
        repeated, gained = 0, []
        for group in groups:
            key, name = group.key, name_of(group)
            rewards = [sample.reward for sample in generated([group]) if sample.valid and sample.reward is not None]
            mean = statistics.fmean(rewards) if rewards else None
            epoch, ordinal, then = self._seen.pop(name, (key.epoch, key.ordinal, None))
            repeated += epoch == key.epoch and ordinal != key.ordinal
            if mean is not None and then is not None:
                gained.append(mean - then)
            self._seen[name] = key.epoch, key.ordinal if epoch != key.epoch else ordinal, mean
        while len(self._seen) > PROMPTS_REMEMBERED:
            del self._seen[next(iter(self._seen))]
        facts = {REPEATED: repeated / len(groups) if groups else 0.0}
        return facts | ({AGAIN: statistics.fmean(gained)} if gained and len(gained) >= limits.again * len(groups) else {})

    def plain(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {name: list(kept) for name, kept in self._seen.items()}

    def load(self, kept: Mapping[str, Any]) -> None:
        """Take back what :meth:`plain` gave."""
        self._seen = {name: (epoch, ordinal, reward) for name, (epoch, ordinal, reward) in kept.items()}


def name_of(group: Group) -> str:
    """A prompt's name among all of its source, the same in every process."""
    content = repr((group.key.source, group.prompt.text, str(group.prompt.messages), group.prompt.blobs))
    return hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()

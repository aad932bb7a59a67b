"""Sentinels: where the bounds are, and what an alarm is. What is read, and when, stands in ``loops/sentinel_rules.py``.

A sentinel looks at numbers of a training step and trips where they mean that something is wrong. ``fatal``: training would
be wrong from here on, so the run stops. ``warning``: it may be right, and someone should look.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from penstock.core.errors import TrainingError

Severity = Literal["warning", "fatal"]
SentinelMode = Literal["on", "warn", "off"]


@dataclass(frozen=True)
class Thresholds:
    """Where sentinels trip; the same for every run. Log-probs are in nats, shares are of 1.

    A gap compares log-probs of the same tokens under the same weights, once drawn and once learned from. Where both sides
    compute in float32 healthy runs stay below 1e-4 (``docs/sentinels.md``), and a wrong temperature, template or weight
    file is above 0.05. Where one side rounds (bfloat16, 4 bits) only the wider bounds of ``ROUNDED`` are safe.
    """

    gap_warning: float = 1e-3
    """Mean |gap| over the tokens that the learner's own version drew: above it the two sides do not quite agree."""
    gap_fatal: float = 0.05
    """Mean |gap| above which they are not the same policy."""
    largest_gap: float = 0.5
    """One token's |gap| above which some of the samples (of one generator out of many, say) are another policy's."""
    stale_cache: float = 0.1
    """Mean |gap| of tokens that the learner's version drew on a cache filled by older weights (``kv="keep"``)."""
    effective_samples: float = 0.5
    """Share (Σw)² / (N Σw²) of the tokens that count after importance weights, below which a few tokens decide."""
    flat_groups: float = 0.95
    """Share of the groups whose samples all have the same reward."""
    failed_samples: float = 0.1
    """Share of the samples that failed (a reward that raised, an environment that broke)."""
    entropy_left: float = 0.1
    """Share of the first batches' entropy that is left ..."""
    reward_gained: float = 0.25
    """... while the mean reward rose by less than so many of the first batches' standard deviations: a collapse. Entropy
    that was paid for with reward is learning."""
    cut_samples: float = 0.5
    """Share of the samples that are cut at their longest length ..."""
    cut_more: float = 0.4
    """... if it is by so much more than in the first batches: a length explosion. Where answers have no end of their own,
    all are cut from the start, and nothing is wrong."""
    start: int = 5
    """Batches that are "the first"."""
    patience: int = 5
    """Batches in a row that a slow sign (flat groups, constant reward, entropy, length) must last to trip or to clear."""
    idle: int = 3
    """Batches in a row without any gradient."""
    unchanged: int = 10
    """Batches in a row with a gradient and a learning rate, after which the weights must have changed."""


EXACT = Thresholds()
"""Generator and learner both compute in float32."""

ROUNDED = Thresholds(gap_warning=0.05, gap_fatal=0.2, largest_gap=math.inf)
"""One of them rounds to bfloat16 or 4 bits, or is another engine."""


@dataclass(frozen=True)
class Alarm:
    """A sentinel tripped or cleared at a step (counted from 1). ``value`` crossed ``bound``; the message names the fix."""

    sentinel: str
    severity: Severity
    step: int
    message: str
    value: float
    bound: float
    cleared: bool = False

    def fields(self) -> dict[str, Any]:
        """Fields of its event."""
        known = asdict(self)
        del known["step"], known["cleared"]
        return {"sentinel": known.pop("sentinel"), "state": "cleared" if self.cleared else "tripped", **known}


class SentinelError(TrainingError):
    """A fatal sentinel tripped; ``alarms`` are all of that batch, the fatal one last."""

    def __init__(self, message: str, alarms: Sequence[Alarm] = ()) -> None:
        super().__init__(message)
        self.alarms = tuple(alarms)

    @classmethod
    def of(cls, alarms: Sequence[Alarm]) -> SentinelError:
        """The error of a batch's alarms, of which the last is fatal."""
        last = alarms[-1]
        return cls(f"sentinel {last.sentinel}, step {last.step}: {last.message}", alarms)

"""How metrics are named, grouped and written for people."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LATEST = 1e12
"""No time in seconds and no count of steps is larger."""


@dataclass(frozen=True)
class Shown:
    """A metric as people read it: its label, its unit (empty: a plain number) and whether it is a share of 1."""

    label: str
    unit: str = ""
    share: bool = False


KNOWN = {
    "reward/mean": Shown("reward"),
    "accuracy": Shown("accuracy", share=True),
    "evaluation/reward": Shown("held-out reward"),
    "evaluation/accuracy": Shown("held-out accuracy", share=True),
    "loss": Shown("loss"),
    "policy/loss": Shown("policy loss"),
    "value/loss": Shown("value loss"),
    "kl/reference": Shown("KL to reference", "nats"),
    "entropy/sampled": Shown("entropy of the samples", "nats"),
    "policy/entropy": Shown("entropy", "nats"),
    "policy/clip_fraction": Shown("clipped", share=True),
    "value/clip_fraction": Shown("values clipped", share=True),
    "gradient_norm": Shown("gradient norm"),
    "update_size": Shown("change of a weight in a step (root mean square)"),
    "length/mean": Shown("length", "tokens"),
    "mismatch/mean": Shown("log-prob gap", "nats"),
    "mismatch/tokens": Shown("tokens of the log-prob gap"),
    "policy/effective_sample_size": Shown("effective sample size", share=True),
    "samples/failed_share": Shown("samples failed", share=True),
    "groups/flat": Shown("groups of equal reward", share=True),
    "finish/cut": Shown("samples cut", share=True),
    "learning_rate": Shown("learning rate"),
    "tokens_per_second": Shown("trained", "tokens/s"),
    "steps_per_second": Shown("acted and trained", "steps/s"),
    "episode/return": Shown("return of 100 episodes"),
    "episode/length": Shown("episode", "steps"),
    "episode/per_second": Shown("episodes", "episodes/s"),
    "episode/turns": Shown("turns"),
    "episode/crashed": Shown("environment crashed", share=True),
    "episode/timed_out": Shown("environment hung", share=True),
    "episode/tried_again": Shown("tried a second time", share=True),
    "episode/malformed_calls": Shown("malformed calls"),
    "episode/truncated": Shown("episodes cut", share=True),
    "generation/tokens_per_second": Shown("generated", "tokens/s"),
    "tokens/prefilled": Shown("prefilled", "tokens"),
    "tokens/reused": Shown("cached", "tokens"),
    "tokens/reused_share": Shown("cached share", share=True),
}
"""Metrics with a label of their own, in the order in which they are shown."""

GROUPS = (
    ("Reward", ("reward", "accuracy", "margin")),
    ("Evaluation", ("evaluation",)),
    ("Episodes", ("episode",)),
    ("Votes", ("asked", "card", "weight")),
    ("Divergence from the reference", ("kl",)),
    ("Exploration", ("entropy", "length", "finish", "truncated")),
    ("Loss", ("loss", "policy", "value")),
    ("Optimisation", ("gradient_norm", "update_size", "learning_rate", "max", "advantage", "correction")),
    ("Staleness", ("lag", "version", "stale", "mismatch")),
    ("Speed", ("tokens_per_second", "generation", "tokens", "seconds", "time", "memory")),
    ("Machines", ("machine",)),
)
"""Section titles and the first parts of the metric names that belong to them."""

OTHER = "Other"

_UNITS = {
    "kl": "nats", "mismatch": "nats", "entropy": "nats", "length": "tokens", "tokens": "tokens", "seconds": "s",
    "lag": "versions",
}  # fmt: skip


def shown(name: str) -> Shown:
    """How a metric is presented; one that is not known keeps its name, with a unit where its first part tells."""
    first, _, rest = name.partition("/")
    label = f"held-out {rest}" if first == "evaluation" and rest else name
    return KNOWN.get(name) or Shown(label.replace("_", " "), _UNITS.get(first, ""))


def group(name: str) -> str:
    """The section a metric belongs to."""
    first = name.split("/")[0]
    return next((title for title, firsts in GROUPS if first in firsts), OTHER)


def order(name: str) -> tuple[int, int, str]:
    """Sort key: sections in their order, known metrics first, then by name."""
    titles, known = [title for title, _ in GROUPS], list(KNOWN)
    title = group(name)
    return (
        titles.index(title) if title in titles else len(titles),
        known.index(name) if name in known else len(known),
        name,
    )


def number(value: Any) -> float | None:
    """An event's value as a float (the log writes non-finite numbers as text); None for what is not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except ValueError:
        return None
    except OverflowError:  # an integer of hundreds of digits
        return math.inf if value > 0 else -math.inf  # type: ignore[operator]


def moment(value: Any) -> float | None:
    """An event's time in seconds; None where it is none, or so far off that it stems from a damaged file."""
    found = number(value)
    return found if found is not None and abs(found) < LATEST else None


def count(value: Any) -> int:
    """How many steps a spec asks for; 0 where it does not say, or is damaged."""
    found = number(value)
    return int(found) if found is not None and 0 <= found < LATEST else 0


def text_of(value: float) -> str:
    """Three significant digits below 1, four above, thousands grouped, no needless exponent."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "−∞"
    size = abs(value)
    if value == int(value) and size < 1e7:
        written = f"{int(value):,}"
    elif size >= 1e7 or size < 1e-4:
        digits, exponent = f"{value:.3g}".split("e") if "e" in f"{value:.3g}" else (f"{value:.3g}", "")
        written = f"{digits}e{int(exponent)}" if exponent else digits
    elif size >= 1000:
        written = f"{value:,.0f}"
    else:
        written = f"{value:.{(3 if size >= 1 else 2) - math.floor(math.log10(size))}f}"
    return written.replace("-", "−")


def value_of(name: str, value: float) -> str:
    """A metric's value with its unit."""
    known = shown(name)
    if known.share and math.isfinite(value):
        return f"{value:.1%}"
    return f"{text_of(value)} {known.unit}".rstrip()


def numbers(values: Any) -> dict[str, float]:
    """The numeric entries of a metrics event; anything else is left out."""
    if not isinstance(values, Mapping):
        return {}
    return {str(name): found for name, value in values.items() if (found := number(value)) is not None}


def duration(seconds: float) -> str:
    """``3 h 07 min``, ``4 min 05 s`` or ``12 s``."""
    whole = max(0, round(seconds))
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    if whole >= 60:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole} s"

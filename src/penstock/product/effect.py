"""Do corrections in prompts help? Two arms compared, with an interval that counts people and not clicks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.feedback.errors import FeedbackError
from penstock.feedback.quality.agreement import bootstrap_interval
from penstock.product import log as product_log
from penstock.product import tenants
from penstock.product.labels import Policy

if TYPE_CHECKING:
    from penstock.feedback.store import Store


class Outcome(NamedTuple):
    """How one request went. ``unit`` is what is independent of others, such as the user."""

    unit: str
    arm: str
    value: float


@dataclass(frozen=True)
class Effect:
    """Mean outcomes of the arms, each unit counting once an arm, and their difference with its 95% interval."""

    with_corrections: float
    without: float
    units: tuple[int, int]
    """Units with corrections, and without."""
    difference: float
    interval: tuple[float, float]

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.interval[0] > 0 or self.interval[1] < 0


def compare_arms(outcomes: Iterable[Outcome]) -> Effect:
    """The difference between the arms. Each unit's outcomes are averaged first, so that nobody counts for their diligence;
    the interval draws units again, with all that is theirs (cluster bootstrap).

    Raises:
        FeedbackError: an arm without outcomes, or one that is unknown.
    """
    said: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for outcome in outcomes:
        if outcome.arm not in ("corrections", "control"):
            raise FeedbackError(f"arm={outcome.arm!r:.40}; an outcome is of corrections or of control")
        said[outcome.unit][outcome.arm].append(outcome.value)
    value_AU = np.full((2, len(said)), np.nan)
    for place, arms in enumerate(said.values()):
        for row, arm in enumerate(("corrections", "control")):
            if arm in arms:
                value_AU[row, place] = np.mean(arms[arm])
    counts = (~np.isnan(value_AU)).sum(axis=1) if said else np.zeros(2, int)
    if not counts.all():
        raise FeedbackError(f"{counts[0]} units with corrections and {counts[1]} without; both arms are needed to compare")
    first, second = np.nanmean(value_AU[0]), np.nanmean(value_AU[1])
    interval = bootstrap_interval(value_AU, _difference, samples=2000)
    return Effect(float(first), float(second), (int(counts[0]), int(counts[1])), float(first - second), interval)


def _difference(value_AU: NDArray[np.float64]) -> float:
    means = [row[~np.isnan(row)] for row in value_AU]
    return float(means[0].mean() - means[1].mean()) if all(len(row) for row in means) else float("nan")


def effect(store: Store, tenant: str) -> Effect:
    """The effect of corrections on what users of a tenant signal: the share of good ones (1 good, 0 bad) among the responses
    whose arm the product sent. Each user has one say on each response, their newest; capped signals count for nothing.

    Raises:
        FeedbackError: an arm without signals.
        NotFound: there is no such tenant.
    """
    tenants.tenant(store, tenant)  # or its name was mistyped
    taken = product_log.snapshot(store)
    newest = {
        (event.user, event.response): event
        for event in taken.events
        if event.tenant == tenant and event.standing == "counted" and event.signal in Policy().signals
    }
    outcomes = []
    for (user, response), event in newest.items():
        reply = taken.replies[tenant, response]
        if reply.arm and event.sign:
            outcomes.append(Outcome(user, reply.arm, float(event.sign > 0)))
    return compare_arms(outcomes)

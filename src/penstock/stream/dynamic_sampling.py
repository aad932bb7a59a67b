"""Groups without signal: filtered, so that another prompt takes their place, within a limit."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.errors import StreamError
from penstock.core.types import Group
from penstock.stream.rules import Rules


class Filter:
    """Ordinals that were filtered since the last batch, and the slots that stay closed beyond the limit."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.reasons: dict[int, str] = {}
        """By ordinal: what a filtered group looked like."""
        self.withheld = 0

    def add(self, ordinal: int, group: Group) -> int:
        """Filter a group: gives how many slots open, 0 where too many were filtered already."""
        self.reasons[ordinal] = without_signal(group)
        opens = len(self.reasons) <= self.rules.dynamic_sampling * self.rules.slots
        self.withheld += not opens
        return int(opens)

    def consume(self, last: int) -> tuple[tuple[int, ...], int]:
        """A batch up to the ordinal ``last`` is complete: the filtered ordinals on the way to it, and how many slots open."""
        below = tuple(sorted(ordinal for ordinal in self.reasons if ordinal < last))
        for ordinal in below:
            del self.reasons[ordinal]
        opens, self.withheld = self.withheld, 0
        return below, opens

    def refuse_shortage(self, needed: int) -> None:
        """Nothing is on its way any more: fail if so many slots are withheld that ``needed`` groups cannot come together."""
        if not self.withheld or self.rules.slots - self.withheld >= needed:
            return
        raise StreamError(
            f"{len(self.reasons)} groups without signal were filtered, more than "
            f"dynamic_sampling={self.rules.dynamic_sampling} allows for batches of {self.rules.batch}; in the last one "
            f"{self.reasons[max(self.reasons)]}. Use prompts the model solves sometimes, or raise dynamic_sampling"
        )


def without_signal(group: Group) -> str:
    """What a group without signal looks like, in the words of an error."""
    errors = [sample.error for sample in group.samples if sample.error]
    rewards: Sequence[float] = [sample.reward for sample in group.samples if sample.valid and sample.reward is not None]
    if len(set(rewards)) == 1:
        return f"all rewards were {rewards[0]:g}"
    return f"{len(errors)} of {len(group.samples)} samples failed: {errors[0]}" if errors else "nothing could be learned"

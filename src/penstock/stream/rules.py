"""The nouns of the stream: what is enforced, what is handed out, and what is counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from penstock.core.errors import StreamError
from penstock.core.types import Group, Version
from penstock.net import wire
from penstock.stream.batch_selectors import BATCH_SELECTORS
from penstock.stream.columns import TOKENS, Stage

OnStale = Literal["wait", "drop", "mask"]

PATIENCE = 2
"""How often a group may be started again for its age before the learner waits for it, so that every group ends."""

UNLIMITED = 1 << 30
"""Groups that one maker may draw at a time where the slots are the only limit."""

DEATHS = 10
"""Makers that a group may lose in a row; then it is taken for what kills them, and the run ends with its name."""


@wire.register
class Ticket(NamedTuple):
    """Leave to work on a group."""

    ordinal: int
    attempt: int = 0
    """Counts the starts of the group; what comes of an earlier one is refused."""
    floor: Version = 0
    """Version published at the admission: whoever draws the group must hold at least this one."""


@dataclass(frozen=True)
class Rules:
    """What the gate enforces.

    Attributes:
        batch: groups a lease holds.
        max_lag: versions that a token may be older than the weights it trains.
        on_stale: ``wait`` takes batches in the order of admission and waits for stragglers; ``drop`` takes what is ready and
            starts a group again that became too old; ``mask`` lets it go on and leaves its too old tokens out of training.
        batch_selector: which of the ready groups make up a batch (``drop`` and ``mask``).
        oversample: groups in flight beyond the slots, so that a batch need not wait for its last ones.
        keep: whether a finished group is worth a place in a batch; None keeps all. One that is not is passed over: its slot
            opens at once, so that the next prompt's group takes its place, and its prompt is not drawn again.
        dynamic_sampling: batches' worth of groups that may be passed over for each batch that may be in flight.
        max_uses: batches that a group may be in, as long as it is young enough.
        stages: columns that a group needs before it is ready, beside its tokens.
    """

    batch: int
    max_lag: int = 0
    on_stale: OnStale = "wait"
    batch_selector: str = "fifo"
    oversample: int = 0
    keep: Callable[[Group], bool] | None = None
    dynamic_sampling: int = 0
    max_uses: int = 1
    stages: tuple[Stage, ...] = ()

    @property
    def fresh(self) -> int:
        """Groups of a batch that have not been trained on before, once there are enough others."""
        return -(-self.batch // self.max_uses)

    @property
    def slots(self) -> int:
        return (self.max_lag + 1) * self.fresh + self.oversample

    def __post_init__(self) -> None:
        if self.on_stale == "wait" and (self.oversample or self.batch_selector != "fifo"):
            raise StreamError('batch_selector and oversample choose among ready groups; set on_stale="drop" or "mask"')
        if not 1 <= self.max_uses <= self.max_lag + 1:
            raise StreamError(
                f"max_uses={self.max_uses}: a group is young enough for {self.max_lag + 1} batches with this max_lag"
            )
        if self.batch_selector not in BATCH_SELECTORS:
            raise StreamError(f'no batch selector "{self.batch_selector}"; there are {", ".join(BATCH_SELECTORS)}')
        there = {TOKENS}
        for stage in self.stages:
            if missing := sorted(set(stage.inputs) - there):
                raise StreamError(f'stage "{stage.name}" needs {", ".join(missing)}; name the stages that write it before it')
            there.add(stage.name)


@dataclass(eq=False)
class Lease:
    """A batch in the learner's hands: trained, then acknowledged once durable; returned if the learner dies."""

    ordinals: tuple[int, ...]
    groups: tuple[Group, ...]
    passed: tuple[int, ...] = ()
    """Ordinals whose groups were passed over on the way to this batch; they count as trained with it."""
    again: tuple[Group, ...] = ()
    """Groups that earlier batches held as well."""
    version: Version = 0
    """Version of the weights that are trained on it."""
    entries: tuple[Entry, ...] = ()
    """Where its groups came from, for when it must be given back."""
    opened: bool = False
    """Whether its slots were opened; once, also where a second learner trains on it."""
    released: bool = False


@dataclass(eq=False)
class Entry:
    """An admitted ordinal on its way: who makes which column, and what is there."""

    ticket: Ticket
    makers: dict[str, str] = field(default_factory=dict)
    group: Group | None = None
    columns: set[str] = field(default_factory=set)
    withdrawals: int = 0
    """Starts that came to nothing because the group became too old."""
    lost: list[str] = field(default_factory=list)
    """Makers that were gone before they were done with it, since a column was last written."""
    turn: int = 0
    """Place in the order in which groups became ready."""
    uses: int = 0


@dataclass
class StreamStats:
    """Counts since the run began; seconds are summed over those who waited."""

    admitted: int = 0
    delivered: int = 0
    trained: int = 0
    passed: int = 0
    returned: int = 0
    """Groups that went back because whoever worked on them was gone."""
    refused: int = 0
    """Late deliveries of groups that had been started again."""
    dropped: int = 0
    """Groups started again because they became too old."""
    tokens_dropped: int = 0
    """Action tokens of finished groups that became too old."""
    tokens_masked: int = 0
    """Action tokens left out of training for their age."""
    waited_for_groups: float = 0.0
    waited_for_slots: float = 0.0
    largest_lag: int = 0

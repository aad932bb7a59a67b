"""Which prompts the weights have been trained on: the part of the stream that belongs into checkpoints."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.core.contracts import State
from penstock.core.types import Version


class Ledger:
    """Trained ordinals, kept as a floor below which all are trained and the set of those above it."""

    def __init__(self) -> None:
        self.floor = 0
        self.above: set[int] = set()
        self.version: Version = 0
        """Version of the weights that came of the last trained batch."""

    def __contains__(self, ordinal: int) -> bool:
        return ordinal < self.floor or ordinal in self.above

    def add(self, ordinals: Iterable[int], version: Version) -> None:
        """Ordinals whose training made ``version``."""
        self.above.update(ordinals)
        self.version = version
        while self.floor in self.above:
            self.above.discard(self.floor)
            self.floor += 1

    def state(self) -> State:
        return State({}, {"floor": self.floor, "trained": sorted(self.above), "version": self.version})

    def load_state(self, state: State) -> None:
        self.floor, self.above = int(state.values["floor"]), set(map(int, state.values["trained"]))
        self.version = int(state.values["version"])

"""Which prompts the weights have been trained on: the part of the stream that belongs into checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from penstock.core.types import Version


class Ledger:
    """Consumed ordinals, kept as a floor below which all are consumed and the set of those above it.

    There is one, the gate's. A lease carries what it will be once the batch is trained; that is what a learner saves.
    """

    def __init__(self, kept: Mapping[str, Any] | None = None) -> None:
        """Empty, or as :meth:`values` gave it."""
        kept = kept or {"floor": 0, "trained": (), "version": 0}
        self.floor, self.above = int(kept["floor"]), set(map(int, kept["trained"]))
        self.version: Version = int(kept["version"])
        """Version of the weights that come of the last batch."""

    def __contains__(self, ordinal: int) -> bool:
        return ordinal < self.floor or ordinal in self.above

    def add(self, ordinals: Iterable[int], version: Version) -> None:
        """Ordinals whose training makes ``version``."""
        self.above.update(ordinals)
        self.version = version
        while self.floor in self.above:
            self.above.discard(self.floor)
            self.floor += 1

    def values(self) -> dict[str, Any]:
        """Plain values, as JSON holds them."""
        return {"floor": self.floor, "trained": sorted(self.above), "version": self.version}

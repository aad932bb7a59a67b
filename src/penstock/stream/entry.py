"""One group on its way through the stream: leave to work on it, who does, and what is there of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.core.types import Group, Version
from penstock.net import wire
from penstock.stream.lag import NO_VERSIONS, TokenVersions


@wire.register
class Ticket(NamedTuple):
    """Leave to work on a group."""

    ordinal: int
    attempt: int = 0
    """Counts the starts of the group; what comes of an earlier one is refused."""
    min_version: Version = 0
    """Version published at the admission: the generator must hold this one or a younger one."""


@dataclass(eq=False)
class Entry:
    """An admitted group. ``owners`` are the workers on it, by the column that each writes."""

    ticket: Ticket
    owners: dict[str, str] = field(default_factory=dict)
    group: Group | None = None
    versions: TokenVersions = NO_VERSIONS
    """Of the group's tokens, kept because reading them takes a pass over all its arrays."""
    columns: set[str] = field(default_factory=set)
    ready: int = -1
    """Place in the order in which groups became ready for a batch; -1: it is not."""
    stale_restarts: int = 0
    """Starts that came to nothing because the group became too old."""
    failed_owners: list[str] = field(default_factory=list)
    """Workers that were gone before they were done with it, since a column was last written."""
    uses: int = 0
    """Batches that it has been in."""

    @property
    def ordinal(self) -> int:
        return self.ticket.ordinal

    @property
    def is_ready(self) -> bool:
        """Whether all its columns are there."""
        return self.ready >= 0

    @property
    def whole(self) -> Group:
        """The group, which must be there."""
        assert self.group is not None, f"ordinal {self.ordinal} has no group yet"
        return self.group

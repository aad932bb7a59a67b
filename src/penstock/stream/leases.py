"""Batches that were handed to the learner and that no checkpoint is known to hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.core.errors import StreamError
from penstock.core.types import Group, Version
from penstock.net import wire


@wire.register
@dataclass(frozen=True, eq=False)
class Lease:
    """A batch that the learner has: trained, released once its weights are out, forgotten once they are durable."""

    number: int
    version: Version
    """Version of the weights that are trained on it."""
    ordinals: tuple[int, ...]
    groups: tuple[Group, ...]
    filtered: tuple[int, ...] = ()
    """Ordinals whose groups were filtered on the way to this batch; they count as trained with it."""
    reused: tuple[Group, ...] = ()
    """Groups that earlier batches held as well."""
    ledger: Mapping[str, Any] = field(default_factory=dict)
    """The ledger once it is trained."""


class Leases:
    """A learner that was started again is given those that its checkpoint lacks, as they were and in the order of versions."""

    def __init__(self, durable: Version = 0) -> None:
        self.durable = durable
        """Leases of versions below it are forgotten: a checkpoint holds what was trained on them."""
        self._known: dict[int, Lease] = {}
        self._repeated: list[Lease] = []
        self._slots: dict[int, int] = {}
        """By number: slots that a lease still holds."""
        self._unreleased: set[int] = set()

    def __iter__(self) -> Iterator[Lease]:
        return iter(self._known.values())

    def add(self, lease: Lease) -> None:
        """A new batch; its slots open at the first release."""
        self._known[lease.number] = lease
        self._slots[lease.number] = len(lease.ordinals)
        self._unreleased.add(lease.number)

    @property
    def repeats(self) -> bool:
        """Whether the learner is to be given batches that an earlier one was given."""
        return bool(self._repeated)

    def repeat(self, version: Version) -> Lease:
        """The next of them. Raises StreamError where it is not for ``version``; nothing is lost then."""
        lease = self._repeated[0]
        if lease.version != version:
            raise StreamError(f"a learner of version {version} asked for the batch that version {lease.version} was trained on")
        self._unreleased.add(lease.number)
        return self._repeated.pop(0)

    def release(self, number: int) -> tuple[Lease, int]:
        """The weights trained on a lease are out: the lease, and how many slots open.

        Raises:
            StreamError: it was released before, or is none of the learner's.
        """
        if number not in self._unreleased:
            raise StreamError(f"lease {number} was released twice, or is not the learner's")
        self._unreleased.discard(number)
        return self._known[number], self._slots.pop(number, 0)

    def acknowledge(self, version: Version) -> None:
        """A checkpoint holds what was trained on leases below ``version``: forget those whose slots are open."""
        self.durable = max(self.durable, version)
        held = self._slots
        self._known = {number: one for number, one in self._known.items() if one.version >= version or number in held}

    def restore(self, version: Version) -> int:
        """The learner died and its successor goes on from a checkpoint of ``version``: gives how many slots open.

        Raises:
            StreamError: the checkpoint is older than one whose leases were forgotten.
        """
        if version < self.durable:
            raise StreamError(
                f"the learner goes on from version {version}, but batches up to version {self.durable} are durable and "
                "forgotten; resume from the newest checkpoint, or start stream and learner again from this one"
            )
        self._repeated = sorted((lease for lease in self if lease.version >= version), key=lambda lease: lease.version)
        self._unreleased.clear()
        # What was saved has been trained, but the learner died before it could say so.
        return sum(self._slots.pop(lease.number, 0) for lease in self if lease.version < version)

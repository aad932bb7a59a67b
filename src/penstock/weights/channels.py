"""Channels by name, so that a run can pick one and a manifest can say which it came through."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock.core.errors import SpecError
from penstock.weights.disk import DiskPublisher, DiskSubscriber
from penstock.weights.ends import Publisher, Subscriber
from penstock.weights.process_group import ProcessGroupPublisher, ProcessGroupSubscriber
from penstock.weights.shared_memory import SharedMemoryPublisher, SharedMemorySubscriber


class Kind(NamedTuple):
    """The two ends of a channel."""

    publisher: Callable[..., Publisher]
    subscriber: type[Subscriber]


KINDS = {
    "shared memory": Kind(SharedMemoryPublisher, SharedMemorySubscriber),
    "disk": Kind(DiskPublisher, DiskSubscriber),
    "process group": Kind(ProcessGroupPublisher, ProcessGroupSubscriber),
}


def channel(name: str) -> Kind:
    """A channel by its name. Raises SpecError where there is none of this name."""
    if name not in KINDS:
        raise SpecError(f'there is no weight channel "{name}"; use one of: {", ".join(KINDS)}')
    return KINDS[name]

"""Channels by name, so that a run can pick one and a manifest can say which it came through."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from penstock.core.errors import SpecError
from penstock.core.types import Version
from penstock.weights.disk import DiskPublisher, DiskSubscriber
from penstock.weights.follow import Subscriber
from penstock.weights.process_group import ProcessGroupPublisher, ProcessGroupSubscriber
from penstock.weights.shared_memory import SharedMemoryPublisher, SharedMemorySubscriber
from penstock.weights.snapshot import Post, Weights


class Publisher(Protocol):
    """Where a learner's weights leave; fulfils ``Channel``."""

    async def publish(self, version: Version) -> None: ...

    def close(self) -> None:
        """Stop, and remove what the channel keeps in its folder."""
        ...


class Kind(NamedTuple):
    """How the two ends of a channel are made."""

    publisher: Callable[..., Publisher]
    subscriber: Callable[[Path, str], Subscriber]


KINDS = {
    "shared memory": Kind(SharedMemoryPublisher, lambda folder, name: SharedMemorySubscriber(folder)),
    "disk": Kind(DiskPublisher, lambda folder, name: DiskSubscriber(folder)),
    "process group": Kind(ProcessGroupPublisher, ProcessGroupSubscriber),
}


def open_publisher(
    kind: str, weights: Weights, folder: str | Path, post: Post, learner_epoch: int, **options: Any
) -> Publisher:
    """The publisher of a channel: ``weights`` gives the tensors, ``post`` announces a manifest, ``options`` are the channel's.

    Raises:
        SpecError: no channel has this name.
    """
    return _kind(kind).publisher(weights, Path(folder), post, learner_epoch, **options)


def open_subscriber(kind: str, folder: str | Path, name: str) -> Subscriber:
    """The subscriber of a channel: ``folder`` is its publisher's, ``name`` what this generator is called.

    Raises:
        SpecError: no channel has this name.
    """
    return _kind(kind).subscriber(Path(folder), name)


def _kind(name: str) -> Kind:
    if name not in KINDS:
        raise SpecError(f'there is no weight channel "{name}"; use one of: {", ".join(KINDS)}')
    return KINDS[name]

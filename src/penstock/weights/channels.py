"""Channels by name, so that a run can pick one and a manifest can say which it came through."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.core.errors import SpecError
from penstock.weights.follow import Subscriber
from penstock.weights.image import Weights
from penstock.weights.shared_memory import Post

KINDS = ("shared memory",)


def open_publisher(kind: str, weights: Weights, folder: str | Path, post: Post, incarnation: int) -> Any:
    """The publisher of a channel: ``weights`` gives the tensors, ``post`` announces a manifest.

    Raises:
        SpecError: no channel has this name.
    """
    from penstock.weights.shared_memory import SharedMemoryPublisher

    if kind == "shared memory":
        return SharedMemoryPublisher(weights, Path(folder), post, incarnation)
    raise SpecError(f'there is no weight channel "{kind}"; use one of: {", ".join(KINDS)}')


def open_subscriber(kind: str, folder: str | Path, name: str) -> Subscriber:
    """The subscriber of a channel: ``folder`` is its publisher's, ``name`` what this generator is called.

    Raises:
        SpecError: no channel has this name.
    """
    from penstock.weights.shared_memory import SharedMemorySubscriber

    if kind == "shared memory":
        return SharedMemorySubscriber(Path(folder))
    raise SpecError(f'there is no weight channel "{kind}"; use one of: {", ".join(KINDS)}')

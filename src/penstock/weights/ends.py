"""The two ends of a channel through a folder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.core.types import Version, WeightUpdate
from penstock.weights.folder import OwnedFolder
from penstock.weights.snapshot import Post, Snapshots, Weights


class Publisher(ABC):
    """Where a learner's weights leave; fulfils ``Channel``."""

    def __init__(self, weights: Weights, folder: str | Path, post: Post, learner_epoch: int = 0, *, dtype: str = "") -> None:
        """``weights`` gives the tensors, ``post`` announces a manifest; floating tensors travel as ``dtype`` if it is given.

        Raises:
            WeightError: another living process publishes in ``folder``.
        """
        self.snapshots, self.post, self.learner_epoch = Snapshots(weights, dtype), post, learner_epoch
        self.folder = OwnedFolder(Path(folder))

    @abstractmethod
    async def publish(self, version: Version) -> None:
        """Copy the weights and announce them; they may change again as soon as this returns.

        Raises:
            WeightError: there is no room for them, or the set of tensors has changed.
        """

    def close(self) -> None:
        """Stop, and remove what the channel keeps in its folder; generators keep what they have read."""
        self.folder.close()


class Subscriber(ABC):
    """Where a channel's weights arrive, under the ``name`` of a generator. ``folder`` is the publisher's; a manifest that
    points elsewhere is refused."""

    def __init__(self, folder: str | Path, name: str = "") -> None:
        self.folder, self.name = Path(folder), name

    @abstractmethod
    def open(self, manifest: Mapping[str, Any]) -> WeightUpdate:
        """The verified update that a manifest announces, in memory of its own. Blocks, so it is called in a thread.

        Raises:
            Superseded: newer weights have taken its place.
            WeightError: the manifest or what it names is malformed, or a checksum does not match.
        """

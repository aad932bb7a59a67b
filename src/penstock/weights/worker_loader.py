"""The last stretch to an engine whose model lies in worker processes of its own, through a file of shared memory.

The generator's process has taken and verified an update. It writes the snapshot into a file (:class:`WorkerLoader`); every
worker maps that file, verifies it again (:class:`ReceiveBuffer`) and loads from there, so a machine holds the snapshot once,
however many workers there are. The file lives as long as one update takes. A worker that refuses says so when it is asked and
raises nothing, because an engine of several workers cannot make sense of one that fails alone: the generator's process asks all
of them and decides (``serve/vllm.py``).
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from penstock.core.errors import WeightError
from penstock.core.types import Version
from penstock.weights.folder import shared_file
from penstock.weights.snapshot import Announced, Snapshots, manifest_of

KIND = "workers"
BACKEND = "penstock"
"""What vLLM's ``WeightTransferConfig.backend`` is set to."""
Tensors = list[tuple[str, Tensor]]


class WorkerLoader:
    """The generator's side. One snapshot at a time lies in ``folder``, which should be in shared memory."""

    backend = BACKEND
    extension = "penstock.weights.vllm_transfer.WorkerExtension"

    def __init__(self, folder: Path) -> None:
        self.path = folder / "weights.snapshot"

    def write(self, order: tuple[int, Version], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """Write tensors, in their order; gives the manifest for a worker. ``order``: (learner_epoch, version).

        Raises:
            WeightError: there is no room.
        """
        snapshots = Snapshots(tensors.items)
        self.clear()
        handle, shared = shared_file(self.path, snapshots.layout.bytes)
        os.close(handle)
        with shared:
            bytes_I = snapshots.take(torch.frombuffer(shared, dtype=torch.uint8))
            manifest = manifest_of(KIND, order, snapshots.layout, bytes_I, file=str(self.path))
            del bytes_I  # or the mapping could not be closed
        return manifest

    def clear(self) -> None:
        """Remove the snapshot; workers that have it mapped keep what they see."""
        self.path.unlink(missing_ok=True)


def read(manifest: Mapping[str, Any]) -> tuple[Tensors, Sequence[str]]:
    """The (name, tensor) pairs that a manifest announces, as views of the file, and the checksums of its buckets.

    Raises:
        WeightError: the manifest is malformed, the file is missing or too short, or a checksum does not match.
    """
    announced, path = Announced.read(manifest, KIND), Path(str(manifest.get("file")))
    with announced.reading(path), path.open("rb") as file:
        # A private mapping may be written to without changing the file, which torch wants of memory that it wraps.
        mapped = mmap.mmap(file.fileno(), announced.layout.bytes, flags=mmap.MAP_PRIVATE)
    update = announced.update(torch.frombuffer(mapped, dtype=torch.uint8))
    return list(update.tensors or ()), announced.checksums


@dataclass(frozen=True)
class Received:
    """An update that is here whole: its tensors, the checksums of its buckets, and what was prepared of it."""

    tensors: Tensors
    sums: Sequence[str]
    prepared: Any


class ReceiveBuffer:
    """A worker's side, while it runs with the old weights: receive, say whether it refuses, give the update or drop it."""

    def __init__(self) -> None:
        self.refusal = "nothing was sent"
        """Why there is no update to take; empty where there is one."""
        self._received: Received | None = None

    def receive(self, manifest: Mapping[str, Any], prepare: Callable[[Tensors], Any] = lambda tensors: None) -> None:
        """Verify what a manifest announces; ``prepare`` is called with its tensors. Raises nothing: see ``refusal``."""
        self.drop()
        try:
            tensors, sums = read(manifest)
            self._received, self.refusal = Received(tensors, sums, prepare(tensors)), ""
        except WeightError as error:
            self.refusal = str(error)
        except Exception as error:  # no byte of the model has changed, so whatever goes wrong is a refusal
            self.refusal = f"{type(error).__name__}: {error}"

    def take(self) -> Received:
        """The update; the buffer is empty afterwards. Raises WeightError where there is none."""
        received, refusal = self._received, self.refusal
        self.drop()
        if received is None:
            raise WeightError(f"there are no weights to take: {refusal}")
        return received

    def drop(self) -> None:
        """Forget the update."""
        self._received, self.refusal = None, "nothing was sent"

"""The last stretch to an engine whose model lives in processes of its own: the side of the generator's process.

Either that process has taken and verified an update: it writes the image into a file, and every worker process of the engine
maps the file, verifies it again, and loads from there (:class:`Handover`; the file lives as long as one update takes). Or the
workers are members of the channel's process group and it passes on what the channel announced (:class:`Passed`). In both cases
it asks the workers how far they are, and decides (:meth:`Handover.settled`).
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from penstock.core.errors import WeightError
from penstock.core.types import Version, WeightUpdate
from penstock.weights import process_group
from penstock.weights.image import DTYPES, Announced, Snapshots, Superseded, manifest_of

KIND = "handover"
UNDER_WAY, ARRIVED, SUPERSEDED, REFUSED = "under way", "arrived", "superseded", "refused"
"""How far a worker is with an update."""


class Handover:
    """The side that hands over. One image at a time lies in ``folder``, which should be in shared memory."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "weights.image"

    def write(self, order: tuple[int, Version], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """Write tensors, in their order; gives the manifest that tells a worker of them. ``order``: (incarnation, version).

        Raises:
            WeightError: there is no room.
        """
        snapshots = Snapshots(tensors.items)
        length = snapshots.layout.bytes
        self.clear()
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.posix_fallocate(handle, 0, length)  # here, and not as a bus error in the middle of a copy
            with mmap.mmap(handle, length) as shared:
                image_I = snapshots.take(torch.frombuffer(shared, dtype=torch.uint8))
                manifest = manifest_of(KIND, order, snapshots.layout, image_I, file=str(self.path))
                del image_I  # or the mapping could not be closed
        except OSError as error:
            self.clear()
            raise WeightError(
                f"{self.path.parent}: no room to hand {length / 1e6:.0f} MB of weights to the engine: {error.strerror}; "
                f"enlarge the shared memory (in a container --shm-size)"
            ) from error
        finally:
            os.close(handle)
        return manifest

    def clear(self) -> None:
        """Remove the image; workers that have it mapped keep what they see."""
        self.path.unlink(missing_ok=True)

    @staticmethod
    def settled(told: Sequence[Sequence[str]], version: Version) -> bool:
        """Whether all workers have an update, from what each tells of it: (state, reason). False: one is under way still.

        Raises:
            WeightError: a worker refuses it.
            Superseded: none does, and a worker came when the round was closed already; there are newer weights.
        """
        states = [state for state, _ in told]
        if UNDER_WAY in states:
            return False
        for state, error in ((REFUSED, WeightError), (SUPERSEDED, Superseded)):
            if state in states:
                rank = states.index(state)
                raise error(f"weight update {version} {state} by worker {rank} of {len(told)}: {told[rank][1]}")
        return True


class Passed:
    """Fulfils ``Subscriber`` where workers take part in the rounds of a process group themselves: reads the manifest alone."""

    def open(self, manifest: Mapping[str, Any]) -> WeightUpdate:
        """The update that a manifest announces, without values, for an engine that passes the manifest on.

        Raises:
            WeightError: the manifest is malformed, or of another channel.
        """
        announced = Announced.read(manifest, process_group.KIND)
        places = announced.layout.places
        tensors = [(place.name, torch.empty(place.shape, dtype=DTYPES[place.dtype], device="meta")) for place in places]
        incarnation, version = announced.order
        return WeightUpdate(version, tensors, incarnation=incarnation, owned=True, manifest=dict(manifest))


def take(manifest: Mapping[str, Any]) -> tuple[list[tuple[str, Tensor]], Sequence[str]]:
    """The (name, tensor) pairs that a manifest tells of, as read-only views of the file, and the checksums of its buckets.

    Raises:
        WeightError: the manifest is malformed, the file is missing or too short, or a checksum does not match.
    """
    announced = Announced.read(manifest, KIND)
    try:
        with open(str(manifest.get("file")), "rb") as file:
            # A private mapping may be written to without changing the file, which torch wants of memory that it wraps.
            mapped = mmap.mmap(file.fileno(), announced.layout.bytes, flags=mmap.MAP_PRIVATE)
    except (OSError, ValueError) as error:
        raise WeightError(f"{announced.name} refused: {manifest.get('file')} cannot be read: {error}") from error
    update = announced.update(torch.frombuffer(mapped, dtype=torch.uint8))
    return update.tensors, announced.checksums

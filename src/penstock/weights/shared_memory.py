"""The channel through shared memory: the learner writes a snapshot into a buffer, generators copy it out and look at the copy.

A buffer is a file in a folder of shared memory. A reader holds a shared lock on it while it copies, which the system gives
back when the reader dies; the publisher writes only into a buffer that it can lock alone. So nobody waits for anybody: where
all buffers are being read, the oldest is unlinked (its readers finish with it, then it is gone) and a new one is made.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from penstock.core.errors import Superseded, WeightError
from penstock.core.files import lock, unlock
from penstock.core.types import Version, WeightUpdate
from penstock.weights.folder import OwnedFolder
from penstock.weights.snapshot import Announced, Post, Snapshots, Weights, empty_snapshot, manifest_of

KIND = "shared memory"
BUFFERS = 3
"""One that is newest, one that a generator may still be copying, one to write."""
_HEADER = struct.Struct("<8sqqq")
_MAGIC = b"penstock"
_DATA = mmap.ALLOCATIONGRANULARITY
"""Where the snapshot begins in a buffer: after a page for the header."""


class Buffer:
    """A file of shared memory that holds one snapshot. Its header says of which write; while it is being written, of none."""

    def __init__(self, path: Path, length: int) -> None:
        """Raises WeightError where the shared memory is too small."""
        self.path, self.length = path, length
        self.handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.posix_fallocate(self.handle, 0, _DATA + length)  # here, and not as a bus error in the middle of a copy
        except OSError as error:
            self.discard()
            raise WeightError(
                f"{path.parent}: no room for {length / 1e6:.0f} MB of weights: {error.strerror}; enlarge the shared memory "
                f"({BUFFERS} times the weights; in a container --shm-size) or use the channel disk"
            ) from error
        self.map = mmap.mmap(self.handle, _DATA + length)

    def free(self) -> bool:
        """Whether nobody reads it; it is locked then until :meth:`seal`."""
        return lock(self.handle)

    def snapshot(self) -> Tensor:
        """The snapshot ``[bytes]`` to write into; what the buffer held before is void from here on."""
        self.map[: _HEADER.size] = bytes(_HEADER.size)
        return torch.frombuffer(self.map, dtype=torch.uint8, count=self.length, offset=_DATA)

    def seal(self, order: tuple[int, Version], serial: int) -> None:
        """Open it to readers: it holds the ``serial``-th write."""
        self.map[: _HEADER.size] = _HEADER.pack(_MAGIC, *order, serial)
        unlock(self.handle)

    def discard(self) -> None:
        """Unlink the file; readers that have it open finish undisturbed."""
        self.path.unlink(missing_ok=True)
        os.close(self.handle)


class SharedMemoryPublisher:
    """Fulfils ``Channel``: writes a version into a buffer, then posts its manifest. Never waits for a subscriber."""

    def __init__(self, weights: Weights, folder: Path, post: Post, learner_epoch: int = 0, *, dtype: str = "") -> None:
        """``weights`` gives the tensors, ``post`` announces a manifest; floating tensors travel as ``dtype`` if it is given.

        Raises:
            WeightError: another living process publishes in ``folder``.
        """
        self.snapshots, self.post, self.learner_epoch = Snapshots(weights, dtype), post, learner_epoch
        self.folder = OwnedFolder(folder)
        self.buffers: list[Buffer] = []
        """From the one written longest ago to the newest."""
        self._serial = 0

    async def publish(self, version: Version) -> None:
        """Copy the weights and announce them; they may change again as soon as this returns.

        Raises:
            WeightError: the shared memory is too small, or the set of tensors has changed.
        """
        await self.post(await asyncio.to_thread(self._write, version))

    def close(self) -> None:
        """Remove all buffers; generators keep what they have copied."""
        for buffer in self.buffers:
            with contextlib.suppress(OSError):
                buffer.discard()
        self.buffers.clear()
        self.folder.close()

    def _write(self, version: Version) -> dict[str, Any]:
        layout, order = self.snapshots.layout, (self.learner_epoch, version)
        buffer = self._take(layout.bytes)
        self._serial += 1
        try:
            bytes_I = self.snapshots.take(buffer.snapshot())
            manifest = manifest_of(KIND, order, layout, bytes_I, file=str(buffer.path), serial=self._serial)
            buffer.seal(order, self._serial)
        except BaseException:
            buffer.discard()
            raise
        self.buffers.append(buffer)
        return manifest

    def _take(self, length: int) -> Buffer:
        """A buffer that nobody reads, locked; the newest one stays for those who are about to read it."""
        for buffer in self.buffers[:-1]:
            if buffer.free():
                self.buffers.remove(buffer)
                return buffer
        if len(self.buffers) >= BUFFERS:
            self.buffers.pop(0).discard()
        made = Buffer(self.folder.path / f"{self.learner_epoch}-{self._serial + 1}.weights", length)
        made.free()
        return made


class SharedMemorySubscriber:
    """Copies announced snapshots out of shared memory and verifies the copies. Holds nothing between two calls."""

    def __init__(self, folder: Path) -> None:
        """``folder`` is the publisher's; a manifest that points elsewhere is refused."""
        self.folder = folder

    def open(self, manifest: Mapping[str, Any]) -> WeightUpdate:
        """The update that a manifest announces, verified, in memory of the caller's own; the buffer is free again.

        Raises:
            Superseded: the buffer is used for newer weights by now.
            WeightError: the manifest is malformed, the file is cut short or belongs to somebody else, or a checksum does
                not match.
        """
        announced = Announced.read(manifest, KIND)
        path, serial = Path(str(manifest.get("file"))), manifest.get("serial")
        if path.parent != self.folder or not isinstance(serial, int):
            raise WeightError(f"{announced.name} refused: {path} is not a buffer in {self.folder}")
        try:
            with path.open("rb", buffering=0) as file:
                if not lock(file.fileno(), shared=True):
                    raise Superseded(f"{announced.name}: {path} is being written anew")
                bytes_I = _copy(file, announced, serial)
        except FileNotFoundError as error:
            raise Superseded(f"{announced.name}: {path} is gone") from error
        except OSError as error:
            raise WeightError(f"{announced.name} refused: {path} cannot be read: {error}") from error
        return announced.update(bytes_I)


def _copy(file: Any, announced: Announced, serial: int) -> Tensor:
    header = file.read(_HEADER.size)
    if header != _HEADER.pack(_MAGIC, *announced.order, serial):
        if header[: len(_MAGIC)] != _MAGIC:
            raise WeightError(f"{announced.name} refused: {file.name} holds no finished weights")
        raise Superseded(f"{announced.name}: {file.name} holds other weights by now")
    bytes_I = empty_snapshot(announced.layout.bytes)
    room, filled = bytes_I.numpy().data, 0
    file.seek(_DATA)
    while filled < len(room):
        count = file.readinto(room[filled:])
        if not count:
            raise WeightError(f"{announced.name} refused: {file.name} is cut short by {len(room) - filled} bytes")
        filled += count
    return bytes_I

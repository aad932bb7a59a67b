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
from penstock.weights.ends import Publisher, Subscriber
from penstock.weights.folder import shared_file
from penstock.weights.snapshot import Announced, empty_snapshot, manifest_of

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
        advice = f"; it holds {BUFFERS} times the weights; or use the channel disk"
        self.handle, self.map = shared_file(path, _DATA + length, advice)

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


class SharedMemoryPublisher(Publisher):
    """Writes a version into a buffer, then posts its manifest. Never waits for a subscriber."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.buffers: list[Buffer] = []
        """From the one written longest ago to the newest."""
        self._serial = 0

    async def publish(self, version: Version) -> None:
        await self.post(await asyncio.to_thread(self._write, version))

    def close(self) -> None:
        for buffer in self.buffers:
            with contextlib.suppress(OSError):
                buffer.discard()
        self.buffers.clear()
        super().close()

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


class SharedMemorySubscriber(Subscriber):
    """Copies announced snapshots out of shared memory and verifies the copies. Holds nothing between two calls."""

    def open(self, manifest: Mapping[str, Any]) -> WeightUpdate:
        announced = Announced.read(manifest, KIND)
        path, serial = announced.inside(manifest.get("file"), self.folder), manifest.get("serial")
        if not isinstance(serial, int):
            raise WeightError(f"{announced.name} refused: {serial!r} is no number of a write")
        with announced.reading(path), path.open("rb", buffering=0) as file:
            if not lock(file.fileno(), shared=True):
                raise Superseded(f"{announced.name}: {path} is being written anew")
            bytes_I = _copy(file, announced, serial)
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

"""The channel through files: now and then the whole weights, in between what has changed.

A manifest names a chain: the last full file (safetensors, as any program reads it) and the differences since then. Who holds a
link of the chain reads on from there; who holds none begins with the full file. Files appear under their name when they are
whole, and the snapshots they give are verified by the manifest's checksums.

After a step of reinforcement learning nearly all bfloat16 values are what they were. A difference holds, for each two bytes
that changed, how far they lie from the ones before, and the exclusive or of old and new, high bytes and low bytes apart; each
of these runs is compressed by zlib's fastest level. It is two to three times smaller than the whole exclusive or under zlib.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from penstock.config.spec import convert
from penstock.core.errors import SpecError, Superseded, WeightError
from penstock.core.types import Version, WeightUpdate
from penstock.weights.ends import Publisher, Subscriber
from penstock.weights.snapshot import Announced, empty_snapshot, manifest_of

Bytes = NDArray[np.uint8]
PARTS = ("gaps", "wide", "values")
_ESCAPE = 255


def difference(old_I: Bytes, new_I: Bytes) -> dict[str, Bytes]:
    """The parts of ``old → new``, compressed; both snapshots have the same, even, number of bytes."""
    both_U = np.bitwise_xor(old_I.view(np.uint16), new_I.view(np.uint16))
    at_C = np.flatnonzero(both_U)
    gap_C = np.diff(at_C, prepend=-1) - 1
    gaps = np.minimum(gap_C, _ESCAPE).astype(np.uint8)
    wide = gap_C[gap_C >= _ESCAPE].astype("<u8")
    values = np.ascontiguousarray(both_U[at_C].astype("<u2").view(np.uint8).reshape(-1, 2).T)
    return {name: _packed(part) for name, part in zip(PARTS, (gaps, wide, values), strict=True)}


def apply(bytes_I: Bytes, parts: Mapping[str, Bytes]) -> None:
    """Turn an old snapshot into the new one, in place.

    Raises:
        WeightError: the parts are no difference, or one of larger snapshots; the snapshot is not to be used then.
    """
    bytes_U = bytes_I.view(np.uint16)
    try:
        gap_C = _unpacked(parts["gaps"], len(bytes_U)).astype(np.int64)
        far = gap_C == _ESCAPE
        wide = _unpacked(parts["wide"], 8 * int(far.sum())).view("<u8")
        values = _unpacked(parts["values"], 2 * len(gap_C)).reshape(2, len(gap_C))
        gap_C[far] = wide.reshape(int(far.sum()))
        at_C = np.cumsum(gap_C + 1) - 1
        bytes_U[at_C] ^= np.ascontiguousarray(values.T).view("<u2").reshape(-1)
    except (KeyError, ValueError, IndexError, zlib.error) as error:
        raise WeightError(f"the difference of weights is malformed: {error!r}") from error


def _packed(part: NDArray[Any]) -> Bytes:
    return np.frombuffer(zlib.compress(part.tobytes(), 1), np.uint8)


def _unpacked(part: Bytes, most: int) -> Bytes:
    """Decompress what is whole and of so many bytes at most: a damaged file must not fill the memory."""
    inflater = zlib.decompressobj()
    found = inflater.decompress(part.tobytes(), most + 1)
    if len(found) > most or not inflater.eof:
        raise ValueError("it is cut short" if len(found) <= most else f"more than {most} bytes")
    return np.frombuffer(found, np.uint8)


KIND = "disk"
FULL_EVERY = 16
"""Links of a chain: a generator that begins anew reads this many files at most."""


@dataclass(frozen=True)
class Link:
    """A file of a chain, ``whole`` or a difference, and the fingerprint of the snapshot that it leads to."""

    file: str
    whole: bool
    snapshot: str
    bytes: int


def fingerprint(checksums: Sequence[str]) -> str:
    """Of a snapshot, from the checksums of its buckets."""
    return xxhash.xxh3_64_hexdigest("".join(checksums).encode())


class DiskPublisher(Publisher):
    """Writes a version to a file, then posts its manifest. Never waits for a subscriber; bfloat16 makes differences small."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.chain: tuple[Link, ...] = ()
        """The links since the last full file."""
        self._last_I = empty_snapshot(0)
        self._kept: set[str] = set()

    async def publish(self, version: Version) -> None:
        manifest = await asyncio.to_thread(self._write, version)
        await self.post(manifest)
        await asyncio.to_thread(self._forget)

    def _write(self, version: Version) -> dict[str, Any]:
        layout, bytes_I = self.snapshots.layout, self.snapshots.take()
        manifest = manifest_of(KIND, (self.learner_epoch, version), layout, bytes_I)
        mark = fingerprint([bucket["checksum"] for bucket in manifest["buckets"]])
        name = f"{self.learner_epoch}-{version}"
        link = self._difference(name, bytes_I, mark)
        if link is None:
            self.chain, link = (), self._save(name, True, dict(layout.read(bytes_I)), mark)
        self.chain, self._last_I = (*self.chain, link), bytes_I
        return manifest | {"chain": [vars(link) for link in self.chain]}

    def _difference(self, name: str, bytes_I: Tensor, mark: str) -> Link | None:
        """The next link of the chain; None where a full file is due, or would hardly be larger."""
        if not 0 < len(self.chain) < FULL_EVERY:
            return None
        parts = difference(self._last_I.numpy(), bytes_I.numpy())
        if 2 * sum(part.nbytes for part in parts.values()) > len(bytes_I):
            return None
        return self._save(name, False, {part: torch.tensor(values) for part, values in parts.items()}, mark)

    def _save(self, name: str, whole: bool, tensors: dict[str, Tensor], mark: str) -> Link:
        path = self.folder.path / f"{name}-{'full' if whole else 'delta'}.safetensors"
        unfinished = path.with_suffix(".unfinished")
        try:
            save_file(tensors, unfinished, metadata={"format": "pt"})
            unfinished.rename(path)
        except (OSError, SafetensorError) as error:
            unfinished.unlink(missing_ok=True)
            raise WeightError(f"{path}: the weights cannot be written: {error}; make room there") from error
        return Link(str(path), whole, mark, path.stat().st_size)

    def _forget(self) -> None:
        """Remove files of chains before the last one; what the manifest before this one named stays for who is reading it."""
        named = {link.file for link in self.chain}
        for file in self.folder.path.glob("*.safetensors"):
            if str(file) not in named | self._kept:
                file.unlink(missing_ok=True)
        self._kept = named


class DiskSubscriber(Subscriber):
    """Reads announced files; keeps the last snapshot, to read on from it."""

    bytes_read = 0
    """Bytes of the files that the last update was read from."""
    _held, _bytes_I = "", empty_snapshot(0)

    def open(self, manifest: Mapping[str, Any]) -> WeightUpdate:
        announced = Announced.read(manifest, KIND)
        links = self._links(announced, manifest)
        held = [index for index, link in enumerate(links) if link.snapshot == self._held]
        if held and len(self._bytes_I) == announced.layout.bytes:
            try:
                return self._read(announced, links[held[-1] + 1 :], self._bytes_I.clone())
            except Superseded:
                raise
            except WeightError:  # what was held is not what it should be: from the beginning then
                self._held = ""
        return self._read(announced, links, empty_snapshot(announced.layout.bytes))

    def _links(self, announced: Announced, manifest: Mapping[str, Any]) -> tuple[Link, ...]:
        try:
            links: tuple[Link, ...] = convert(tuple[Link, ...], manifest.get("chain"), "chain")
        except SpecError as error:
            raise WeightError(f"{announced.name} refused: its chain is malformed: {error}") from error
        for link in links:
            announced.inside(link.file, self.folder)
        if not links or links[-1].snapshot != fingerprint(announced.checksums):
            raise WeightError(f"{announced.name} refused: its chain does not lead to its checksums")
        return links

    def _read(self, announced: Announced, links: Sequence[Link], bytes_I: Tensor) -> WeightUpdate:
        for link in links:
            with announced.reading(Path(link.file)), safe_open(link.file, framework="pt") as file:
                found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if link.whole:
                if missing := [place.name for place in announced.layout.places if place.name not in found]:
                    raise WeightError(f'{announced.name} refused: "{missing[0]}" is not in its full file')
                announced.layout.write([(place.name, found[place.name]) for place in announced.layout.places], bytes_I)
            else:
                apply(bytes_I.numpy(), {name: part.numpy() for name, part in found.items()})
        update = announced.update(bytes_I)
        self.bytes_read = sum(link.bytes for link in links)
        self._bytes_I, self._held = bytes_I, fingerprint(announced.checksums)
        return update

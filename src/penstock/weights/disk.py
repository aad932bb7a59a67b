"""The channel through files: now and then the whole weights, in between what has changed.

A manifest names a chain: the last full file (safetensors, as any program reads it) and the differences since then. Who holds a
link of the chain reads on from there; who holds none begins with the full file. Files appear under their name when they are
whole, and the snapshots they give are verified by the manifest's checksums.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import xxhash
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from penstock.core.errors import Superseded, WeightError
from penstock.core.types import Version, WeightUpdate
from penstock.weights.delta import apply, difference
from penstock.weights.folder import OwnedFolder
from penstock.weights.snapshot import Announced, Post, Snapshots, Weights, empty_snapshot, manifest_of

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


@dataclass
class Chain:
    """The links since the last full file, and the snapshot at their end, from which the next difference is taken."""

    links: tuple[Link, ...] = ()
    bytes_I: Tensor = field(default_factory=lambda: empty_snapshot(0))


class DiskPublisher:
    """Fulfils ``Channel``: writes a version to a file, then posts its manifest. Never waits for a subscriber."""

    def __init__(self, weights: Weights, folder: Path, post: Post, learner_epoch: int = 0, *, dtype: str = "") -> None:
        """``weights`` gives the tensors, ``post`` announces a manifest; floating tensors travel as ``dtype`` if it is given,
        and bfloat16 is what makes differences small.

        Raises:
            WeightError: another living process publishes in ``folder``.
        """
        self.snapshots, self.post, self.learner_epoch = Snapshots(weights, dtype), post, learner_epoch
        self.folder = OwnedFolder(folder)
        self.chain = Chain()
        self._kept: set[str] = set()

    async def publish(self, version: Version) -> None:
        """Write the weights and announce them; they may change again as soon as this returns.

        Raises:
            WeightError: the disk is full, or the set of tensors has changed.
        """
        manifest = await asyncio.to_thread(self._write, version)
        await self.post(manifest)
        await asyncio.to_thread(self._forget)

    def close(self) -> None:
        """Remove all files."""
        self.folder.close()

    def _write(self, version: Version) -> dict[str, Any]:
        layout, bytes_I = self.snapshots.layout, self.snapshots.take()
        manifest = manifest_of(KIND, (self.learner_epoch, version), layout, bytes_I)
        mark = fingerprint([bucket["checksum"] for bucket in manifest["buckets"]])
        name = f"{self.learner_epoch}-{version}"
        links = self.chain.links
        link = self._difference(name, bytes_I, mark)
        if link is None:
            links, link = (), self._save(name, True, dict(layout.read(bytes_I)), mark)
        links = (*links, link)
        self.chain = Chain(links, bytes_I)
        return manifest | {"chain": [vars(link) for link in links]}

    def _difference(self, name: str, bytes_I: Tensor, mark: str) -> Link | None:
        """The next link of the chain; None where a full file is due, or would hardly be larger."""
        if not 0 < len(self.chain.links) < FULL_EVERY:
            return None
        parts = difference(self.chain.bytes_I.numpy(), bytes_I.numpy())
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
        named = {link.file for link in self.chain.links}
        for file in self.folder.path.glob("*.safetensors"):
            if str(file) not in named | self._kept:
                file.unlink(missing_ok=True)
        self._kept = named


class DiskSubscriber:
    """Reads announced files; keeps the last snapshot, to read on from it."""

    def __init__(self, folder: Path) -> None:
        """``folder`` is the publisher's; a manifest that points elsewhere is refused."""
        self.folder = folder
        self.bytes_read = 0
        """Bytes of the files that the last update was read from."""
        self._held = ""
        self._bytes_I = empty_snapshot(0)

    def open(self, manifest: Mapping[str, Any]) -> WeightUpdate:
        """The update that a manifest announces, verified.

        Raises:
            Superseded: its files have given place to a newer chain.
            WeightError: the manifest or a file is malformed, or a checksum does not match.
        """
        announced = Announced.read(manifest, KIND)
        links = self._links(announced)
        held = [index for index, link in enumerate(links) if link.snapshot == self._held]
        if held and len(self._bytes_I) == announced.layout.bytes:
            try:
                return self._read(announced, links[held[-1] + 1 :], self._bytes_I.clone())
            except Superseded:
                raise
            except WeightError:  # what was held is not what it should be: from the beginning then
                self._held = ""
        return self._read(announced, links, empty_snapshot(announced.layout.bytes))

    def _links(self, announced: Announced) -> list[Link]:
        try:
            links = [
                Link(str(e["file"]), bool(e["whole"]), str(e["snapshot"]), int(e["bytes"])) for e in announced.more["chain"]
            ]
        except (KeyError, TypeError, ValueError) as error:
            raise WeightError(f"{announced.name} refused: its chain is malformed: {error!r}") from error
        if stray := [link.file for link in links if Path(link.file).parent != self.folder]:
            raise WeightError(f"{announced.name} refused: {stray[0]} is not in {self.folder}")
        if not links or links[-1].snapshot != fingerprint(announced.checksums):
            raise WeightError(f"{announced.name} refused: its chain does not lead to its checksums")
        return links

    def _read(self, announced: Announced, links: Sequence[Link], bytes_I: Tensor) -> WeightUpdate:
        for link in links:
            try:
                with safe_open(link.file, framework="pt") as file:
                    found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            except FileNotFoundError as error:
                raise Superseded(f"{announced.name}: {link.file} is gone") from error
            except (OSError, SafetensorError) as error:
                raise WeightError(f"{announced.name} refused: {link.file} cannot be read: {error}") from error
            if link.whole:
                self._lay_out(announced, found, bytes_I)
            else:
                apply(bytes_I.numpy(), {name: part.numpy() for name, part in found.items()})
        update = announced.update(bytes_I)
        self.bytes_read = sum(link.bytes for link in links)
        self._bytes_I, self._held = bytes_I, fingerprint(announced.checksums)
        return update

    def _lay_out(self, announced: Announced, found: Mapping[str, Tensor], bytes_I: Tensor) -> None:
        try:
            pairs = [(place.name, found[place.name]) for place in announced.layout.places]
        except KeyError as error:
            raise WeightError(f"{announced.name} refused: {error} is not in its full file") from error
        announced.layout.write(pairs, bytes_I)

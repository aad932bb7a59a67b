"""The snapshot of a model's weights: all tensors in one flat run of bytes, with the table that finds them again.

Every channel carries snapshots: shared memory and process groups as they are, the disk as files and differences. A manifest is
a plain dict that can travel as JSON: ``kind``, ``version``, ``learner_epoch``, ``bytes``, ``tensors`` (name, dtype, shape,
offset, bytes), ``table`` (a checksum of what comes before), ``buckets`` (offset, bytes, checksum), and what the channel adds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import xxhash
from safetensors import SafetensorError
from torch import Tensor

from penstock.core.errors import SpecError, Superseded, WeightError
from penstock.core.types import Version, WeightUpdate

ALIGNMENT = 64
"""A tensor begins at a multiple of this many bytes."""
BUCKET = 16 << 20
"""Bytes that share one checksum and travel in one message."""

Weights = Callable[[], Iterable[tuple[str, Tensor]]]
"""Gives the (name, tensor) pairs of a model, the same names in the same order at every call."""
Post = Callable[[dict[str, Any]], Awaitable[Collection[str] | None]]
"""Announces a manifest to the generators that follow; gives their names, where they are known."""

DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.uint8, torch.int8, torch.int16, torch.int32,
    torch.int64, torch.bool,
)}  # fmt: skip


@dataclass(frozen=True)
class TensorSlot:
    """Where a tensor lies in the snapshot."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    bytes: int

    def of(self, bytes_I: Tensor) -> Tensor:
        """The tensor as a view of a snapshot ``[bytes]`` (uint8)."""
        return bytes_I[self.offset : self.offset + self.bytes].view(DTYPES[self.dtype]).view(self.shape)


@dataclass(frozen=True)
class Layout:
    """The places of all tensors, and how long the snapshot is."""

    places: tuple[TensorSlot, ...]
    bytes: int

    @staticmethod
    def of(weights: Iterable[tuple[str, Tensor]], dtype: str = "") -> Layout:
        """Lay tensors out one after the other; floating ones are carried as ``dtype``, or as they are if it is empty."""
        places, end = [], 0
        for name, tensor in weights:
            kind = DTYPES[dtype] if dtype and tensor.is_floating_point() else tensor.dtype
            size = tensor.numel() * kind.itemsize
            places.append(TensorSlot(name, str(kind).removeprefix("torch."), tuple(tensor.shape), end, size))
            end += math.ceil(size / ALIGNMENT) * ALIGNMENT
        return Layout(tuple(places), end)

    @torch.no_grad()
    def write(self, weights: Iterable[tuple[str, Tensor]], bytes_I: Tensor) -> None:
        """Copy tensors to their places in a snapshot, from whatever device and type.

        Raises:
            WeightError: the tensors are not those that were laid out.
        """
        count = 0
        for place, (name, tensor) in zip(self.places, weights, strict=False):
            if (name, tuple(tensor.shape)) != (place.name, place.shape):
                raise WeightError(f'the weights have changed since the channel was opened: "{name}" stands for "{place.name}"')
            place.of(bytes_I).copy_(tensor)
            count += 1
        if count != len(self.places):
            raise WeightError(f"the weights have changed since the channel was opened: {count} of {len(self.places)} tensors")

    def read(self, bytes_I: Tensor) -> list[tuple[str, Tensor]]:
        """(name, tensor) pairs as views of a snapshot."""
        return [(place.name, place.of(bytes_I)) for place in self.places]


class Snapshots:
    """Takes snapshots of weights, laid out once and for all."""

    def __init__(self, weights: Weights, dtype: str = "") -> None:
        """Floating tensors are carried as ``dtype`` (for example ``bfloat16``), or as they are if it is empty."""
        if dtype and dtype not in DTYPES:
            raise SpecError(f'weights cannot travel as "{dtype}"; use one of: {", ".join(DTYPES)}')
        self.weights, self.dtype = weights, dtype

    @cached_property
    def layout(self) -> Layout:
        return Layout.of(self.weights(), self.dtype)

    def take(self, bytes_I: Tensor | None = None) -> Tensor:
        """Copy the weights as they are now into a snapshot, a new one unless it is given.

        Raises:
            WeightError: the set of tensors has changed.
        """
        bytes_I = empty_snapshot(self.layout.bytes) if bytes_I is None else bytes_I
        self.layout.write(self.weights(), bytes_I)
        return bytes_I


def buckets_of(length: int) -> list[tuple[int, int]]:
    """(offset, bytes) of the buckets of a snapshot."""
    return [(start, min(BUCKET, length - start)) for start in range(0, length, BUCKET)]


def checksum(part_I: Tensor) -> str:
    """XXH3 of bytes, in hexadecimal. It finds damage, not forgery: who may write weights is settled by the channel."""
    return xxhash.xxh3_64_hexdigest(part_I.numpy().data)


def table_checksum(manifest: Mapping[str, Any]) -> str:
    """Of a manifest's order and its table of tensors."""
    table = [manifest[name] for name in ("learner_epoch", "version", "bytes", "tensors")]
    return xxhash.xxh3_64_hexdigest(json.dumps(table, sort_keys=True).encode())


def sums_of(weights: Weights) -> list[str]:
    """Checksums of weights as they lie in a process, bucket by bucket as in the manifest that announced them."""
    snapshots = Snapshots(weights)
    bytes_I = snapshots.take()
    return [checksum(bytes_I[offset : offset + size]) for offset, size in buckets_of(len(bytes_I))]


def manifest_of(kind: str, order: tuple[int, Version], layout: Layout, bytes_I: Tensor, **more: Any) -> dict[str, Any]:
    """What is announced of a snapshot; ``order`` is (learner_epoch, version)."""
    buckets = buckets_of(layout.bytes)
    head = {
        "kind": kind,
        "learner_epoch": order[0],
        "version": order[1],
        "bytes": layout.bytes,
        "tensors": [asdict(place) | {"shape": list(place.shape)} for place in layout.places],
    }
    return {
        **head,
        "table": table_checksum(head),
        "buckets": [{"offset": o, "bytes": n, "checksum": checksum(bytes_I[o : o + n])} for o, n in buckets],
        **more,
    }


@dataclass(frozen=True)
class Announced:
    """A manifest that was read and found to be whole."""

    order: tuple[int, Version]
    layout: Layout
    checksums: tuple[str, ...]

    @staticmethod
    def read(manifest: Mapping[str, Any], kind: str) -> Announced:
        """Check a manifest before a byte of weights is touched.

        Raises:
            WeightError: it is of another channel, a field is missing or of the wrong type, a tensor lies outside or in the
                place of another, or the table is not the one that its checksum was made of.
        """
        if manifest.get("kind") != kind:
            raise WeightError(f'a manifest of channel "{manifest.get("kind")}" came to a subscriber of "{kind}"')
        try:
            order = (_whole(manifest["learner_epoch"]), _whole(manifest["version"]))
            length = _whole(manifest["bytes"])
            places = tuple(_place(entry) for entry in manifest["tensors"])
            found = [(_whole(bucket["offset"]), _whole(bucket["bytes"])) for bucket in manifest["buckets"]]
            checksums = tuple(str(bucket["checksum"]) for bucket in manifest["buckets"])
        except (KeyError, TypeError, ValueError) as error:
            raise WeightError(f"the weight manifest is malformed: {error!r}") from error
        _require_inside(places, length)
        if length % ALIGNMENT or len(found) != math.ceil(length / BUCKET) or found != buckets_of(length):
            raise WeightError(f"the weight manifest is malformed: its buckets do not cover {length} bytes")
        if manifest.get("table") != table_checksum(manifest):
            raise WeightError("the weight manifest is malformed: its table does not match its checksum")
        return Announced(order, Layout(places, length), checksums)

    @property
    def name(self) -> str:
        """How messages call this version."""
        return f"weight update {self.order[1]} (learner_epoch {self.order[0]})"

    def update(self, bytes_I: Tensor) -> WeightUpdate:
        """The update in a snapshot that nobody else writes to; every bucket is verified first.

        Raises:
            WeightError: a checksum does not match.
        """
        for (offset, size), expected in zip(buckets_of(self.layout.bytes), self.checksums, strict=True):
            if checksum(bytes_I[offset : offset + size]) != expected:
                names = [p.name for p in self.layout.places if p.offset < offset + size and offset < p.offset + p.bytes]
                raise WeightError(
                    f'{self.name} refused: the checksum of bytes {offset} to {offset + size} ("{names[0]}" … "{names[-1]}") '
                    f"does not match"
                )
        learner_epoch, version = self.order
        return WeightUpdate(version, self.layout.read(bytes_I), learner_epoch=learner_epoch, owned=True)

    def inside(self, file: Any, folder: Path) -> Path:
        """The path of a file that the manifest names.

        Raises:
            WeightError: it is not in the publisher's ``folder``, or is a link there, which may lead anywhere.
        """
        path = Path(str(file))
        if path.parent != folder or path.is_symlink():
            raise WeightError(f"{self.name} refused: {path} is not in {folder}")
        return path

    @contextmanager
    def reading(self, file: Path) -> Iterator[None]:
        """Within it a file is read. Raises Superseded where it is gone, WeightError where it cannot be read."""
        try:
            yield
        except FileNotFoundError as error:
            raise Superseded(f"{self.name}: {file} is gone") from error
        except (OSError, ValueError, SafetensorError) as error:
            raise WeightError(f"{self.name} refused: {file} cannot be read: {error}") from error


def _place(entry: Mapping[str, Any]) -> TensorSlot:
    name, dtype = entry["name"], entry["dtype"]
    if not (isinstance(name, str) and isinstance(dtype, str)):
        raise TypeError(f"{name!r} or {dtype!r} is no text")
    shape = tuple(_whole(side) for side in entry["shape"])
    if min(shape, default=0) < 0:
        raise ValueError(f"{shape} is no shape")
    return TensorSlot(name, dtype, shape, _whole(entry["offset"]), _whole(entry["bytes"]))


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is no whole number")
    return value


def _require_inside(places: Sequence[TensorSlot], length: int) -> None:
    """Every tensor in a place of its own; there may be gaps, and a tensor without elements takes no place."""
    end, before = 0, ""
    for place in sorted(places, key=lambda place: (place.offset, place.bytes)):
        if place.dtype not in DTYPES:
            raise WeightError(f'the weight manifest is malformed: "{place.name}" has the unknown type {place.dtype!r}')
        fits = math.prod(place.shape) * DTYPES[place.dtype].itemsize == place.bytes and place.offset % ALIGNMENT == 0
        if not fits or place.offset < 0 or place.offset + place.bytes > length:
            raise WeightError(f'the weight manifest is malformed: "{place.name}" does not fit its place')
        if place.offset < end:
            raise WeightError(f'the weight manifest is malformed: "{place.name}" lies in the place of "{before}"')
        end, before = place.offset + place.bytes, place.name


def empty_snapshot(length: int) -> Tensor:
    """A snapshot ``[bytes]`` to be filled."""
    return torch.zeros(length, dtype=torch.uint8)


KIND = "snapshot"


def pack(update: WeightUpdate) -> tuple[dict[str, Any], memoryview]:
    """The manifest of an update that has tensors, and its snapshot ``[bytes]``."""
    tensors = list(update.tensors or ())
    snapshots = Snapshots(lambda: tensors)
    bytes_I = snapshots.take()
    return manifest_of(KIND, (update.learner_epoch, update.version), snapshots.layout, bytes_I), bytes_I.numpy().data


def unpack(manifest: Mapping[str, Any], snapshot: bytearray) -> WeightUpdate:
    """The update in a snapshot, verified; the bytes are the update's from here on.

    Raises:
        WeightError: the manifest is malformed, bytes are missing, or a checksum does not match.
    """
    announced = Announced.read(manifest, KIND)
    if len(snapshot) != announced.layout.bytes:
        raise WeightError(f"{announced.name} refused: its snapshot has {len(snapshot)} bytes, not {announced.layout.bytes}")
    return announced.update(torch.frombuffer(snapshot, dtype=torch.uint8) if snapshot else empty_snapshot(0))

"""How state becomes files and back: arrays as safetensors, values as JSON, a manifest of sizes and checksums over both.

Nothing is pickled, so that a checkpoint is data and never code. What cannot be kept exactly is refused by name.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

from penstock.core.contracts import State
from penstock.core.errors import CheckpointError

MANIFEST = "manifest.json"
HEADER = "checkpoint.json"
FORMAT = 1

Table = Mapping[str, tuple[str, tuple[int, ...]]]
"""Type and shape of arrays by name."""

_HOLDER_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]*")
_RESERVED = {Path(MANIFEST).stem, Path(HEADER).stem}


def encode_json(value: Any) -> bytes:
    """The one byte sequence for a JSON value; ASCII, so that unpaired surrogates in text survive."""
    return json.dumps(value, sort_keys=False, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode("ascii")


def check_json(value: Any, where: str) -> None:
    """Refuse what would not come back from JSON exactly as it was.

    Raises:
        CheckpointError: a type JSON lacks (tuples and numpy scalars included), a key that is not text, a non-finite number.
    """
    if isinstance(value, dict):
        for key, item in value.items():
            if type(key) is not str:
                raise CheckpointError(f"{where}: key {key!r} is not text; JSON keeps text keys only")
            check_json(item, f"{where}.{key}")
    elif type(value) is list:
        for index, item in enumerate(value):
            check_json(item, f"{where}[{index}]")
    elif type(value) is float and not math.isfinite(value):
        raise CheckpointError(f"{where}={value} is not a finite number; use None for a value that is not known")
    elif value is not None and type(value) not in (str, int, float, bool):
        raise CheckpointError(
            f"{where} is a {type(value).__name__}, which JSON does not keep; use plain values or State.arrays"
        )


def as_tensor(array: Any, where: str) -> torch.Tensor:
    """A dense, detached tensor over the same memory as a numpy array or a torch tensor, where that is possible.

    Raises:
        CheckpointError: not an array, or of a kind that safetensors does not hold (objects, sparse, on no device).
    """
    if isinstance(array, torch.Tensor):
        if array.layout != torch.strided or array.device.type == "meta" or array.is_quantized:
            raise CheckpointError(f"{where} is sparse, quantized or without data; save a dense tensor")
        tensor = array.detach()
    elif type(array) is np.ndarray:  # a masked array would lose its mask
        if array.dtype.hasobject:
            raise CheckpointError(f"{where} holds Python objects; save numbers only, nothing is ever pickled")
        try:
            # torch can neither mark memory read-only nor step backwards, so such an array is copied.
            awkward = not array.flags.writeable or any(stride < 0 for stride in array.strides)
            tensor = torch.from_numpy(np.array(array, order="C", copy=True if awkward else None))
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"{where} has type {array.dtype}, which torch does not hold; convert it first") from error
    else:
        raise CheckpointError(f"{where} is a {type(array).__name__}; State.arrays holds numpy arrays and torch tensors only")
    return tensor.contiguous().resolve_conj().resolve_neg()


@dataclass(frozen=True)
class Prepared:
    """What is written of one holder: its arrays, their types and shapes, and its encoded values."""

    arrays: Mapping[str, Any]
    table: Table
    values: bytes

    @property
    def size(self) -> int:
        """About the bytes of its files; fetches no array."""
        return len(self.values) + sum(nbytes(*about) + len(name) + 128 for name, about in self.table.items())

    @property
    def in_pieces(self) -> bool:
        """Whether its arrays are fetched from elsewhere as they are read, so that a copy would be all of them at once."""
        return hasattr(self.arrays, "table")

    def copied(self) -> Prepared:
        """The same with arrays of its own in the host's memory, which no later step writes to."""
        arrays = {name: array.to("cpu", copy=True) for name, array in self.arrays.items()}
        return Prepared(arrays, self.table, self.values)


def nbytes(kind: str, shape: tuple[int, ...]) -> int:
    """Bytes of an array."""
    return int(getattr(torch, kind).itemsize * math.prod(shape))


def prepare(states: Mapping[str, State]) -> dict[str, Prepared]:
    """Check every state before anything is written. Arrays that have a ``table`` are fetched one by one when they are written.

    Raises:
        CheckpointError: a holder's name that is no file name, or something that cannot be kept exactly.
    """
    prepared = {}
    for holder, state in states.items():
        if not _HOLDER_NAME.fullmatch(holder) or holder in _RESERVED:
            raise CheckpointError(f'state "{holder}": use lower-case letters, digits, "_", "-" and "." (not {_RESERVED})')
        check_json(state.values, f'state "{holder}", values')
        from_numpy = []
        if hasattr(state.arrays, "table"):
            arrays, table = state.arrays, state.arrays.table
        else:
            arrays = {name: as_tensor(array, f'state "{holder}", array {name!r}') for name, array in state.arrays.items()}
            table = {name: (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)) for name, tensor in arrays.items()}
            from_numpy = [name for name, array in state.arrays.items() if isinstance(array, np.ndarray)]
        for name, (kind, _) in table.items():
            where = f'state "{holder}", array {name!r}'
            if type(name) is not str or name == "__metadata__":
                raise CheckpointError(f'{where}: the name must be text other than "__metadata__"')
            if kind not in KINDS:
                raise CheckpointError(
                    f"{where} has type torch.{kind}, which safetensors does not hold; convert it or save its parts"
                )
        values = encode_json({"arrays": list(table), "numpy": from_numpy, "values": state.values})
        prepared[holder] = Prepared(arrays, table, values)
    return prepared


def write_state(folder: Path, holder: str, prepared: Prepared) -> None:
    """Write one holder's two files durably, with one fetched array in memory at a time. Raises OSError."""
    path = folder / f"{holder}.safetensors"
    write_arrays(path, prepared.table, prepared.arrays)
    sync(path)
    write_bytes(folder / f"{holder}.json", prepared.values)


_SPECIAL = {"bool": "BOOL", "bfloat16": "BF16", "complex64": "C64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"}
_PLAIN = {f"{kind}{bits}": f"{kind[0].upper()}{bits}" for kind in ("float", "int", "uint") for bits in (8, 16, 32, 64)}
KINDS = _SPECIAL | _PLAIN
"""Types by torch's names and by those of the safetensors format."""


def write_arrays(path: Path, table: Table, arrays: Mapping[str, Any]) -> None:
    """Write a safetensors file: an 8-byte length, a JSON header, and the data, the largest types first so that all are aligned.

    Raises:
        OSError: the disk.
        CheckpointError: an array is of another type or shape than its table says.
    """
    header: dict[str, Any] = {}
    offset = 0
    for name, (kind, shape) in sorted(table.items(), key=lambda entry: -nbytes(entry[1][0], ())):
        size = nbytes(kind, shape)
        header[name] = {"dtype": KINDS[kind], "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    written = encode_json(header)
    written += b" " * (-len(written) % 8)
    with open(path, "wb") as file:
        file.write(len(written).to_bytes(8, "little") + written)
        for name in header:
            kind, shape = table[name]
            tensor = as_tensor(arrays[name], f'array "{name}"').cpu()
            if (str(tensor.dtype), tuple(tensor.shape)) != (f"torch.{kind}", tuple(shape)):
                raise CheckpointError(f'array "{name}" is {tensor.dtype} {tuple(tensor.shape)}, not {kind} {tuple(shape)}')
            file.write(tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy().data)


def read_state(folder: Path, holder: str) -> State:
    """Read one holder's state from verified files; numpy arrays come back as numpy, tensors as CPU tensors."""
    header = json.loads((folder / f"{holder}.json").read_bytes())
    tensors = safetensors.torch.load_file(folder / f"{holder}.safetensors")
    arrays: dict[str, Any] = {name: tensors[name] for name in header["arrays"]}
    arrays |= {name: tensors[name].numpy() for name in header["numpy"]}
    return State(arrays, header["values"])


def read_scores(path: Path) -> dict[str, float]:
    """Scores by the names of checkpoints; none where there is no such file, or it is damaged."""
    try:
        found: dict[str, float] = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found


def write_bytes(path: Path, content: bytes) -> None:
    """Write a whole file and wait until the disk has it. Raises OSError."""
    path.write_bytes(content)
    sync(path)


def sync(path: Path) -> None:
    """Wait until the disk has a file's content, or a folder's list of names. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of(path: Path) -> str:
    """SHA-256 of a file in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(folder: Path) -> None:
    """List every file of ``folder`` with its size in bytes and its SHA-256, and make the list durable. Raises OSError."""
    write_bytes(folder / MANIFEST, manifest_of(folder))
    sync(folder)


def manifest_of(folder: Path) -> bytes:
    """Every file of ``folder`` with its size in bytes and its SHA-256. Raises OSError."""
    files = {p.name: {"bytes": p.stat().st_size, "sha256": sha256_of(p)} for p in sorted(folder.iterdir())}
    return encode_json({"format": FORMAT, "files": files})


def problem_of(folder: Path) -> str | None:
    """Why a checkpoint is not valid, or None where its manifest verifies. Reads every byte.

    Raises:
        OSError: the files cannot be read for a reason other than damage (permission, for example).
    """
    try:
        return _compare(folder)
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (NotADirectoryError, IsADirectoryError):
        return "it is not a folder of plain files"
    except OSError as error:
        if error.errno == errno.EIO:
            return f"the disk cannot read it back ({error})"
        raise


def _compare(folder: Path) -> str | None:
    raw = (folder / MANIFEST).read_bytes()
    try:
        manifest = json.loads(raw)
        # The manifest has no checksum of its own; being canonical, it cannot change without its meaning changing.
        canonical = encode_json(manifest) == raw
    except ValueError:
        canonical = False
    if not canonical or not isinstance(manifest, dict) or set(manifest) != {"format", "files"}:
        return f"{MANIFEST} is damaged"
    if manifest["format"] != FORMAT:
        return f"it has format {manifest['format']}, this version reads {FORMAT}"
    present = {path.name for path in folder.iterdir()} - {MANIFEST}
    if extra := sorted(present - set(manifest["files"])):
        return f"{extra[0]} is not in its manifest"
    for name, expected in manifest["files"].items():
        path = folder / name
        if path.stat().st_size != expected.get("bytes"):
            return f"{name} has {path.stat().st_size} bytes instead of {expected.get('bytes')}"
        if sha256_of(path) != expected.get("sha256"):
            return f"{name} does not match its checksum"
    return None

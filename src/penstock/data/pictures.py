"""Pictures as files and as blobs: those of data rows are decoded once, named by what they show, kept in the run's folder or in
memory. The only file that imports PIL."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.blobs import Blob
from penstock.core.errors import DataError
from penstock.core.types import Prompt
from penstock.data.blobs import Blobs

COLUMN = "image"
"""Column of a row with its picture, or a list of them: a path, the bytes of a file, or an array of ``[H, W]`` or ``[H, W, 3]``
bytes."""
KIND = "image/png"
LARGEST_SIDE = 1 << 14
SMALLEST = 96
"""Pixels that a picture of a sample has along its shorter side at least, so that people see something."""


class Pictures:
    """The pictures of a run by their blobs. Without a folder they are held in memory.

    A blob is a PNG of the decoded pixels, so the same picture has one name whatever file it came in.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.blobs = Blobs(folder) if folder is not None else None
        self._held: dict[str, bytes] = {}
        self._known: dict[bytes, Blob] = {}
        """The blob of what was given before, by its hash."""
        self._numbers: dict[int, Blob] = {}

    def add(self, value: Any, where: str, base: Path) -> Blob:
        """Keep a picture that a row (``where``) gives; paths are relative to ``base``.

        Raises:
            DataError: it is no picture that can be read.
        """
        given = _given(value, where, base)
        seen = hashlib.blake2b(given if isinstance(given, bytes) else given.tobytes(), digest_size=32)
        seen.update(b"" if isinstance(given, bytes) else str(given.shape).encode())
        if seen.digest() not in self._known:
            self._known[seen.digest()] = self._kept(_png(_decoded(given, where), where))
        return self._known[seen.digest()]

    def pixels(self, name: int) -> NDArray[np.uint8]:
        """The picture ``[H, W, 3]`` whose blob has this number. Raises DataError where it is not here."""
        return _decoded(self._content(name), f"picture {name:015x}")

    def _kept(self, content: bytes) -> Blob:
        blob = Blob.of(content, KIND)
        if self.blobs is None:
            self._held[blob.hash] = content
        else:
            self.blobs.keep(blob, content, "its row")
        self._numbers[blob.number] = blob
        return blob

    def _content(self, name: int) -> bytes:
        if self.blobs is None:
            if name not in self._numbers:
                raise DataError(f"picture {name:015x} is not in memory; nobody has read the row that it belongs to")
            return self._held[self._numbers[name].hash]
        found = list(
            self.blobs.folder.glob(f"{name:015x}*")
        )  # blobs that came from another process are known by the folder alone
        if len(found) != 1:
            raise DataError(f"picture {name:015x} is {len(found)} times in {self.blobs.folder}, not once")
        return found[0].read_bytes()


def illustrated(store: Pictures, base: Path) -> Callable[[Prompt], Prompt]:
    """What turns the pictures of a prompt's row into its blobs; the column then names them."""

    def change(prompt: Prompt) -> Prompt:
        value = prompt.columns.get(COLUMN)
        if value is None:
            return prompt
        several = isinstance(value, Sequence) and not isinstance(value, str | bytes)
        where = f"{prompt.key}"
        blobs = tuple(store.add(one, where, base) for one in (value if several else [value]))
        names = [blob.hash for blob in blobs]
        return replace(prompt, columns={**prompt.columns, COLUMN: names if several else names[0]}, blobs=blobs)

    return change


def png(picture: NDArray[np.uint8]) -> bytes:
    """A picture ``[H, W, 1 or 3]`` of a sample as a PNG; a small one is enlarged by a whole number.

    Raises:
        DataError: Pillow is not installed, or the picture has another number of channels.
    """
    image = _pillow("pictures of samples")
    if picture.ndim != 3 or picture.shape[2] not in (1, 3):
        raise DataError(f"a picture of shape {picture.shape} cannot be shown; give [height, width, 1 or 3]")
    times = -(-SMALLEST // min(picture.shape[:2]))
    larger: Any = np.repeat(np.repeat(picture, times, 0), times, 1)
    found = io.BytesIO()
    image.fromarray(larger[..., 0] if larger.shape[2] == 1 else larger).save(found, "PNG")
    return found.getvalue()


def _given(value: Any, where: str, base: Path) -> bytes | NDArray[np.uint8]:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        try:
            return (base / value).read_bytes()
        except OSError as error:
            raise DataError(f"{where}: picture {value} cannot be read: {error.strerror}") from error
    if isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim in (2, 3) and value.shape[2:] in ((), (3,)):
        return np.ascontiguousarray(value)
    what = f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
    raise DataError(f"{where}: {COLUMN} is {what}; give a path, the bytes of a picture file, or uint8 [H, W] or [H, W, 3]")


def _decoded(given: bytes | NDArray[np.uint8], where: str) -> NDArray[np.uint8]:
    if not isinstance(given, bytes):
        return np.repeat(given[:, :, None], 3, 2) if given.ndim == 2 else given
    image = _pillow(where)
    try:
        with image.open(io.BytesIO(given)) as opened:
            if max(opened.size) > LARGEST_SIDE:
                raise DataError(
                    f"{where}: a picture of {opened.size[0]} x {opened.size[1]} pixels; make it smaller than {LARGEST_SIDE}"
                )
            return np.asarray(opened.convert("RGB"), np.uint8)
    except DataError:
        raise
    except Exception as error:  # of a damaged file, each format has its own
        raise DataError(f"{where}: the picture cannot be decoded: {type(error).__name__}: {error}") from error


def _png(pixels_HWC: NDArray[np.uint8], where: str) -> bytes:
    out = io.BytesIO()
    _pillow(where).fromarray(pixels_HWC).save(out, "PNG")
    return out.getvalue()


def _pillow(where: str) -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError(f"{where}: pictures need the package pillow: pip install 'penstock[media]'") from error
    return Image

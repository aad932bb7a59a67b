"""Pictures and films as files. The only file that imports PIL."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.blobs import FILM, Film, Picture
from penstock.core.errors import DataError

KIND = "image/png"
RATE = 2.0
"""Frames a second of a film that does not say how many it has: what processors of the Qwen-VL kind take."""
PLACE = "penstock:film"
"""Name of the text in a film's file that says its frames a second and how many there are."""
TICK = 100
"""Milliseconds for which a frame of a film's file is shown, whatever its rate."""
LARGEST_SIDE = 1 << 14
SMALLEST = 96
"""Pixels that a picture of a sample has along its shorter side at least, so that people see something."""


def png(picture: NDArray[np.uint8]) -> bytes:
    """A picture ``[H, W, 1 or 3]`` of a sample as a PNG; a small one is enlarged by a whole number.

    Raises:
        DataError: Pillow is not installed, or the picture has another number of channels.
    """
    if picture.ndim != 3 or picture.shape[2] not in (1, 3):
        raise DataError(f"a picture of shape {picture.shape} cannot be shown; give [height, width, 1 or 3]")
    times = -(-SMALLEST // min(picture.shape[:2]))
    return file_of(np.repeat(np.repeat(picture, times, 0), times, 1), "pictures of samples")


def given_picture(value: Any, where: str, base: Path) -> bytes | NDArray[np.uint8]:
    """What a row (``where``) gives for a picture: the bytes of a file, or an array. Raises DataError for anything else."""
    if isinstance(value, bytes | str):
        return content_of(value, where, base)
    if _of_bytes(value, 2):
        return np.ascontiguousarray(value)
    what = f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
    raise DataError(f"{where}: image is {what}; give a path, the bytes of a picture file, or uint8 [H, W] or [H, W, 3]")


def content_of(value: bytes | str, where: str, base: Path) -> bytes:
    """The bytes of a file, or those that are given. Raises DataError where it cannot be read."""
    try:
        return value if isinstance(value, bytes) else (base / value).read_bytes()
    except (OSError, ValueError) as error:  # ValueError of a path that can be none
        why = error.strerror if isinstance(error, OSError) else error
        raise DataError(f"{where}: {value!r:.200} cannot be read: {why}") from error


def _of_bytes(value: Any, axes: int) -> bool:
    """Whether it is an array of bytes of so many axes, with or without one of three colours, that is not empty."""
    fits = isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.size > 0
    return fits and value.ndim in (axes, axes + 1) and value.shape[axes:] in ((), (3,))


def picture_of(given: bytes | NDArray[np.uint8], where: str, pixels: int = LARGEST_SIDE**2) -> Picture:
    """The pixels of a file or array. Raises DataError where they cannot be had, or are more than ``pixels``."""
    if not isinstance(given, bytes):
        return np.repeat(given[:, :, None], 3, 2) if given.ndim == 2 else given
    image = _pillow(where)
    try:
        with image.open(io.BytesIO(given)) as opened:
            if max(opened.size) > LARGEST_SIDE or opened.size[0] * opened.size[1] > pixels:
                raise DataError(
                    f"{where}: a picture of {opened.size[0]} x {opened.size[1]} pixels; make it smaller, at most {pixels}"
                )
            if opened.format in ("GIF", "PNG", "WEBP") and getattr(opened, "n_frames", 1) > 1:
                raise DataError(
                    f"{where}: a picture of {opened.n_frames} frames; give one frame, or a film in the column video"
                )
            return np.asarray(opened.convert("RGB"), np.uint8)
    except DataError:
        raise
    except Exception as error:  # of a damaged file, each format has its own
        raise DataError(f"{where}: the picture cannot be decoded: {type(error).__name__}: {error}") from error


def file_of(pixels_HWC: Picture, where: str, kind: str = "PNG", **options: Any) -> bytes:
    """A picture of 1 or 3 channels as a file of a kind that Pillow writes, with its options."""
    out, pixels = io.BytesIO(), pixels_HWC[..., 0] if pixels_HWC.shape[2] == 1 else pixels_HWC
    _pillow(where).fromarray(pixels).save(out, kind, **options)
    return out.getvalue()


def film_of(value: Any, where: str, base: Path) -> Film:
    """The film that a row (``where``) gives: an array of bytes ``[F, H, W]`` or ``[F, H, W, 3]``, a list of pictures, a folder
    of them (in the order of their names), an animated GIF, PNG or WebP; or a tuple of one of these and its frames a second.

    Raises:
        DataError: it is no film that can be read, or its frames differ in size.
    """
    value, rate = value if isinstance(value, tuple) and len(value) == 2 else (value, None)
    number = isinstance(rate, int | float | np.number)
    if rate is not None and not (number and 0 < rate < math.inf):
        what = rate if number else f"a {type(rate).__name__} of"
        raise DataError(f"{where}: video has {what} frames a second; give a number above 0")
    rate = None if rate is None else float(rate)
    if _of_bytes(value, 3):
        return Film(np.stack([picture_of(frame, where) for frame in value]), rate or RATE)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        frames = [picture_of(given_picture(one, where, base), where) for one in value]
    elif isinstance(value, str) and (base / value).is_dir():
        files = sorted(file for file in (base / value).iterdir() if not file.name.startswith("."))
        frames = [picture_of(content_of(str(file.absolute()), where, base), f"{where}: {file.name}") for file in files]
    elif isinstance(value, str | bytes):
        found = _animated(content_of(value, where, base), where)
        return Film(found.frames_FHWC, rate or found.rate)
    else:
        what = f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
        raise DataError(
            f"{where}: video is {what}; give uint8 [F, H, W] or [F, H, W, 3], a list of pictures, a folder of them, or an "
            "animated GIF, PNG or WebP"
        )
    sizes = sorted({frame.shape[:2] for frame in frames})
    if len(sizes) != 1:
        raise DataError(f"{where}: video has frames of the sizes {sizes}; they must be equal, and one at least")
    return Film(np.stack(frames), rate or RATE)


def _animated(content: bytes, where: str) -> Film:
    """The frames of a file and how many are shown in a second, by the median. Raises DataError where it cannot be decoded."""
    image = _pillow(where)
    try:
        with image.open(io.BytesIO(content)) as opened:
            frames, shown = [], []
            for frame in range(getattr(opened, "n_frames", 1)):
                opened.seek(frame)
                frames.append(np.asarray(opened.convert("RGB"), np.uint8))
                shown.append(float(opened.info.get("duration") or 0))
    except Exception as error:  # of a damaged file, each format has its own
        raise DataError(
            f"{where}: the film cannot be decoded: {type(error).__name__}: {error}; give frames, or an animated GIF"
        ) from error
    return Film(np.stack(frames), 1000 / float(np.median(shown)) if min(shown) > 0 else RATE)


def from_film(film: Film, where: str) -> tuple[bytes, str]:
    """A film as an animated PNG that says its rate, and its media type; browsers show it frame after frame."""
    from PIL import PngImagePlugin

    image, out, said = _pillow(where), io.BytesIO(), PngImagePlugin.PngInfo()
    said.add_text(PLACE, f"{float(film.rate)!r} {len(film.frames_FHWC)}")
    first, *others = [image.fromarray(frame) for frame in film.frames_FHWC]
    first.save(out, "PNG", save_all=True, append_images=others, duration=TICK, loop=0, pnginfo=said)
    return out.getvalue(), FILM


def from_file(content: bytes, where: str) -> Picture | Film:
    """A picture of :func:`png_of` or a film of :func:`from_film`. Frames that are shown longer stand for several equal ones."""
    with _pillow(where).open(io.BytesIO(content)) as opened:
        if PLACE not in getattr(opened, "text", {}):
            return np.asarray(opened.convert("RGB"), np.uint8)
        (rate, count), frames = opened.text[PLACE].split(), list[Picture]()
        for frame in range(opened.n_frames):
            opened.seek(frame)
            times = int(count) if opened.n_frames == 1 else max(1, round(float(opened.info.get("duration") or TICK) / TICK))
            frames += [np.asarray(opened.convert("RGB"), np.uint8)] * times
        if len(frames) != int(count):
            raise DataError(f"{where}: {len(frames)} frames are in the file, and it says {count}")
        return Film(np.stack(frames), float(rate))


def _pillow(where: str) -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError(f"{where}: pictures need the package pillow: pip install 'penstock[media]'") from error
    return Image

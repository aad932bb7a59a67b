"""Sounds as files: WAV of the standard library, and arrays with their rate."""

from __future__ import annotations

import io
import wave
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.blobs import Sound
from penstock.core.errors import DataError
from penstock.data.pictures import content_of

KIND = "audio/wav"
FULL = 32767
"""The sample of a WAV of 16 bits that means 1."""
FASTEST = 1_000_000
"""Samples a second at most."""


def sound_of(value: Any, where: str, base: Path) -> Sound:
    """The sound that a row (``where``) gives: the path or the bytes of a WAV, or ``(samples, rate)``.

    Raises:
        DataError: it is no sound that can be read.
    """
    if isinstance(value, str | bytes):
        return from_wav(content_of(value, where, base), f"{where}: the sound" + (f" {value}" if isinstance(value, str) else ""))
    if isinstance(value, tuple | list) and len(value) == 2 and isinstance(value[0], np.ndarray):
        samples, rate = value
        whole = isinstance(rate, Integral) or (isinstance(rate, float) and rate.is_integer())
        if samples.dtype.kind != "f" or samples.ndim != 1 or not len(samples) or not whole or not 1 <= rate <= FASTEST:
            raise DataError(
                f"{where}: audio is {samples.dtype} {samples.shape} at {rate} samples a second; give floats [S] of one channel "
                "and a whole rate"
            )
        if not np.isfinite(samples).all() or np.abs(samples).max() > 1:
            raise DataError(f"{where}: audio has samples beyond -1 to 1; divide by the largest")
        return Sound(samples.astype(np.float32), int(rate))
    raise DataError(f"{where}: audio is {type(value).__name__}; give the path or the bytes of a WAV, or (float array, rate)")


def from_wav(content: bytes, where: str) -> Sound:
    """A WAV's samples, its channels averaged. Raises DataError where it is another format or damaged."""
    try:
        with wave.open(io.BytesIO(content)) as opened:
            channels, width, rate = opened.getnchannels(), opened.getsampwidth(), opened.getframerate()
            said, raw = opened.getnframes() * width * channels, opened.readframes(opened.getnframes())
    except (wave.Error, EOFError) as error:
        raise DataError(
            f"{where} is no WAV of plain samples ({error}); convert it: ffmpeg -i FILE -c:a pcm_s16le FILE.wav"
        ) from error
    if width not in _READ or not raw or len(raw) != said or not 1 <= rate <= FASTEST:
        raise DataError(
            f"{where} has {8 * width} bits a sample, {rate} samples a second and {len(raw)} of {said} bytes; use a whole "
            "WAV of 8, 16 or 32 bits"
        )
    kind, middle, full = _READ[width]
    samples: NDArray[np.float64] = (np.frombuffer(raw, kind).astype(np.float64) - middle) / full
    return Sound(samples.reshape(-1, channels).mean(1).clip(-1, 1).astype(np.float32), rate)


_READ = {1: ("u1", 128, 127), 2: ("<i2", 0, FULL), 4: ("<i4", 0, 2**31 - 1)}
"""Of the bytes of a sample: its type, what silence is, and what 1 is."""


def wav_of(sound: Sound) -> tuple[bytes, str]:
    """A sound as a WAV of 16 bits, and its media type."""
    out = io.BytesIO()
    with wave.open(out, "wb") as opened:
        opened.setnchannels(1)
        opened.setsampwidth(2)
        opened.setframerate(sound.rate)
        opened.writeframes(np.round(sound.samples_S.clip(-1, 1) * FULL).astype("<i2").tobytes())
    return out.getvalue(), KIND

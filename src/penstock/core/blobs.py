"""Images, sounds and videos by name: what refers to one carries its hash, and the bytes travel once."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import DataError

KINDS = ("image", "audio", "video")
FILM = "image/apng"
"""Media type of a film: an animated PNG, which browsers show as any picture."""
LARGEST = 1 << 28
"""Bytes of one blob: 256 MiB."""

_HASH = re.compile(r"[0-9a-f]{64}")
_KIND = re.compile(rf"({'|'.join(KINDS)})/[a-z0-9.+-]{{1,40}}")


@dataclass(frozen=True)
class Blob:
    """An image, sound or video, named by what it holds.

    ``hash`` is the BLAKE2b of its bytes (256 bits, as 64 hexadecimal digits), ``kind`` its media type (``image/png``), ``size``
    its bytes. Equal content has one name, so it is stored and sent once however many samples refer to it.

    Raises:
        DataError: no such hash, another kind of medium, or more bytes than :data:`LARGEST`.
    """

    hash: str
    kind: str
    size: int

    def __post_init__(self) -> None:
        if not _HASH.fullmatch(self.hash):
            raise DataError(f"{self.hash!r:.80} is no name of a blob: give the BLAKE2b of its bytes as 64 hexadecimal digits")
        if not _KIND.fullmatch(self.kind):
            raise DataError(f"{self.kind!r:.80} is no medium that a sample may refer to; known are {', '.join(KINDS)}/…")
        if not 0 < self.size <= LARGEST:
            raise DataError(f"blob {self.hash[:12]} has {self.size} bytes; it must have 1 to {LARGEST:,}: make it smaller")

    @property
    def medium(self) -> str:
        """Which of :data:`KINDS` it is."""
        return "video" if self.kind == FILM else self.kind.partition("/")[0]

    @property
    def number(self) -> int:
        """The name as a number of 60 bits, for columns of arrays; 0 is none."""
        return int(self.hash[:15], 16)

    @staticmethod
    def of(content: bytes, kind: str) -> Blob:
        """The name of some bytes."""
        return Blob(_hash(content), kind, len(content))

    def check(self, content: bytes | bytearray | memoryview, origin: str) -> None:
        """Raises DataError where bytes from ``origin`` are not the ones that this names."""
        if len(content) != self.size or _hash(content) != self.hash:
            raise DataError(f"{origin} gave other bytes for blob {self.hash[:12]} than its name says; they are refused")


Picture = NDArray[np.uint8]
"""Pixels ``[height, width, 3]``."""


class Film(NamedTuple):
    """Frames ``[F, height, width, 3]``, and how many there are in a second."""

    frames_FHWC: NDArray[np.uint8]
    rate: float


class Sound(NamedTuple):
    """Samples from -1 to 1 of one channel, and how many there are in a second."""

    samples_S: NDArray[np.float32]
    rate: int


Decoded = Picture | Film | Sound


def medium_of(decoded: Any) -> str:
    """Which of :data:`KINDS` decoded content is."""
    return "video" if isinstance(decoded, Film) else "audio" if isinstance(decoded, Sound) else "image"


def _hash(content: bytes | bytearray | memoryview) -> str:
    return hashlib.blake2b(content, digest_size=32).hexdigest()

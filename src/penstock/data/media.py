"""Pictures, films and sounds of rows as blobs: decoded once, named by what they show, kept in the run's folder or in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from penstock.config.media import MARKS, Media, Vision
from penstock.core.blobs import Blob, Decoded, Film
from penstock.core.errors import DataError
from penstock.core.types import Prompt
from penstock.data.blobs import Blobs
from penstock.data.pictures import KIND, file_of, film_of, from_file, from_film, given_picture, picture_of
from penstock.data.sounds import from_wav, sound_of, wav_of


class MediaStore:
    """The media of a run by their blobs. Without a folder they are held in memory.

    A blob is a PNG of the decoded pixels, an animated one of a film's frames, or a WAV of a sound's samples, so the same medium
    has one name whatever file it came in.

    Args:
        media: which frames of films are kept.
    """

    def __init__(self, folder: Path | None = None, media: Media | None = None) -> None:
        self.blobs = Blobs(folder) if folder is not None else None
        self.vision = media if isinstance(media, Vision) else Vision()
        self._held: dict[int, bytes] = {}
        """Files in memory, by the numbers of their blobs."""
        self._known: dict[bytes, Blob] = {}
        """The blob of what was given before, by its hash."""

    def add(self, value: Any, where: str, base: Path, column: str = "image") -> Blob:
        """Keep what a row (``where``) gives in one of the columns of media; paths are relative to ``base``.

        Raises:
            DataError: it is no medium of that kind that can be read.
        """
        if column == "image":
            given = given_picture(value, where, base)
            seen = given if isinstance(given, bytes) else str(given.shape).encode() + given.tobytes()
            return self._once(seen, lambda: (file_of(picture_of(given, where), where), KIND))
        if column == "video":
            film = thinned(film_of(value, where, base), self.vision, where)
            seen = repr((film.frames_FHWC.shape, film.rate)).encode() + film.frames_FHWC.tobytes()
            return self._once(seen, lambda: from_film(film, where))
        return self._kept(*wav_of(sound_of(value, where, base)))

    def _once(self, given: bytes, made: Callable[[], tuple[bytes, str]]) -> Blob:
        seen = hashlib.blake2b(given, digest_size=32).digest()
        if seen not in self._known:
            self._known[seen] = self._kept(*made())
        return self._known[seen]

    def decoded(self, name: int) -> Decoded:
        """The medium of :meth:`content`."""
        content = self.content(name)
        return from_wav(content, f"sound {name:015x}") if content[:4] == b"RIFF" else from_file(content, f"medium {name:015x}")

    def _kept(self, content: bytes, kind: str) -> Blob:
        blob = Blob.of(content, kind)
        if self.blobs is None:
            self._held[blob.number] = content
        else:
            self.blobs.keep(blob, content, "its row")
        return blob

    def content(self, name: int) -> bytes:
        """The file of the medium whose blob has this number. Raises DataError where it is not here."""
        if self.blobs is None:
            if name not in self._held:
                raise DataError(f"medium {name:015x} is not in memory; nobody has read the row that it belongs to")
            return self._held[name]
        # blobs that came from another process are known by the folder alone
        found = list(self.blobs.folder.glob(f"{name:015x}*"))
        if len(found) != 1:
            raise DataError(f"medium {name:015x} is {len(found)} times in {self.blobs.folder}, not once")
        return found[0].read_bytes()


def thinned(film: Film, vision: Vision, where: str) -> Film:
    """The frames of a film that are read: at most ``fps`` a second, and of these at most ``frames``, evenly spread over what
    they were chosen from. It is done once, here, so that engine and learner see the same.

    Raises:
        DataError: it has no frame.
    """
    count = len(film.frames_FHWC)
    if not count:
        raise DataError(f"{where}: a film without a frame")
    chosen = np.arange(count)
    if vision.fps and vision.fps < film.rate:
        spread = np.floor(np.arange(0, count, film.rate / vision.fps)).astype(int)
        chosen = np.unique(spread.clip(max=count - 1))  # rounding may step on the end
    if vision.frames and len(chosen) > vision.frames:
        chosen = chosen[np.round(np.linspace(0, len(chosen) - 1, vision.frames)).astype(int)]
    if len(chosen) == count:
        return film
    spacing = (chosen[-1] - chosen[0]) / (len(chosen) - 1) if len(chosen) > 1 else count
    return Film(film.frames_FHWC[chosen], film.rate / float(spacing))


def illustrated(store: MediaStore, base: Path) -> Callable[[Prompt], Prompt]:
    """What turns the media of a prompt's row into its blobs; the columns then name them."""

    def change(prompt: Prompt) -> Prompt:
        columns, blobs = dict(prompt.columns), list[Blob]()
        for column in MARKS:
            value = columns.get(column)
            if value is None:
                continue
            several = _several(value, column)
            try:
                kept = [store.add(one, f"{prompt.key}", base, column) for one in (value if several else [value])]
            except DataError as error:
                raise DataError(
                    f"{error} (the column {column} holds media; rename it if it is to hold something else)"
                ) from error
            names = [blob.hash for blob in kept]
            columns[column] = names if several else names[0]
            blobs += kept
        return replace(prompt, columns=columns, blobs=tuple(blobs)) if blobs else prompt

    return change


def _several(value: Any, column: str) -> bool:
    """Whether a column has a list of media. A film may itself be a list, of pictures; a sound and its rate, or a film and its
    rate, are a tuple."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes | tuple):
        return False
    if column != "video" or not value or isinstance(value[0], list | tuple):
        return True
    return isinstance(value[0], np.ndarray) and value[0].ndim == 4

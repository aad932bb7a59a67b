"""Images, sounds and videos of questions: read from files or ``data:`` URLs, known by their first bytes, written as files."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable
from pathlib import Path

from penstock.core.blobs import Blob
from penstock.core.files import replaced
from penstock.feedback.errors import FeedbackError
from penstock.feedback.records import Task
from penstock.feedback.rows import load_blob
from penstock.feedback.store import Store

LARGEST = 32 << 20
"""Bytes of one image, sound or video: more than a page should load."""
MOST = 16
"""Of a prompt or a response."""

KINDS: tuple[tuple[str, str, re.Pattern[bytes]], ...] = tuple(
    (kind, suffix, re.compile(start, re.DOTALL))
    for kind, suffix, start in (
        ("image/png", ".png", rb"\x89PNG\r\n\x1a\n"),
        ("image/jpeg", ".jpg", rb"\xff\xd8\xff"),
        ("image/gif", ".gif", rb"GIF8[79]a"),
        ("image/webp", ".webp", rb"RIFF.{4}WEBP"),
        ("audio/wav", ".wav", rb"RIFF.{4}WAVE"),
        ("audio/mpeg", ".mp3", rb"ID3|\xff[\xfb\xf3\xf2]"),
        ("audio/ogg", ".ogg", rb"OggS"),
        ("audio/flac", ".flac", rb"fLaC"),
        ("audio/mp4", ".m4a", rb".{4}ftypM4A"),
        ("video/mp4", ".mp4", rb".{4}ftyp"),
        ("video/webm", ".webm", rb"\x1a\x45\xdf\xa3"),
    )
)
"""What browsers show and play, by how it begins. SVG, which may hold scripts, is not among them."""
SUFFIXES = {kind: suffix for kind, suffix, _ in KINDS}


class Media:
    """What a file of questions refers to. Paths are relative to the file's folder and stay inside it.

    Only names are kept: :meth:`read` reads the bytes again when the question is stored.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self._places: dict[str, Path | bytes] = {}

    def add(self, given: object) -> Blob:
        """The blob of a path or a ``data:`` URL. Raises FeedbackError."""
        if not isinstance(given, str) or not given.strip():
            raise FeedbackError(f"media {given!r:.60}: give the path of an image, sound or video, or a data: URL")
        place = _decoded(given) if given.startswith("data:") else self._path(given)
        content = place if isinstance(place, bytes) else _content(place, given)
        what = given[:60]
        if not 0 < len(content) <= LARGEST:
            raise FeedbackError(f"media {what}: {len(content):,} bytes; give 1 to {LARGEST:,}")
        kind = next((kind for kind, _, start in KINDS if start.match(content)), None)
        if kind is None:
            raise FeedbackError(f"media {what}: no file that browsers show; use one of {', '.join(sorted(SUFFIXES.values()))}")
        blob = Blob.of(content, kind)
        self._places.setdefault(blob.hash, place)
        return blob

    def read(self, blob: Blob) -> bytes:
        """The bytes of a blob that was added."""
        place = self._places[blob.hash]
        return place if isinstance(place, bytes) else _content(place, str(place))

    def _path(self, given: str) -> Path:
        try:
            path = (self.folder / given).resolve()
        except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: links in a circle
            raise FeedbackError(f"media {given[:60]!r}: no path to a file; give one in the questions' folder") from error
        if not path.is_relative_to(self.folder):
            raise FeedbackError(f"media {given[:60]}: outside the folder of the questions; copy it there")
        return path


def _content(path: Path, given: str) -> bytes:
    try:
        if path.stat().st_size > LARGEST:
            raise FeedbackError(f"media {given[:60]}: {path.stat().st_size:,} bytes; give 1 to {LARGEST:,}")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        mend = "paths start at the folder of the questions, uploads hold data: URLs"
        raise FeedbackError(f"media {given[:60]}: {why}; {mend}") from error


def _decoded(url: str) -> bytes:
    head, comma, body = url.partition(",")
    try:
        if not comma or not head.endswith(";base64"):
            raise ValueError("it has no ;base64,")
        return base64.b64decode(body, validate=True)
    except (ValueError, binascii.Error) as error:
        raise FeedbackError(f"media {url[:40]}: no data: URL in base64 ({error})") from error


def write_media(store: Store, tasks: Iterable[Task], folder: Path) -> int:
    """Write the blobs of tasks as files of a folder, each named by its hash; gives how many.

    Raises:
        FeedbackError: the folder cannot be written.
    """
    blobs = dict.fromkeys(blob for task in tasks for blob in task.item.every_blob)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with store.database.read() as connection:
            for blob in blobs:
                with replaced(folder / file_name(blob), binary=True, private=True) as file:
                    file.write(load_blob(connection, blob))
    except OSError as error:
        raise FeedbackError(f"{folder}: cannot be written ({error.strerror})") from error
    return len(blobs)


def file_name(blob: Blob) -> str:
    """The name of a blob's file in an export."""
    return blob.hash + SUFFIXES.get(blob.kind, "." + re.sub(r"[^a-z0-9]", "", blob.kind.partition("/")[2]))

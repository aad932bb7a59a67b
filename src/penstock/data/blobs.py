"""The bytes of blobs in a folder, one file for each, named by its hash."""

from __future__ import annotations

import os
import re
import tempfile
import threading
from collections.abc import Collection, Iterable
from pathlib import Path

from penstock.core.blobs import Blob
from penstock.core.errors import DataError

ROOM = 16 << 30
"""Bytes that a folder may hold: 16 GiB."""

BLOBS = "blobs"
"""Name of the folder within a run's."""

NAME = re.compile(r"[0-9a-f]{64}")


class Blobs:
    """A folder of blobs. Several processes may use one: a file appears whole or not at all, and never changes.

    Where a new blob would not fit, those that nothing refers to go, the least recently used first.
    """

    def __init__(self, folder: Path, room: int = ROOM) -> None:
        self.folder, self.room = folder, room
        self._lock = threading.Lock()

    def path(self, blob: Blob) -> Path:
        return self.folder / blob.hash

    def __contains__(self, blob: Blob) -> bool:
        return self.path(blob).is_file()

    def lacking(self, blobs: Iterable[Blob]) -> list[Blob]:
        """Those that are not here, each once."""
        return [blob for blob in dict.fromkeys(blobs) if blob not in self]

    def add(self, content: bytes, kind: str) -> Blob:
        """Keep some bytes; gives their name."""
        blob = Blob.of(content, kind)
        self.keep(blob, content, "its source")
        return blob

    def keep(
        self, blob: Blob, content: bytes | bytearray | memoryview, origin: str, needed: Collection[str] = frozenset()
    ) -> None:
        """Keep the bytes of a blob that came from ``origin``. ``needed`` are the hashes of blobs that must stay.

        Raises:
            DataError: they are not the bytes that the blob names, or there is no room for them next to those that must stay.
        """
        blob.check(content, origin)
        with self._lock:
            if blob in self:
                os.utime(self.path(blob))
                return
            self.folder.mkdir(parents=True, exist_ok=True)
            self._make_room(blob, needed)
            descriptor, temporary = tempfile.mkstemp(dir=self.folder, prefix=".")
            try:
                with open(descriptor, "wb") as out:
                    out.write(content)
                os.replace(temporary, self.path(blob))
            except BaseException:
                os.unlink(temporary)
                raise

    def read(self, blob: Blob) -> bytes:
        """The bytes of a blob. Raises DataError where they are not here or were damaged."""
        try:
            content = self.path(blob).read_bytes()
        except OSError as error:
            raise DataError(f"blob {blob.hash[:12]} ({blob.kind}) is not in {self.folder}: {error.strerror}") from error
        blob.check(content, str(self.path(blob)))
        return content

    def _make_room(self, blob: Blob, needed: Collection[str]) -> None:
        held = [(entry.stat(), entry) for entry in self.folder.iterdir() if NAME.fullmatch(entry.name)]
        over = sum(status.st_size for status, _ in held) + blob.size - self.room
        for status, entry in sorted(held, key=lambda one: one[0].st_mtime):
            if over <= 0:
                return
            if entry.name not in needed:
                entry.unlink(missing_ok=True)
                over -= status.st_size
        if over > 0:
            raise DataError(f"{self.folder} has no room for blob {blob.hash[:12]}: {over:,} bytes too many are in use")

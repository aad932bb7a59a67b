"""Who may write a run: its newest attempt. Clusters start a job again, perhaps while pods of the attempt before still end.

A lock of the folder keeps two processes apart where the file system carries it between nodes. Where it does not, the fence
does: the process that began last has put its mark into ``attempt.json``, and one whose mark is gone writes no more checkpoints.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from penstock.core.errors import CheckpointError
from penstock.core.files import lock, write_json

ATTEMPT = "PENSTOCK_ATTEMPT"
"""Environment variable with the number of the attempt, from 0, where a cluster counts them (``penstock deploy`` sets it)."""
LOCK_WAIT = 600.0
"""Seconds that an attempt waits for the end of the one before, which may still save."""
ASKING = 0.5
"""Seconds between two looks at a lock."""


def locked(handle: TextIO | BinaryIO) -> bool:
    """Lock an open file; gives whether that worked. At once, or in a cluster after up to :data:`LOCK_WAIT` seconds."""
    deadline = time.monotonic() + (LOCK_WAIT if ATTEMPT in os.environ else 0.0)
    while not lock(handle.fileno()):
        if time.monotonic() >= deadline:
            return False
        time.sleep(ASKING)
    return True


@dataclass(frozen=True)
class Fence:
    """The right of one process to write a run."""

    file: Path
    mark: dict[str, Any]

    @classmethod
    def taken(cls, file: Path) -> Fence:
        """Put this process's mark into the file; from now on no earlier process passes :meth:`check`.

        Raises:
            CheckpointError: a later attempt has begun, or the number of this one is none.
        """
        text = os.environ.get(ATTEMPT, "0")
        if not text.isdecimal():
            raise CheckpointError(f"{ATTEMPT}={text} is no number; set it to the attempt's, counted from 0")
        fence = cls(file, {"attempt": int(text), "mark": secrets.token_hex(8)})
        fence._refuse(later=fence._read().get("attempt", 0) > int(text))
        write_json(file, fence.mark)
        return fence

    def check(self) -> None:
        """Raises CheckpointError where another process has taken the run."""
        self._refuse(later=self._read() != self.mark)

    def _read(self) -> dict[str, Any]:
        try:
            found = json.loads(self.file.read_bytes())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _refuse(self, later: bool) -> None:
        if later:
            raise CheckpointError(
                f"{self.file.parent}: attempt {self._read().get('attempt', '?')} of this run has begun, so attempt "
                f"{self.mark['attempt']} writes no more; nothing was changed"
            )

"""What several keep on disk: logs of JSON lines, files that are replaced whole, and files that lock a folder."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Numbers of errors by which a file system says that it takes no more."""
LONGEST_LINE = 64 << 20
"""Characters of a log's line."""
LAST_WORDS = 4000
"""Bytes at the end of a log in which last words are looked for."""


def json_lines(path: Path) -> Iterator[Any]:
    """The values of a log, a line each. A line that is no JSON is passed over, since a kill may have cut it short, or a
    character, and so is one that is too long.

    Raises:
        OSError: the file cannot be read.
    """
    with open(path, encoding="utf-8", errors="replace") as lines:
        for line in iter(lambda: lines.readline(LONGEST_LINE), ""):
            with contextlib.suppress(ValueError, RecursionError):
                yield json.loads(line)


class Log(io.FileIO):
    """A file without a buffer, so that what is written at once is there at once."""

    def write(self, data: Any) -> int:
        """Write all of it: a disk that is nearly full takes a part, and says so only next time. Raises OSError."""
        left = memoryview(data)
        while left:
            left = left[super().write(left) :]
        return len(data)


def append_to(path: Path) -> Log:
    """A log to append to. A last line that a kill or a full disk cut short ends here.

    Raises:
        OSError: it cannot be opened or written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    log = Log(path, "a+")
    if log.seek(0, os.SEEK_END):
        log.seek(-1, os.SEEK_END)
        if log.read(1) != b"\n":
            log.write(b"\n")
    return log


def cause(error: OSError, folder: Path) -> str:
    """What a file system's error says, and for a full one how much is left of it, and what would do."""
    if error.errno not in FULL:
        return str(error)
    with contextlib.suppress(OSError):
        disk = shutil.disk_usage(folder)
        named = f"cannot write {error.filename}: " if error.filename else ""
        return f"{named}{error.strerror}: {disk.free:,} of {disk.total:,} bytes free; make room, or raise the quota"
    return str(error)


@contextlib.contextmanager
def replaced(path: Path, binary: bool = False, private: bool = False) -> Iterator[IO[Any]]:
    """A file that takes the place of ``path``, durably, when the block ends well (``private``: mode 0600); an error leaves it.

    Raises:
        OSError: it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.writing")  # two processes may write the same report
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600 if private else 0o666)
        with open(handle, "wb") if binary else open(handle, "w", encoding="utf-8") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):  # a name that is too long, or a disk that is gone
            temporary.unlink(missing_ok=True)
        raise


def last_words(log: Path | None) -> str:
    """The last line of a process's log that says something."""
    if log is None or not log.exists():
        return ""
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - LAST_WORDS))
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line), "")


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file whole or not at all. Raises OSError."""
    with replaced(path) as out:
        out.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def lock(handle: int, shared: bool = False) -> bool:
    """Try to lock an open file at once; gives whether it worked. The system gives the lock back when the file is closed, which
    the end of a process does however it ends.

    Raises:
        OSError: the file system knows no locks.
    """
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(handle: int) -> None:
    """Give a lock back."""
    fcntl.flock(handle, fcntl.LOCK_UN)

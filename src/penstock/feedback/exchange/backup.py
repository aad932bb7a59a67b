"""A copy of a store while it is in use."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from penstock.feedback.database import BUSY_SECONDS
from penstock.feedback.errors import FeedbackError


def backup(place: str, out: Path) -> int:
    """Copy a store of SQLite as it is at one moment, durably; gives the length of its log. Nobody waits meanwhile.

    Raises:
        FeedbackError: another database, a file that is there already or cannot be written, or a copy that is damaged.
    """
    if place.startswith("postgres"):
        raise FeedbackError(
            f"PostgreSQL makes its own: pg_dump --format=custom --file={out} 'postgresql://USER@HOST/NAME'; "
            "pg_restore brings it back"
        )
    file = Path(place.removeprefix("sqlite:///")).expanduser()
    if out.exists():
        raise FeedbackError(f"{out}: there is a file already; give a new name")
    temporary = out.with_name(f".{out.name}.writing")
    try:
        temporary.unlink(missing_ok=True)
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        with closing(sqlite3.connect(file, timeout=BUSY_SECONDS)) as source, closing(sqlite3.connect(temporary)) as copy:
            source.backup(copy)
            copy.execute("PRAGMA journal_mode=DELETE")  # one file, whole without its companions
            [said], [length] = (
                copy.execute("PRAGMA integrity_check").fetchone(),
                copy.execute("SELECT events FROM head").fetchone(),
            )
        if said != "ok":
            raise FeedbackError(f"{place}: the store is damaged ({said:.100}); restore an older backup")
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        os.replace(temporary, out)
    except (OSError, sqlite3.Error) as error:
        raise FeedbackError(f"{out}: no backup was made ({error})") from error
    finally:
        temporary.unlink(missing_ok=True)
    return int(length)

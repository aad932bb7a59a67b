"""A PostgreSQL server for one run: in a folder of its own, on a socket in it and nowhere else, thrown away at the end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote


class NoPostgreSQL(Exception):
    """No server is installed on this machine."""


def program(name: str) -> str:
    """The path of one of PostgreSQL's programs. Raises NoPostgreSQL."""
    installed = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    found = shutil.which(name) or (str(installed[-1]) if installed else None)
    if found is None:
        raise NoPostgreSQL(f"no server is installed on this machine ({name})")
    return found


@contextmanager
def private_postgresql(*settings: str) -> Iterator[tuple[str, int]]:
    """The URL of an empty database of a server that runs while the block does, and the server's process id.

    Raises:
        NoPostgreSQL: there is none.
    """
    initdb, server = program("initdb"), program("postgres")
    folder = Path(tempfile.mkdtemp(prefix="penstock-pg-"))
    # It refuses to run as root; another user does it then.
    root = os.getuid() == 0
    who: dict[str, object] = {"user": "postgres", "group": "postgres", "extra_groups": []} if root else {}
    if root:
        try:
            shutil.chown(folder, "postgres", "postgres")
        except LookupError as cause:
            folder.rmdir()
            raise NoPostgreSQL("it is installed on this machine only in part: there is no user postgres") from cause
    made = [initdb, "-D", str(folder / "data"), "-U", "penstock", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C"]
    subprocess.run(made, check=True, stdout=subprocess.DEVNULL, timeout=120, cwd=folder, **who)  # type: ignore[call-overload]
    options = [
        part for setting in ("listen_addresses=", f"unix_socket_directories={folder}", *settings) for part in ("-c", setting)
    ]
    with open(folder / "log", "w") as log:
        running = subprocess.Popen([server, "-D", str(folder / "data"), *options], stdout=log, stderr=log, cwd=folder, **who)  # type: ignore[call-overload]
    try:
        url = f"postgresql://penstock@/postgres?host={quote(str(folder))}"
        _wait(url)
        yield url, running.pid
    finally:
        running.send_signal(signal.SIGQUIT)  # "immediate shutdown": its data are thrown away
        running.wait(120)
        shutil.rmtree(folder, ignore_errors=True)


def _wait(url: str) -> None:
    """Until the server accepts connections, two minutes at most."""
    import psycopg

    deadline = time.monotonic() + 120
    while True:
        try:
            psycopg.connect(url).close()
            return
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)

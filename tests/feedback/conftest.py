"""A store's place on both databases. PostgreSQL is a real server, started once for the tests of a process."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

pytest.importorskip("sqlalchemy", reason="needs the extra feedback")


def program(name: str) -> str | None:
    installed = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return shutil.which(name) or (str(installed[-1]) if installed else None)


def unprivileged() -> dict[str, object]:
    """PostgreSQL refuses to run as root; another user does it then."""
    return {"user": "postgres", "group": "postgres", "extra_groups": []} if os.name == "posix" and os.getuid() == 0 else {}


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """The URL of a server's databases without their name: it listens on a socket in a folder of its own and nowhere else."""
    pytest.importorskip("psycopg", reason="PostgreSQL: needs the extra postgres")
    initdb, server = program("initdb"), program("postgres")
    if initdb is None or server is None:
        pytest.skip("PostgreSQL: no server is installed on this machine (initdb, postgres)")
    folder = Path(tempfile.mkdtemp(prefix="penstock-pg-"))
    who = unprivileged()
    if who:
        shutil.chown(folder, "postgres", "postgres")
    data = folder / "data"
    made = subprocess.run(
        [initdb, "-D", str(data), "-U", "penstock", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C"],
        capture_output=True, text=True, timeout=120, cwd=folder, **who,  # type: ignore[call-overload]
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    settings = ["listen_addresses=", f"unix_socket_directories={folder}", "shared_buffers=16MB", "max_connections=60"]
    options = [part for setting in settings for part in ("-c", setting)]
    with open(folder / "log", "w") as log:
        running = subprocess.Popen([server, "-D", str(data), *options], stdout=log, stderr=log, cwd=folder, **who)  # type: ignore[call-overload]
    try:
        yield f"postgresql://penstock@/NAME?host={quote(str(folder))}"
    finally:
        running.send_signal(signal.SIGQUIT)  # "immediate shutdown": its data are thrown away
        running.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


def emptied(server: str) -> str:
    """The URL of a database with nothing in it. Waits until the server accepts connections."""
    import psycopg

    url, attempts = server.replace("NAME", "postgres"), 100
    while True:
        try:
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("DROP SCHEMA public CASCADE")
                connection.execute("CREATE SCHEMA public")
            return url
        except psycopg.OperationalError:
            attempts -= 1
            if not attempts:
                raise
            time.sleep(0.1)


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a new store goes, on either database."""
    if request.param == "sqlite":
        return str(tmp_path / "feedback.db")
    return emptied(request.getfixturevalue("postgresql"))

"""``penstock ui``: every run of a folder as a live page."""

from __future__ import annotations

import contextlib
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from penstock.cli.command import Command, address, called, require
from penstock.cli.commands.feedback import opened
from penstock.core.errors import DataError, SpecError

CONNECTIONS = 256


@dataclass(kw_only=True)
class Ui(Command):
    """Show all runs of a folder as a live page.

    Curves, samples, log-prob gaps, sentinels and timeline of each run, live while it trains, and runs over each other. The
    page reads what runs write and cannot disturb them. The link that is printed holds the token of this start. Ctrl-C ends.
    """

    NEEDS = ("ui", "starlette", "uvicorn")

    runs: Positional[Annotated[Path, called("[RUNS]")]] = Path("runs")
    """The folder of your runs (default: runs)."""
    store: Annotated[str, called("STORE")] = ""
    """A feedback store (a file or postgresql://…): samples can be put to people as questions."""
    project: Annotated[str, called("NAME")] = ""
    """The store's project in which they are asked (default: the only one there is)."""
    host: Annotated[str, called("HOST")] = "127.0.0.1"
    """Address to listen on (default: 127.0.0.1). On one that other machines reach, the page shows nothing without its token."""
    behind_https: bool = False
    """A proxy in front, perhaps on this machine, speaks https: the page shows nothing without its token."""
    port: int = 8901
    """Port to listen on; 0 takes a free one."""

    def __post_init__(self) -> None:
        if self.port < 0:
            raise SpecError(f"--port {self.port}; at least 0")
        if not self.runs.is_dir():
            raise DataError(f"{self.runs}: there is no such folder; give the folder of your runs: penstock ui runs")

    def run(self) -> None:
        """Serve until a signal."""
        if self.store:
            require("penstock ui --store", "feedback", "sqlalchemy", "alembic")
        from penstock.ui.live.app import Access, app_of
        from penstock.web.crowd import Connections
        from penstock.web.guard import is_loopback
        from penstock.web.server import listen, server_of, warn_of_the_clear

        warn_of_the_clear(self.host, self.behind_https)
        local = is_loopback(self.host) and not self.behind_https
        access = Access(secrets.token_urlsafe(24), local, self.behind_https)
        with contextlib.ExitStack() as stack:
            asking = described(self.store)
            store = stack.enter_context(opened(self.store, new=True)) if self.store else None
            project = store.project(self.project).name if store else ""
            listening = stack.enter_context(listen(self.host, self.port))
            link = f"http://{address(listening)}/#token={access.token}"
            print(f"live page of {self.runs} at {link} · {asking} · Ctrl-C ends", flush=True)
            app = app_of(self.runs, access, store, project)
            server_of(app, 10.0, Connections(CONNECTIONS)).run(sockets=[listening])


def described(store: str) -> str:
    """What the first line says of the store: where questions go, and whether it is a new one."""
    if not store:
        return "to put samples to people, give --store"
    if "://" in store:
        return f"samples can be put to people in the store at {store.partition('://')[2]}"
    return f"samples can be put to people in {'the' if Path(store).expanduser().exists() else 'a new'} store {store}"

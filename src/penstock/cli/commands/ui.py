"""``penstock ui``: every run of a folder as a live page."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence
from pathlib import Path

from penstock.cli.extras import require
from penstock.cli.recipe import no_more_flags, take, wants_help
from penstock.core.errors import DataError, SpecError

HELP = """usage: penstock ui [RUNS] [--store STORE] [--host 127.0.0.1] [--port 8901]

A page of all runs in a folder (default: runs), live while they train: curves, samples, log-prob gaps, sentinels, timeline,
and runs over each other. It reads what runs write and cannot disturb them.
  --store STORE  a feedback store (a file or postgresql://…): samples can be put to people as questions
  --host HOST    other than this machine's own, and the page needs its token to show anything at all

The link that is printed holds the token of this start. Ctrl-C ends."""
CONNECTIONS = 256


def run(words: Sequence[str]) -> int:
    """Serve until a signal; gives the exit code."""
    left, own = take(words, store="", host="127.0.0.1", port=8901)
    if wants_help(left):
        print(HELP)
        return 0
    no_more_flags(left, *own, "help")
    if len(left) > 1:
        raise SpecError("ui takes one folder of runs: penstock ui runs")
    if own["port"] < 0:
        raise SpecError(f"--port {own['port']}; at least 0")
    root = Path(left[0] if left else "runs")
    if not root.is_dir():
        raise DataError(f"{root}: there is no such folder; give the folder of your runs: penstock ui runs")
    require("ui", "ui", "starlette", "uvicorn")
    if own["store"]:
        require("ui --store", "feedback", "sqlalchemy", "alembic")
    from penstock.ui.live.app import Access, app_of
    from penstock.ui.live.ask import open_store
    from penstock.web.guard import is_loopback
    from penstock.web.server import listen, server_of

    access = Access(secrets.token_urlsafe(24), local=is_loopback(own["host"]))
    with contextlib.ExitStack() as stack:
        asking = told_of(own["store"])
        store = stack.enter_context(open_store(own["store"])) if own["store"] else None
        listening = stack.enter_context(listen(own["host"], own["port"]))
        host, port = listening.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        print(f"live page of {root} at http://{shown}:{port}/#token={access.token} · {asking} · Ctrl-C ends", flush=True)
        server_of(app_of(root, access, store), head_seconds=10.0, connections=CONNECTIONS).run(sockets=[listening])
    return 0


def told_of(place: str) -> str:
    """What the first line says of the store: where questions go (without a password), and whether it is made only now."""
    if not place:
        return "to put samples to people, give --store"
    if "://" in place:
        return f"samples can be put to people in the store at {place.partition('://')[2].rpartition('@')[2]}"
    return f"samples can be put to people in {'the' if Path(place).expanduser().exists() else 'a new'} store {place}"

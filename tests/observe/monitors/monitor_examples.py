"""Events of a run for one monitor alone, servers that answer or do not, and runs that are watched."""

from __future__ import annotations

import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from penstock.config.run import Run
from penstock.core.events import Event
from penstock.observe.monitors import Monitor
from penstock.runtime.listeners import Delivery

sys.path.insert(0, str(Path(__file__).parents[2] / "cli"))
import tiny_recipes

BEGAN = 1_700_000_000.0
ALARM = {
    "sentinel": "flat groups",
    "state": "tripped",
    "severity": "warning",
    "message": "no gradient",
    "value": 1.0,
    "bound": 0.9,
}


def run_of(*monitors: str, **changes: Any) -> Run:
    """SFT of 4 steps and GRPO of 4, which is evaluated at 0, 2 and 4."""
    return replace(tiny_recipes.tiny(), monitors=monitors, **changes)


def one_stage(*monitors: str) -> Run:
    """One step of SFT."""
    return replace(tiny_recipes.one_step(), monitors=monitors)


def event(kind: str, stage: str = "grpo", step: int = 1, **fields: Any) -> Event:
    """An event of a log; a step takes two seconds."""
    return {"kind": kind, "time": BEGAN + 2.0 * step, "stage": stage, "step": step, **fields}


def metrics(step: int, stage: str = "grpo", **values: float) -> Event:
    """Numbers of a step; ``__`` stands for a slash."""
    return event("metrics", stage, step, values={name.replace("__", "/"): value for name, value in values.items()})


ROW = {
    "prompt": "ab|", "text": "line\nline", "reward": 0.25, "rewards": {"vowels": 0.25}, "length": 3, "finish": "stop",
    "error": None, "key": "rows/0/1#0", "version": 1, "held_out": False,
}  # fmt: skip

STORY = [
    event("lifecycle", step=0, what="stage started", steps=4),
    metrics(1, reward__mean=0.25, tokens__generated=40.0, loss=0.5),
    metrics(2, reward__mean=0.5, tokens__generated=60.0, loss=float("nan")),
    event("sentinel", step=2, **ALARM),
    event("sentinel", step=3, **{**ALARM, "state": "cleared"}),
    event("samples", step=2, rows=[ROW]),
    event("lifecycle", step=2, what="checkpoint", name="stage-01-grpo-step-000002", bytes=1, seconds=0.1, score=None),
]
"""The begin of GRPO in a run whose first stage had 4 steps."""


def told(monitor: Monitor, events: Iterable[Event], seconds: float = 60.0) -> list[str]:
    """What is warned of when a monitor hears some events, in a thread of its own as in a run, and the end."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        delivery = Delivery(monitor, monitor=monitor)
        for one in events:
            delivery(one)
        delivery.close(seconds)
    return [str(warning.message) for warning in said if "listener" in str(warning.message)]


def folder(tmp_path: Path, name: str = "run") -> Path:
    """The folder of a run that is under way."""
    (tmp_path / name).mkdir(exist_ok=True)
    return tmp_path / name


def free_port() -> int:
    """A port at which nothing listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


@contextmanager
def answering(answer: Callable[[str, str, bytes], tuple[int, bytes]]) -> Iterator[str]:
    """A server: ``answer(method, path, body)`` gives status and body. Gives its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, said = answer(self.command, self.path, body)
            self.send_response(status)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        do_GET = do_PUT = do_PATCH = do_POST

        def log_message(self, *given: Any) -> None:
            """Nothing is printed."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def silent() -> Iterator[str]:
    """A server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"

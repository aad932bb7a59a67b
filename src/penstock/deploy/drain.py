"""What a pod of several does before it is stopped: ``python -m penstock.deploy.drain RUN``, its ``preStop``.

Kubernetes stops all pods of a run at once, and a Ray node ends all that it runs when it gets SIGTERM. So the pod in which the
run's command is has it finish its step and save, and waits for that; the others wait for the end of that pod. Kubernetes bounds
both by the grace period, after which it kills.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

LOOKING = 1.0
"""Seconds between two looks."""
CONNECTING = 5.0
"""Seconds in which the head must take a connection."""


def drivers(run: str) -> Iterator[int]:
    """The processes of this pod that are ``penstock train … --name RUN … --or-resume``; not the shells around them."""
    wanted = {b"train", run.encode(), b"--or-resume"}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = entry.joinpath("cmdline").read_bytes().split(b"\0")
            state = entry.joinpath("stat").read_text().rpartition(") ")[2][:1]
            if wanted <= set(words) and state not in "ZX":
                yield int(entry.name)


def head_listens() -> bool:
    """Whether another pod is the head of the Ray cluster and takes connections."""
    host, _, port = os.environ.get("RAY_ADDRESS", "").rpartition(":")
    if host in ("", "127.0.0.1") or os.environ.get("JOB_COMPLETION_INDEX") == "0":
        return False
    try:
        socket.create_connection((host, int(port)), CONNECTING).close()
    except OSError:
        return False
    return True


def main(run: str) -> None:
    """Return once the run has ended."""
    found = list(drivers(run))
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    while found and set(drivers(run)) & set(found):
        time.sleep(LOOKING)
    if not found:
        while head_listens():
            time.sleep(LOOKING)


if __name__ == "__main__":
    main(sys.argv[1])

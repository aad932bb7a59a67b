"""A rank of a learner as a process: reads calls from its input, carries them out with the other ranks, answers.

Its standard input is a connection to rank 0 (:mod:`penstock.net.blocking`). It ends when that does, because then the process
that started it is gone.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import sys
import threading
import traceback
from typing import Any

from penstock.net.blocking import BlockingLink

INPUT = 0


def main() -> int:
    """Take up the rank that the first value names; gives the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all of the terminal; rank 0 says what happens
    link = BlockingLink(socket.socket(fileno=INPUT), "rank 0")
    bootstrap = link.receive()
    asked: queue.Queue[Any] = queue.Queue(maxsize=2)
    threading.Thread(target=_listen, args=(link, asked), name="listen", daemon=True).start()
    sys.path[:] = [*bootstrap["path"], *(path for path in sys.path if path not in bootstrap["path"])]

    import torch

    import penstock.algos  # noqa: F401 - registers what a spec may name
    from penstock.core.errors import PenstockError
    from penstock.train import world
    from penstock.train.device import set_up
    from penstock.train.verbs import UNANSWERED, Parts

    set_up(bootstrap["device"], bootstrap["threads"])
    rank = bootstrap["rank"]
    device = torch.device(f"cuda:{bootstrap['index']}") if bootstrap["device"] == "cuda" else torch.device("cpu")
    link.send({"value": "here"})
    meeting = (bootstrap["store"], bootstrap["seconds"], bootstrap["across"])
    parts = Parts(world.join(rank, bootstrap["size"], device, *meeting))
    link.send({"value": "ready"})
    while True:
        verb, given = asked.get()
        try:
            found = parts.perform(verb, **given)
            if verb not in UNANSWERED:
                link.send({"value": found})
        except PenstockError as error:
            link.send({"error": type(error).__name__, "text": str(error)})


def _listen(link: BlockingLink, asked: queue.Queue[Any]) -> None:
    try:
        while True:
            asked.put(link.receive())
    finally:
        os._exit(0)


if __name__ == "__main__":
    try:
        code = main()
    except BaseException as problem:
        traceback.print_exception(problem)  # its last line is what rank 0 repeats
        sys.stderr.flush()
        code = 1
    os._exit(code)

"""A rank of a learner as a process: reads verbs from its input, carries them out with the other ranks, answers.

It ends when its input ends, because then the process that started it is gone.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import traceback
from typing import Any

from penstock.train import frames

INPUT, OUTPUT, ERRORS = 0, 1, 2


def main() -> int:
    """Take up the rank that the first frame names; gives the exit code."""
    answers = os.dup(OUTPUT)
    os.dup2(ERRORS, OUTPUT)  # whatever a library prints is no answer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all of the terminal; rank 0 says what happens
    greeting = frames.read(INPUT)
    asked: queue.Queue[Any] = queue.Queue(maxsize=2)
    threading.Thread(target=_listen, args=(asked,), name="listen", daemon=True).start()
    sys.path[:] = [*greeting["path"], *(path for path in sys.path if path not in greeting["path"])]

    import torch

    import penstock.algos  # noqa: F401 - registers what a spec may name
    from penstock.core.errors import PenstockError
    from penstock.train import world
    from penstock.train.device import set_up
    from penstock.train.verbs import Parts, perform

    set_up(greeting["device"], greeting["threads"])
    rank = greeting["rank"]
    device = torch.device(f"cuda:{greeting['index']}") if greeting["device"] == "cuda" else torch.device("cpu")
    frames.write(answers, {"value": "here"})
    parts = Parts(world.join(rank, greeting["size"], device, greeting["store"], greeting["seconds"], greeting["across"]))
    frames.write(answers, {"value": "ready"})
    while True:
        verb, given = asked.get()
        try:
            frames.write(answers, {"value": perform(parts, verb, given)})
        except PenstockError as error:
            frames.write(answers, {"error": type(error).__name__, "text": str(error)})


def _listen(asked: queue.Queue[Any]) -> None:
    try:
        while True:
            asked.put(frames.read(INPUT))
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

"""A server that imports once and forks: runs, and their roles as well, so that a run of four processes starts in no time.

A role is forked where a run of a user executes Python anew; all else is as it is there: pipes, sessions, signals, deaths.
Each line of standard input is a request in JSON, each line of standard output the answer.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

ROLE = "penstock.runtime.role"
HEAVY = (
    "penstock.cli.commands.train",
    "penstock.runtime.session",
    "penstock.runtime.supervise",
    "penstock.engine.encoder_decoder",
    "penstock.ui.progress",
    "penstock.ui.report",
    "penstock.weights.channels",
    "transformers.models.qwen2.modeling_qwen2",
    "transformers.models.t5.modeling_t5",
    "torch._dynamo",
    ROLE,
)
"""What takes seconds to import."""


def arm(place: str, count: int, action: Any = signal.SIGKILL) -> None:
    """When the function at MODULE:NAME, or the hub's verb NAME at verb:NAME, is about to be called for the count-th time: send
    this process a signal, or call."""
    calls, (module, _, name) = [0], place.partition(":")

    def armed(function: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        calls[0] += module != "verb" or arguments[1] == name
        if calls[0] == count:
            calls[0] += 1
            action() if callable(action) else os.kill(os.getpid(), action)
        return function(*arguments, **more)

    wrap("penstock.stream.verbs:carried" if module == "verb" else place, armed)


def wrap(place: str, around: Callable[..., Any]) -> None:
    """Have calls of the function at MODULE:NAME go through ``around(function, *arguments)``."""
    module, _, name = place.partition(":")
    owner: Any = importlib.import_module(module)
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    function = getattr(owner, last)
    setattr(owner, last, lambda *arguments, **more: around(function, *arguments, **more))


def record_trained() -> None:
    """Have the learner write down which ordinals it trained to which version, each time that it does."""

    def recording(function: Callable[..., Any], client: Any, lease: Any) -> Any:
        with open("trained.jsonl", "a", encoding="utf-8") as out:
            out.write(json.dumps([lease.version, list(lease.ordinals)]) + "\n")
        return function(client, lease)

    wrap("penstock.stream.stream:LearnerClient.trained", recording)


TOOLS: dict[str, Any] = {"arm": arm, "wrap": wrap, "os": os, "signal": signal, "asyncio": asyncio, "json": json}


def fork_roles(in_roles: str) -> None:
    """From here on this process forks its roles; ``in_roles`` is code that runs in each first, which knows its ``name``."""
    execute = asyncio.create_subprocess_exec

    async def create(*command: str, env: dict[str, str], **more: Any) -> Any:
        if ROLE not in command:
            return await execute(*command, env=env, **more)
        name = command[-1]
        process = await execute(*command, env=env, preexec_fn=lambda: become(name, env, in_roles), **more)
        with open("roles.jsonl", "a", encoding="utf-8") as out:
            out.write(json.dumps([name, process.pid]) + "\n")
        return process

    asyncio.create_subprocess_exec = create  # type: ignore[assignment]


def become(name: str, environment: dict[str, str], in_roles: str) -> None:
    """In a process just forked: take the role up and never return."""
    os.closerange(3, 4096)  # with these goes the pipe on which the supervisor waits for the process to begin
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # as Python does when it starts
        signal.signal(ignored, signal.SIG_IGN)
    asyncio._set_running_loop(None)
    os.environ.clear()
    os.environ.update(environment)
    run_and_end(lambda: importlib.import_module(ROLE).main(), f"name = {name!r}\n{in_roles}")


def run_and_end(main: Callable[[], int], first: str) -> None:
    """Run ``first`` and ``main`` and end this process as Python does."""
    code: Any = 1
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
    try:
        exec(first, dict(TOOLS))
        code = main()
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)


def begin(asked: dict[str, Any]) -> None:
    """In a process just forked: carry a command out and never return."""
    os.setsid()
    out = os.open(asked["out"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0), os.dup2(out, 1), os.dup2(out, 2)
    os.chdir(asked["folder"])
    if asked["forking"]:
        fork_roles("if name == 'learner':\n    record_trained()\n" + asked["in_roles"])
    from penstock.cli.main import main

    run_and_end(lambda: main(asked["words"]), asked["first"])


def serve() -> None:
    for module in HEAVY:
        importlib.import_module(module)
    gc.freeze()
    TOOLS["record_trained"] = record_trained
    requests, replies = sys.stdin, os.dup(1)
    runs: list[int] = []
    for line in requests:
        asked = json.loads(line)
        if "poll" in asked:
            pid, status = os.waitpid(asked["poll"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
            if pid:
                runs.remove(pid)
        else:
            answer = os.fork()
            if answer == 0:
                begin(asked)
            runs.append(answer)
        os.write(replies, (json.dumps(answer) + "\n").encode())
    for run in runs:  # whoever asked is gone without having ended them
        os.killpg(run, signal.SIGKILL)


if __name__ == "__main__":
    serve()

"""Processes that start in no time: a Python that a test starts is forked from one that has imported everything already.

After ``warm.begin()``, ``subprocess.Popen([sys.executable, …])`` with ``-c``, ``-m`` or a file forks, and so does what builds
on it (``subprocess.run``, ``asyncio.create_subprocess_exec``), also in the processes so started.

A process begins as one that executes Python anew: its arguments, environment, streams, folder, session and signals are those
that were asked for; it is a child of whoever started it, and dies by what kills it. Other commands, other flags of Python (such
as ``-B``), an environment that imports would have read, other limits or another umask than when the first was started: these
start as ever; so does everything in a test with the fixture ``cold``, for tests of what starting itself does.

The parent of the forks is a process of one thread, started when first needed. It clones with ``CLONE_PARENT``, so that a fork
is the child of the test's process and not its own. A process that was forked forks its own children itself.
"""

from __future__ import annotations

import array
import atexit
import ctypes
import gc
import itertools
import json
import os
import platform
import resource
import runpy
import signal
import socket
import subprocess
import sys
import threading
import traceback
import types
from collections.abc import Callable
from importlib import import_module
from typing import Any

HEAVY = (
    "penstock.cli.commands.train",
    "penstock.cli.commands.serve",
    "penstock.cli.commands.sweep",
    "penstock.cli.commands.runs",
    "penstock.cli.commands.recipes",
    "penstock.cli.commands.feedback",
    "penstock.cli.commands.feedback_serve",
    "penstock.cli.commands.ui",
    "penstock.runtime.session",
    "penstock.runtime.supervise",
    "penstock.runtime.role",
    "penstock.engine.encoder_decoder",
    "penstock.feedback.service.app",
    "penstock.feedback.store",
    "penstock.serve.server",
    "penstock.ui.live.app",
    "penstock.ui.progress",
    "penstock.ui.report",
    "penstock.weights.channels",
    "penstock.train.ranks",
    "penstock.control.stage",
    "transformers.models.qwen2.modeling_qwen2",
    "transformers.models.t5.modeling_t5",
    "torch._dynamo",
    "torch.distributed.fsdp",
)
"""What takes seconds to import; what is not installed is left out."""
READ_BY_IMPORTS = (
    "OMP_NUM_THREADS",
    "PENSTOCK_SILENCE",
    "PYTHONHASHSEED",
    "PYTHONWARNINGS",
    "CUDA_VISIBLE_DEVICES",
    "HF_HUB_OFFLINE",
    "HF_HOME",
    "HOME",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "PYTHONOPTIMIZE",
    "PYTHONIOENCODING",
    "PYTHONUTF8",
    "TZ",
)
"""Variables that imports read: with others than ours, a process starts as ever."""

EXECUTE = subprocess.Popen._execute_child
NAMES = EXECUTE.__code__.co_varnames[1 : EXECUTE.__code__.co_argcount]
CLONE_PARENT = 0x8000
CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine())
HERE: dict[str, Any] = {"server": None, "cold": False, "forked": False, "in_children": None, "read": None,
                        "inherited": None}  # fmt: skip
"""The server of this process; whether processes start as ever; whether this process was forked itself; what each child runs
first (:func:`in_children`); the variables that imports had read when the server began, and what its forks inherit from it."""


def begin(at_once: bool = False) -> None:
    """Let this process and those that it starts start Python warm. Does nothing where processes cannot be cloned so.

    ``at_once``: begin to import what they need now, in another process, rather than when the first of them is wanted.
    """
    if sys.platform == "linux" and CLONE is not None:
        subprocess.Popen._execute_child = _execute  # type: ignore[method-assign]
        # What a fork of this process starts warm would be a child of this one, so that the fork could not wait for it.
        os.register_at_fork(after_in_child=lambda: HERE.update(cold=True))
        if at_once:
            HERE["server"] = Server()


def in_children(function: Callable[[list[str]], Any] | None) -> None:
    """Call ``function`` with the command's words first in each process that this one, itself forked, starts."""
    HERE["in_children"] = function


def warmable(asked: dict[str, Any]) -> bool:
    """Whether a command is one that a fork can carry out."""
    words = [os.fsdecode(word) for word in asked["args"]] if isinstance(asked["args"], list | tuple) else [""]
    form = words[1] if len(words) > 1 else ""
    python = words[0] == sys.executable and (form in ("-c", "-m") or form.endswith(".py"))
    plain = asked["preexec_fn"] is asked["executable"] is asked["uid"] is asked["gid"] is asked["gids"] is None
    plain = plain and asked["umask"] < 0 and HERE["inherited"] in (None, inherited())
    ours = HERE["read"] or read_by_imports()
    given = os.environ if asked["env"] is None else asked["env"]
    same = all(given.get(name) == value for name, value in ours.items())
    there = asked["cwd"] is None or os.path.isdir(asked["cwd"])
    return not HERE["cold"] and python and plain and same and there and not asked["shell"] and bool(asked["close_fds"])


def read_by_imports() -> dict[str, str | None]:
    return {name: os.environ.get(name) for name in READ_BY_IMPORTS}


def inherited() -> list[Any]:
    """What a process has from the one that it is forked from, and not from the one that asks for it."""
    limits = [resource.getrlimit(getattr(resource, name)) for name in sorted(dir(resource)) if name.startswith("RLIMIT_")]
    with open("/proc/self/status", encoding="ascii") as file:
        mask = next(line for line in file if line.startswith("Umask:"))
    return [mask, *limits]


def _execute(self: subprocess.Popen[Any], *arguments: Any) -> None:
    """Stands in for ``Popen._execute_child``."""
    asked = dict(zip(NAMES, arguments, strict=True))
    if not warmable(asked):
        EXECUTE(self, *arguments)
        return
    words = [os.fsdecode(word) for word in asked["args"]]
    given = os.environ if asked["env"] is None else asked["env"]
    environment = {os.fsdecode(name): os.fsdecode(value) for name, value in given.items()}
    if HERE["forked"]:
        kept = sorted(asked["pass_fds"])
        asked["preexec_fn"] = lambda: become(words, environment, kept)
        EXECUTE(self, *(asked[name] for name in NAMES))
        return
    if HERE["server"] is None:
        HERE["server"] = Server()
    streams = [number if number >= 0 else ours for number, ours in
               ((asked["p2cread"], 0), (asked["c2pwrite"], 1), (asked["errwrite"], 2))]  # fmt: skip
    folder = os.path.abspath(asked["cwd"] or ".")
    try:
        self.pid = HERE["server"].start(
            [*streams, *asked["pass_fds"]],
            words=words, environment=environment, folder=folder, kept=list(asked["pass_fds"]),
            session=bool(asked["start_new_session"]), group=asked.get("process_group", -1),
        )  # fmt: skip
        self._child_created = True  # type: ignore[attr-defined]
    finally:
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(asked[name] for name in pipes))  # type: ignore[attr-defined]


class Server:
    """The process that forks, seen from the one that asks it to. Ends with it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.socket, theirs = socket.socketpair()
        HERE["cold"], before = True, HERE["cold"]
        HERE["read"], HERE["inherited"] = read_by_imports(), inherited()
        try:
            command = [sys.executable, __file__, str(theirs.fileno())]
            paths = os.pathsep.join(filter(None, sys.path))
            self.process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], env={**os.environ, "PYTHONPATH": paths, "COLUMNS": "200"}
            )
        finally:
            HERE["cold"] = before
        theirs.close()
        atexit.register(self.socket.close)

    def start(self, files: list[int], **asked: Any) -> int:
        """Fork a process with these files; gives its id."""
        message = json.dumps(asked).encode()
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))]
        with self.lock:
            self.socket.sendmsg([len(message).to_bytes(4, "big")], rights)
            self.socket.sendall(message)
            answer = self.socket.recv(8)
        assert len(answer) == 8, "the process that forks is gone"
        return int.from_bytes(answer, "big")


def serve(number: int) -> None:
    """Import, then fork a process for each request until whoever asks is gone."""
    asking = socket.socket(fileno=number)
    HERE["read"] = read_by_imports()
    for module in HEAVY:
        try:
            import_module(module)
        except ImportError:
            continue
    import_module("transformers.conversion_mapping").get_checkpoint_conversion_mapping("qwen2")  # a table that is kept
    assert len(os.listdir("/proc/self/task")) == 1, "an import started a thread, which a fork would lack"
    gc.collect()
    gc.freeze()
    while True:
        head, rights, _, _ = asking.recvmsg(4, socket.CMSG_SPACE(64 * 4))
        if len(head) < 4:
            return
        files = array.array("i", b"".join(data[: len(data) - len(data) % 4] for _, _, data in rights)).tolist()
        size, message = int.from_bytes(head, "big"), b""
        while len(message) < size:
            message += asking.recv(size - len(message))
        ready, begun = os.pipe()
        pid = clone()
        if pid == 0:
            _begin(json.loads(message), files, begun)
        for file in (*files, begun):
            os.close(file)
        os.read(ready, 1)  # ends once the process is in its session, which whoever started it may signal
        os.close(ready)
        asking.sendall(pid.to_bytes(8, "big"))


def clone() -> int:
    """As ``os.fork``, but the new process is a child of this one's parent."""
    python, system = ctypes.pythonapi, ctypes.PyDLL(None)
    python.PyOS_BeforeFork()
    pid: int = system.syscall(CLONE, CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
    (python.PyOS_AfterFork_Parent if pid else python.PyOS_AfterFork_Child)()
    return pid


def _begin(asked: dict[str, Any], files: list[int], begun: int) -> None:
    """In a process that the server has just forked: take up streams, folder and session, then the command. Never returns."""
    if asked["session"]:
        os.setsid()
    if asked["group"] is not None and asked["group"] >= 0:
        os.setpgid(0, asked["group"])
    os.close(begun)
    high = [os.dup2(file, 500 + place, inheritable=False) for place, file in enumerate(files)]
    for place, target in enumerate([0, 1, 2, *asked["kept"]]):
        os.dup2(high[place], target)
    os.chdir(asked["folder"])
    begin()
    become(asked["words"], asked["environment"], asked["kept"])


def become(words: list[str], environment: dict[str, str], kept: list[int]) -> None:
    """In a process just forked whose streams and folder are as asked: be a Python that executes the words. Never returns."""
    edges = [2, *sorted(kept), 8192]
    for low, high in itertools.pairwise(edges):
        os.closerange(low + 1, high)  # with these goes the pipe on which Popen waits for the process to execute
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # as Python does when it starts
        signal.signal(ignored, signal.SIG_IGN)
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None:
        asyncio._set_running_loop(None)
        asyncio.set_event_loop_policy(None)
    atexit._clear()
    HERE["forked"], HERE["cold"], first = True, False, HERE["in_children"]
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # else every process of a session would draw the same
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path and path not in sys.path]
    HERE["streams"] = sys.stdin, sys.stdout, sys.stderr  # kept, since one that goes writes what its owner has not written yet
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(number, mode, closefd=False, buffering=buffering, encoding="utf-8", errors=errors)
        for number, mode, buffering, errors in ((0, "r", -1, "strict"), (1, "w", -1, "strict"), (2, "w", 1, "backslashreplace"))
    )
    _run_and_end(words, first)


def _run_and_end(words: list[str], first: Callable[[list[str]], Any] | None) -> None:
    code = 1
    try:
        if first is not None:
            first(words)
        execute(words[1:])
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if ended.code is not None and not isinstance(ended.code, int):
            print(ended.code, file=sys.stderr)
    except KeyboardInterrupt:
        traceback.print_exc()
        code = -signal.SIGINT
    except BaseException:
        traceback.print_exc()
    _end(code)


def execute(words: list[str]) -> None:
    """``-c CODE …``, ``-m MODULE …`` or ``FILE.py …``, as Python does."""
    form, *rest = words
    if form == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.path.insert(0, "")
        main = types.ModuleType("__main__")
        main.__dict__["__builtins__"] = __builtins__
        sys.modules["__main__"] = main
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    elif form == "-m":
        sys.argv = rest
        sys.path.insert(0, os.getcwd())
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path.insert(0, os.path.dirname(os.path.abspath(form)))
        runpy.run_path(form, run_name="__main__")


def _end(code: int) -> None:
    """End as Python does: threads, exit functions, streams."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except BrokenPipeError:
        code = 120
    finally:
        if code == -signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        os._exit(code & 0xFF)


if __name__ == "__main__":
    import warm  # one module, whichever process looks at it

    warm.serve(int(sys.argv[1]))

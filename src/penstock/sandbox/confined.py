"""The process that becomes the program: it gives up what it could do, then runs Python code without starting Python again."""

from __future__ import annotations

import atexit
import gc
import io
import json
import os
import resource
import signal
import sys
import threading
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.sandbox import kernel
from penstock.sandbox.program import Limits

ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
"""All of the environment of a program, but HOME and TMPDIR. One hash seed, so that a program answers alike each time."""
SLACK = 8
"""So many times its limit of processes a program may have for a moment where the kernel does not count them apart."""


@dataclass(frozen=True)
class Confinement:
    """How programs are confined: which layers, how many own users for programs (0: they keep the user), and what they may read.

    ``packages`` are added to the import path of Python code; ``preload`` is imported once for all of it.
    """

    namespaces: bool
    landlock: bool
    filtered: bool
    users: int
    readable: tuple[str, ...]
    packages: tuple[str, ...] = ()
    preload: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Confinement:
        fields: dict[str, Any] = json.loads(text)
        for name, value in fields.items():
            fields[name] = tuple(value) if isinstance(value, list) else value
        return cls(**fields)

    @property
    def own_count(self) -> bool:
        """Whether the kernel counts a program's processes apart from the user's others."""
        return self.namespaces or self.users > 0

    @property
    def plain(self) -> bool:
        """Whether nothing is confined: for trusted programs."""
        return not self.filtered


def become(confinement: Confinement, limits: Limits, user: int, parent: int, files: dict[str, bytes]) -> None:
    """Write the program's files into the current folder, then give up everything for good, in this order."""
    folder = os.getcwd()
    if user:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    os.umask(0o022)
    for name, content in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(content)
    _limit(limits, _most_processes(confinement, limits))
    if confinement.filtered:
        kernel.drop_capabilities()
    kernel.die_with_parent(signal.SIGKILL, parent)
    if confinement.landlock:
        scratch = ("/work", "/tmp", "/dev") if confinement.namespaces else (folder, "/dev/null", "/dev/zero")
        devices = ("/dev/full", "/dev/random", "/dev/urandom")
        kernel.restrict_files((*confinement.readable, *devices), scratch)
    home = "/tmp" if confinement.namespaces else folder
    os.environ.clear()
    os.environ.update(ENVIRONMENT, HOME=folder, TMPDIR=home)
    if confinement.filtered:
        kernel.filter_calls(host_files=not confinement.namespaces)


def _most_processes(confinement: Confinement, limits: Limits) -> int | None:
    """The limit of processes of the user; those of the program, where the user is the program's own. None: none is set."""
    if confinement.plain:
        return None
    if confinement.own_count:
        return limits.processes + 1
    # The user's other processes count too: this keeps a fork bomb small until the keeper, which counts its own, ends it.
    return SLACK * limits.processes + sum(map(_tasks_of_user, filter(str.isdigit, os.listdir("/proc"))))


def _tasks_of_user(pid: str) -> int:
    try:
        folder = f"/proc/{pid}/task"
        return len(os.listdir(folder)) if os.stat(folder).st_uid == os.getuid() else 0
    except OSError:
        return 0


def _limit(limits: Limits, processes: int | None) -> None:
    bounds = {
        resource.RLIMIT_AS: limits.memory_bytes, resource.RLIMIT_FSIZE: limits.file_bytes, resource.RLIMIT_NOFILE: 256,
        resource.RLIMIT_CORE: 0, resource.RLIMIT_MSGQUEUE: 0, resource.RLIMIT_MEMLOCK: 0,
    }  # fmt: skip
    if processes is not None:
        bounds[resource.RLIMIT_NPROC] = processes
    for kind, bound in bounds.items():
        most = resource.getrlimit(kind)[1]
        bound = bound if most == resource.RLIM_INFINITY else min(bound, most)
        resource.setrlimit(kind, (bound, bound))
    resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu_seconds, limits.cpu_seconds + 1))


def run_python(code: str, packages: tuple[str, ...]) -> None:
    """Run code as a main program in this process, and end the process as Python ends."""
    sys.argv = ["main.py"]
    sys.path[:] = [os.getcwd(), *[path for path in sys.path if not path.endswith("/src")], *packages]
    for name in [name for name in sys.modules if name.partition(".")[0] == "penstock"]:
        del sys.modules[name]
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        raw = io.FileIO(number, mode, closefd=False)
        buffer = io.BufferedReader(raw) if number == 0 else io.BufferedWriter(raw)
        stream = io.TextIOWrapper(buffer, "utf-8", "surrogateescape", write_through=number == 2)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    gc.enable()
    status = 0
    try:
        exec(compile(code, "main.py", "exec"), main.__dict__)
    except SystemExit as ending:
        status = _status(ending.code)
    except BaseException as error:
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next  # without this function
        sys.excepthook(type(error), error, error.__traceback__)
        status = 1
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
    except BaseException:
        status = status or 1
    os._exit(status & 0xFF)


def _status(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code
    print(code, file=sys.stderr)
    return 1

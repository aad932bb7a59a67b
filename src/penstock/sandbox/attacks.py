"""The jail's self-test: a program that tries to get out, and a victim outside that shows whether it did."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

from penstock.sandbox.program import Limits, Outcome

SECRET = "what only the owner reads"

CODE = """
import ctypes, json, os, resource, socket, subprocess, sys, time
facts = json.load(sys.stdin)
folder, pid = facts["folder"], facts["pid"]
found = []

def attempt(name, action):
    try:
        if action() is not False:
            found.append(name)
    except (OSError, ValueError, MemoryError, subprocess.SubprocessError):
        pass

def reach(kind, address, how=socket.SOCK_STREAM):
    with socket.socket(kind, how) as link:
        link.settimeout(1)
        link.connect(address)

def send_to(address):
    one, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    one.sendto(b"hello", address)

def outlive():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(60)
        os._exit(0)
    return False

libc = ctypes.CDLL(None)
import colorsys  # Python's own library is there
attempt("reads a file outside", lambda: open(folder + "/secret").read())
attempt("reads a process's environment", lambda: open(f"/proc/{pid}/environ").read())
attempt("lists files outside", lambda: os.listdir(folder))
attempt("has the environment of its parent", lambda: "PENSTOCK_SECRET" in os.environ)
attempt("writes outside", lambda: open(folder + "/secret", "a").write("x"))
attempt("makes a file outside", lambda: open(folder + "/made", "x").close())
attempt("truncates outside", lambda: os.truncate(folder + "/secret", 0))
attempt("changes a mode outside", lambda: os.chmod(folder + "/secret", 0o777))
attempt("changes times outside", lambda: os.utime(folder + "/secret"))
attempt("links a file outside", lambda: os.link(folder + "/secret", "linked"))
attempt("connects by TCP", lambda: reach(socket.AF_INET, ("127.0.0.1", facts["port"])))
attempt("has a UDP socket", lambda: reach(socket.AF_INET, ("127.0.0.1", facts["port"]), socket.SOCK_DGRAM))
attempt("connects to a path", lambda: reach(socket.AF_UNIX, folder + "/stream"))
attempt("connects to an abstract name", lambda: reach(socket.AF_UNIX, facts["abstract"]))
attempt("sends to a path", lambda: send_to(folder + "/datagram"))
attempt("signals a process outside", lambda: os.kill(pid, 0))
attempt("traces a process outside", lambda: libc.ptrace(16, pid, 0, 0) == 0)
attempt("limits a process outside", lambda: resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0)))
attempt("slows a process outside", lambda: os.setpriority(os.PRIO_PROCESS, pid, 19))
attempt("has more memory than allowed", lambda: bytearray(facts["memory"]))
attempt("mounts", lambda: libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0)
attempt("has a namespace", lambda: libc.unshare(0x10000000) == 0)
attempt("outlives", outlive)
print(json.dumps(found))
"""

FORKS = """
import os, sys, time
most, started = int(sys.stdin.read()), 0
try:
    for _ in range(most + 50):
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        started += 1
except OSError:
    pass
print(started)
"""


SECONDS = 60.0
"""Least time for an attack: a machine may be busy, and what takes long is not held for that."""


class Victim:
    """A folder with a secret, listening sockets and a process, all of this user, that no program may reach."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.secret = folder / "secret"
        self.secret.write_text(SECRET)
        self.secret.chmod(0o600)
        self._before = self.secret.stat()
        self._process = subprocess.Popen(
            ["sleep", "120"], env={"PATH": os.environ.get("PATH", os.defpath), "PENSTOCK_SECRET": SECRET}
        )
        self._abstract = f"\0penstock-{os.getpid()}-{id(self)}"
        kinds: list[tuple[int, int, Any]] = [
            (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            (socket.AF_UNIX, socket.SOCK_STREAM, str(folder / "stream")),
            (socket.AF_UNIX, socket.SOCK_STREAM, self._abstract),
            (socket.AF_UNIX, socket.SOCK_DGRAM, str(folder / "datagram")),
        ]
        self._sockets = [socket.socket(kind, how) for kind, how, _ in kinds]
        for made, (_, how, address) in zip(self._sockets, kinds, strict=True):
            made.bind(address)
            if how == socket.SOCK_STREAM:
                made.listen()

    def facts(self, limits: Limits) -> dict[str, Any]:
        """What the attacking program is given."""
        port = self._sockets[0].getsockname()[1]
        facts = {"folder": str(self.folder), "pid": self._process.pid, "port": port, "abstract": self._abstract}
        return {**facts, "memory": limits.memory_bytes}

    def broken(self, outcome: Outcome) -> list[str]:
        """What the program says it could do, and what it did to the victim."""
        try:
            found = [str(each) for each in json.loads(outcome.stdout)]
        except (ValueError, TypeError):
            last = (outcome.stderr.strip().splitlines() or ["no error message"])[-1]
            found = [f"the self-test did not finish ({outcome.stopped or f'exit {outcome.exit}'}: {last})"]
        now = self.secret.stat()
        if self.secret.read_text() != SECRET or (now.st_mode, now.st_mtime_ns) != (
            self._before.st_mode,
            self._before.st_mtime_ns,
        ):
            found.append("a file outside was changed")
        if self._process.poll() is not None:
            found.append("a process outside was killed")
        return found

    @staticmethod
    def many(outcome: Outcome, most: int) -> list[str]:
        """Whether the program that forks got further than its limit without being ended for it."""
        if outcome.stopped == "processes":
            return []
        if not outcome.stdout.strip().isdigit():
            return [f"the self-test of many processes did not finish ({outcome.stopped or f'exit {outcome.exit}'})"]
        return [] if int(outcome.stdout) <= most else ["starts more processes than allowed"]

    def __enter__(self) -> Victim:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for made in self._sockets:
            made.close()
        self._process.kill()
        self._process.wait()

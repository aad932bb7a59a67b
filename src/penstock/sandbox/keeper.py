"""Processes that keep programs. One warm Python, started with an empty environment, forks a keeper for each program; the keeper
builds the jail, starts the program in it, measures and ends it, collects its files and answers.

The trainer holds one socket of the warm process, and one of each keeper. When any of them goes, what lies below it ends.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import PurePosixPath
from typing import Any, NoReturn

from penstock.sandbox import kernel, namespaces
from penstock.sandbox.confined import Confinement, become, run_python
from penstock.sandbox.processes import children, descendants, end_descendants, free_users, numbers_of
from penstock.sandbox.program import Limits

TICK_SECONDS = 0.02
"""How often a keeper looks at what its program uses."""
_MOST_FILES = 8192


def serve(control: socket.socket, confinement: Confinement) -> None:
    """Fork a keeper for each message ``place`` with a socket that arrives; end with the other side."""
    kernel.adopt_orphans()
    for module in confinement.preload:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    keepers: set[int] = set()
    scratch = "" if confinement.namespaces else tempfile.mkdtemp(prefix="penstock-sandbox-")
    if scratch:
        os.chmod(scratch, 0o711)
    control.sendall(b"ready")
    while True:
        readable, _, _ = select.select([control], [], [], 0.1 if keepers or children(os.getpid()) else None)
        _reap(keepers)
        if not readable:
            continue
        message, fds, _, _ = socket.recv_fds(control, 16, 2)
        if not message:
            break
        mother, pid = os.getpid(), os.fork()
        if pid == 0:
            control.close()
            _keep_and_end(socket.socket(fileno=fds[0]), fds[1], int(message), confinement, scratch, mother)
        keepers.add(pid)
        for number in fds:
            os.close(number)
    _end_keepers(keepers)
    if scratch:
        _remove(scratch)


def _end_keepers(keepers: set[int]) -> None:
    for pid in keepers:
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + 5
    while keepers and time.monotonic() < deadline:
        _reap(keepers)
        time.sleep(0.01)
    end_descendants()


def _reap(keepers: set[int]) -> None:
    """Collect keepers that ended; what one that was killed left behind was adopted here, and is ended."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            keepers.discard(ended[0])
    for pid in children(os.getpid()):
        if pid not in keepers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _keep_and_end(job: socket.socket, stdin: int, place: int, confinement: Confinement, scratch: str, mother: int) -> NoReturn:
    def stop(*_: object) -> NoReturn:
        raise SystemExit

    try:
        signal.signal(signal.SIGTERM, stop)
        kernel.adopt_orphans()
        kernel.die_with_parent(signal.SIGTERM, mother)
        with job:
            _Keeper(job, stdin, place, confinement, scratch).keep()
    except BaseException:
        with contextlib.suppress(BaseException):
            end_descendants()
    finally:
        os._exit(0)


class _Keeper:
    """Keeps one program."""

    def __init__(self, job: socket.socket, stdin: int, place: int, confinement: Confinement, scratch: str) -> None:
        self.job, self.stdin, self.place, self.confinement, self.scratch = job, stdin, place, confinement, scratch
        self.user = free_users(confinement.users, os.getppid()) + place if confinement.users else 0
        self.folder = -1
        """The program's folder, once it is made."""
        self.answer: dict[str, Any] = {"stopped": ""}

    def keep(self) -> None:
        # The program's input is a file that no process of the jail has read: tests that come in it are in nobody's memory.
        with self.job.makefile("rb") as lines:
            request = json.loads(lines.readline())
        self.limits = Limits(**request["limits"])
        temporary = f"{self.scratch}/{self.place}" if self.scratch else ""
        try:
            if temporary:
                _remove(temporary)  # left where the keeper before this one was killed
                os.mkdir(temporary, 0o700)
            if temporary and self.user:
                os.chown(temporary, self.user, self.user)
            outputs = self._run(request, temporary)
            if self.answer.pop("cpu", 0) >= self.limits.cpu_seconds or self.answer["exit"] == -signal.SIGXCPU:
                self.answer["stopped"] = self.answer["stopped"] or "cpu"
            files = self._collect(request["collect"])
        finally:
            end_descendants()
            if temporary:
                _remove(temporary)
        encoded = [base64.b64encode(each).decode() for each in outputs]
        named = {name: base64.b64encode(content).decode() for name, content in files.items()}
        self.job.sendall(json.dumps({**self.answer, "outputs": encoded, "files": named}).encode() + b"\n")

    def _run(self, request: dict[str, Any], temporary: str) -> list[bytes]:
        pipes = [os.pipe() for _ in range(2)]
        ours, theirs = socket.socketpair()
        if self.confinement.namespaces:
            namespaces.own_processes(own_user=not self.confinement.users)
        self.init = os.fork()
        if self.init == 0:
            ours.close()
            reader = os.open(f"/proc/self/fd/{self.stdin}", os.O_RDONLY)
            _Init(self, theirs, [reader, pipes[0][1], pipes[1][1]], temporary).run(request)
        theirs.close()
        for _, end in pipes:
            os.close(end)
        return self._watch(ours, [end for end, _ in pipes])

    def _watch(self, status: socket.socket, pipes: list[int]) -> list[bytes]:
        """Follow the program until it ends or has to; gives what it wrote."""
        began = time.monotonic()
        outputs = {pipe: bytearray() for pipe in pipes}
        poller = select.poll()
        for number in (*pipes, status.fileno()):
            os.set_blocking(number, False)
            poller.register(number, select.POLLIN)
        poller.register(self.job, select.POLLRDHUP)
        looked = began
        while not self.answer["stopped"] and "exit" not in self.answer:
            now = time.monotonic()
            if now - began > self.limits.seconds:
                self.answer["stopped"] = "seconds"
            elif now - looked > TICK_SECONDS:
                looked = now
                self.answer["stopped"] = self._over()
            for number, event in poller.poll(1000 * min(TICK_SECONDS, max(began + self.limits.seconds - now, 0))):
                if number in outputs:
                    if not self._read(number, outputs[number]):
                        poller.unregister(number)
                elif number == status.fileno():
                    self._hear(status)
                elif event:
                    raise SystemExit  # nobody waits for the outcome any more
        self.answer["seconds"] = time.monotonic() - began
        end_descendants()
        for pipe, output in outputs.items():
            while self._read(pipe, output):
                pass
        self.answer.setdefault("exit", -signal.SIGKILL)
        return [bytes(output[: self.limits.output_bytes]) for output in outputs.values()]

    def _read(self, pipe: int, output: bytearray) -> bool:
        """Take what a pipe holds; False at its end, or where there is nothing or too much."""
        try:
            part = os.read(pipe, 1 << 16)
        except BlockingIOError:
            return False
        output += part
        if len(output) > self.limits.output_bytes:
            self.answer["stopped"] = self.answer["stopped"] or "output"
            return False
        return bool(part)

    def _hear(self, status: socket.socket) -> None:
        """What the first process of the jail says: its folder, an error of making the jail, or how the program ended."""
        message, fds, _, _ = socket.recv_fds(status, 1 << 16, 1)
        for number in fds:
            self.folder = number
        for line in message.splitlines():
            self.answer.update(json.loads(line))
        if not message:
            self.answer.setdefault("error", "the first process of the jail died")
        if "error" in self.answer:
            self.answer["exit"] = 1

    def _over(self) -> str:
        """Which limit all processes of the program together are over, or ""."""
        tasks = held = 0
        for pid in descendants():
            counts = numbers_of(pid)
            tasks += counts.get("Threads", 0)
            held += 1024 * (counts.get("RssAnon", 0) + counts.get("RssShmem", 0))
        if tasks > self.limits.processes + 1 and not self.confinement.plain:
            return "processes"
        if held > self.limits.memory_bytes:
            return "memory"
        try:
            return "files" if not self.confinement.namespaces and self._too_many_files() else ""
        except RecursionError:  # folders in folders
            return "files"

    def _too_many_files(self) -> bool:
        if self.folder < 0:
            return False
        size = count = 0
        for _, folders, names, place in os.fwalk(".", dir_fd=self.folder):
            count += len(folders) + len(names)
            for name in names:
                with contextlib.suppress(OSError):
                    size += os.stat(name, dir_fd=place, follow_symlinks=False).st_blocks * 512
            if size > self.limits.file_bytes or count > _MOST_FILES:
                return True
        return False

    def _collect(self, names: list[str]) -> dict[str, bytes]:
        found = {}
        left = self.limits.file_bytes
        for name in names:
            content = None if self.folder < 0 else read_regular(self.folder, name, left)
            if content is not None:
                found[name] = content
                left -= len(content)
        return found


class _Init:
    """The first process of a jail: makes it, starts the program in it, waits for it and for orphans, and says how it ended."""

    def __init__(self, keeper: _Keeper, status: socket.socket, streams: list[int], temporary: str) -> None:
        self.keeper, self.status, self.streams, self.temporary = keeper, status, streams, temporary

    def run(self, request: dict[str, Any]) -> NoReturn:
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._run(request)
        except BaseException as error:
            self._say(error=f"{type(error).__name__}: {error}")
        finally:
            os._exit(0)

    def _say(self, **what: object) -> None:
        self.status.sendall(json.dumps(what).encode() + b"\n")

    def _run(self, request: dict[str, Any]) -> None:
        keeper = self.keeper
        kernel.die_with_parent(signal.SIGKILL, None)  # had it died before, there would be nobody to send the folder to
        if keeper.confinement.namespaces:
            namespaces.own_files(keeper.confinement.readable, keeper.limits.file_bytes)
        else:
            os.chdir(self.temporary)
        folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        socket.send_fds(self.status, [b"{}\n"], [folder])
        os.close(folder)
        here = os.getpid()
        program = os.fork()
        if program == 0:
            self._become_program(request, here)
        for number in self.streams:
            os.close(number)
        while True:
            pid, status, used = os.wait4(-1, 0)
            if pid == program:
                break
        self._say(exit=os.waitstatus_to_exitcode(status), cpu=used.ru_utime + used.ru_stime)

    def _become_program(self, request: dict[str, Any], parent: int) -> NoReturn:
        keeper = self.keeper
        try:
            files = {name: base64.b64decode(content) for name, content in request["files"].items()}
            for number, stream in enumerate(self.streams):
                os.dup2(stream, number)
            become(keeper.confinement, keeper.limits, keeper.user, parent, files)
        except BaseException as error:
            self._say(error=f"{type(error).__name__}: {error}")
            os._exit(1)
        os.closerange(3, 4096)
        if request["argv"]:
            argv = request["argv"]
            try:
                os.execvpe(argv[0], argv, dict(os.environ))
            except OSError as error:
                print(f"{argv[0]}: {error.strerror}", file=sys.stderr, flush=True)
                os._exit(127)
        run_python(request["code"], keeper.confinement.packages)
        os._exit(0)


def _remove(folder: str) -> None:
    """Remove a folder that a program wrote, however deep it made it."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except RecursionError:
        subprocess.run(["rm", "-rf", "--", folder], check=False, timeout=60)


def read_regular(folder: int, name: str, most: int) -> bytes | None:
    """A regular file below a folder, if it is one with one name, reached over no link, and at most ``most`` bytes long."""
    *parents, last = PurePosixPath(name).parts
    opened = []
    try:
        for part in parents:
            folder = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            opened.append(folder)
        opened.append(os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder))
        facts = os.fstat(opened[-1])
        if not stat.S_ISREG(facts.st_mode) or facts.st_nlink != 1 or facts.st_size > most:
            return None
        with open(opened[-1], "rb", closefd=False) as file:
            return file.read(most)
    except OSError:
        return None
    finally:
        for number in opened:
            os.close(number)


def request_of(program: Any, limits: Limits) -> bytes:
    """A program as the line that a keeper reads."""
    files = {name: base64.b64encode(content).decode() for name, content in program.files.items()}
    fields = {"code": program.code, "argv": program.argv, "collect": program.collect, "files": files}
    return json.dumps({**fields, "limits": dataclasses.asdict(limits)}).encode() + b"\n"


def main() -> None:
    """The warm process: its arguments are the control socket's number and the confinement."""
    serve(socket.socket(fileno=int(sys.argv[1])), Confinement.parse(sys.argv[2]))

"""The jail: programs as processes of this machine, confined in the layers that a self-test has found to hold here."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.sandbox import attacks, kernel
from penstock.sandbox.confined import ENVIRONMENT, SLACK, Confinement
from penstock.sandbox.keeper import request_of
from penstock.sandbox.processes import children
from penstock.sandbox.program import Limits, Outcome, Program, SandboxError

_PRELOAD = (
    "array bisect collections copy ctypes dataclasses datetime decimal enum fractions functools heapq itertools json math "
    "operator os random re socket statistics string struct subprocess sys threading time typing unittest"
)
_SYSTEM = ("/bin", "/lib", "/lib64", "/usr", "/etc/alternatives", "/etc/ld.so.cache")
PYTHON = f"{sys.base_prefix}/bin/python{sys.version_info.major}.{sys.version_info.minor}"
"""The interpreter behind a virtual environment, if there is one: programs see the standard library and what they are given."""
_START_SECONDS, _ANSWER_SECONDS = 60.0, 30.0
_REMEDY = "use docker:IMAGE or http://HOST:PORT, or trusted if the programs are your own"


class Jail:
    """Runs each program in a process of its own, forked from one warm Python. See docs/sandbox.md for the layers.

    ``trusted``: no layer but the limits, chosen by who knows the programs. ``packages`` are folders that programs may read
    and import from.
    """

    def __init__(self, *, trusted: bool = False, packages: tuple[str, ...] = (), layers: Sequence[str] | None = None) -> None:
        self._trusted, self._packages = trusted, tuple(map(os.path.realpath, packages))
        self._layers = layers
        self.confinement: Confinement | None = None
        """What was chosen; None before the first program."""
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    async def start(self, limits: Limits, size: int) -> None:
        """Choose the strongest layers that run here and that the self-test cannot break.

        Raises:
            SandboxError: none holds; says what got through.
        """
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        if sys.platform != "linux":
            raise SandboxError(f"the jail needs Linux; {_REMEDY}")
        if not Path(f"/proc/self/task/{os.getpid()}/children").exists():  # else what outlives a program could not be found
            raise SandboxError(f"the jail needs a /proc that lists children (CONFIG_PROC_CHILDREN); {_REMEDY}")
        if self._trusted:
            await self._open(self._confine(namespaces=False, size=size))
            return
        found = []
        for namespaces in (True, False) if self._layers is None else ("namespaces" in self._layers,):
            try:
                confinement = self._confine(namespaces, size)
                await self._open(confinement)
                broken = await self._attack(confinement, limits)
            except SandboxError as error:
                broken = [str(error)]
            if not broken:
                return
            self.close()
            found.append(f"{'with' if namespaces else 'without'} namespaces: {'; '.join(broken)}")
        raise SandboxError(f"no jail of this machine holds ({' | '.join(found)}); {_REMEDY}")

    def _confine(self, namespaces: bool, size: int) -> Confinement:
        readable = [os.path.realpath(sys.base_prefix), *self._packages]
        system = [path for path in _SYSTEM if os.path.exists(path)]
        readable = [path for path in readable if not any(path.startswith(each + "/") or path == each for each in system)]
        return Confinement(
            namespaces=namespaces,
            landlock=kernel.landlock_abi() > 0 and not self._trusted,
            filtered=not self._trusted,
            users=0 if self._trusted or os.geteuid() else size,
            readable=(*system, *readable),
            packages=self._packages,
            preload=tuple(_PRELOAD.split()),
        )

    async def _open(self, confinement: Confinement) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            root = str(Path(__file__).resolve().parents[2])
            # Without the interpreter's own packages (-S): what a program is worth must not depend on what a machine has. Of
            # what is left out with them, programs know exit, quit and help.
            start = "import site, sys; site.setquit(); site.sethelper(); "
            start += f"sys.path.insert(0, {root!r}); from penstock.sandbox.keeper import main; main()"
            self._process = subprocess.Popen(
                [PYTHON, "-s", "-S", "-P", "-c", start, str(theirs.fileno()), json.dumps(dataclasses.asdict(confinement))],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd="/",
                env={**ENVIRONMENT, "TMPDIR": tempfile.gettempdir()},
                start_new_session=True,
            )  # fmt: skip
        self._control, self.confinement = ours, confinement
        ours.setblocking(False)
        try:
            ready = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(ours, 16), _START_SECONDS)
        except (TimeoutError, OSError):
            ready = b""
        if not ready:
            self.close()
            raise SandboxError(f"the jail's Python ({PYTHON}) did not start; run it to see why")

    async def run(self, program: Program, limits: Limits, place: int) -> Outcome:
        """Run one program; if this is cancelled, when the program has ended."""
        if self._control is None:
            raise SandboxError("the jail was closed")
        ours, theirs = socket.socketpair()
        with theirs, open(os.memfd_create("stdin"), "wb") as stdin:
            stdin.write(program.stdin.encode())
            stdin.flush()
            try:
                socket.send_fds(self._control, [str(place).encode()], [theirs.fileno(), stdin.fileno()])
            except OSError as error:
                ours.close()
                raise SandboxError(
                    f"the jail's warm process is gone ({error.strerror}); the next call starts it again"
                ) from None
        reader, writer = await asyncio.open_unix_connection(sock=ours, limit=2**31)
        try:
            writer.write(request_of(program, limits))
            line = await asyncio.wait_for(reader.readline(), limits.seconds + _ANSWER_SECONDS)
        except (TimeoutError, ConnectionError):
            line = b""
        except asyncio.CancelledError:
            await asyncio.shield(self._let_end(reader, writer))
            raise
        finally:
            writer.close()
        if not line.endswith(b"\n"):
            raise SandboxError("the keeper of a program died or did not answer; the program was ended with it")
        return _outcome(json.loads(line))

    async def _let_end(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Tell the keeper that nobody waits, and see that it has ended its program, so that its place is free."""
        writer.write_eof()
        with contextlib.suppress(TimeoutError, OSError):
            await asyncio.wait_for(reader.read(), 5)

    async def _attack(self, confinement: Confinement, limits: Limits) -> list[str]:
        """Run the attacks of the self-test; names what got through."""
        with tempfile.TemporaryDirectory() as folder, attacks.Victim(Path(folder)) as victim:
            limits = dataclasses.replace(limits, seconds=max(limits.seconds, attacks.SECONDS))
            program = Program(code=attacks.CODE, stdin=json.dumps(victim.facts(limits)))
            outcome = await self.run(program, limits, 0)
            broken = victim.broken(outcome)
            most = limits.processes * (1 if confinement.own_count else SLACK)
            # Each of the many processes holds some memory; it must be their number that ends them.
            roomy = dataclasses.replace(limits, memory_bytes=max(limits.memory_bytes, 2**25 * (most + 64)))
            broken += victim.many(await self.run(Program(code=attacks.FORKS, stdin=str(most)), roomy, 0), most)
            assert self._process is not None
            if any(children(each) for each in children(self._process.pid)):
                broken.append("a process outlived its program")
            return broken

    def close(self) -> None:
        """End all programs and the warm process."""
        if self._control is not None:
            self._control.close()
        process, self._process, self._control = self._process, None, None
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.send_signal(signal.SIGKILL)
            process.wait()


def _outcome(answer: dict[str, Any]) -> Outcome:
    if "error" in answer:
        hint = "; every user must be able to enter and read that folder" if "Permission denied" in answer["error"] else ""
        raise SandboxError(f"a program's jail could not be made: {answer['error']}{hint}")
    stdout, stderr = (base64.b64decode(each).decode("utf-8", "replace") for each in answer["outputs"])
    files = {name: base64.b64decode(content) for name, content in answer["files"].items()}
    return Outcome(answer["exit"], stdout, stderr, answer["stopped"], answer["seconds"], files)

"""Containers, one for each program, by the command ``docker`` or what answers to its command line; also with gVisor's runsc."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from penstock.sandbox.program import Limits, Outcome, Program, SandboxError, Stopped

_START_SECONDS = 60.0
_NO_CONTAINER = 125
"""The exit code of ``docker run`` that is not the program's."""
_START = f'cp -R /program/. /work && "$@"; code=$?; [ $code = {_NO_CONTAINER} ] && code=1; exit $code'
"""The first process of a container: no program may pass for a container that did not start."""


class Docker:
    """Runs programs in containers of ``image``, which must be there and have ``sh`` and, for code, ``python3``."""

    def __init__(self, image: str, runtime: str = "", command: Sequence[str] = ("docker",)) -> None:
        self._image, self._runtime, self._docker = image, runtime, tuple(command)
        self._ready = False

    async def start(self, limits: Limits, size: int) -> None:
        """See that the daemon answers and has the image.

        Raises:
            SandboxError: it does not; says what docker says.
        """
        if self._ready:
            return
        if shutil.which(self._docker[0]) is None:
            raise SandboxError(f"there is no command {self._docker[0]}; install Docker, or use another sandbox")
        asked = await asyncio.create_subprocess_exec(
            *self._docker, "image", "inspect", self._image, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
        )
        _, errors = await asyncio.wait_for(asked.communicate(), _START_SECONDS)
        if asked.returncode:
            raise SandboxError(f"docker cannot run {self._image}: {errors.decode(errors='replace').strip()}; docker pull it")
        self._ready = True

    def command(self, program: Program, limits: Limits, name: str, folder: str) -> list[str]:
        """The command line: no network, no capability, no new privilege, nothing to write on but memory, all of it bounded."""
        memory, space = str(limits.memory_bytes), f"rw,nosuid,nodev,size={limits.file_bytes},mode=1777"
        options = {
            "name": name, "pull": "never", "network": "none", "ipc": "none", "cap-drop": "ALL", "cpus": "1",
            "security-opt": "no-new-privileges", "user": "65534:65534", "log-driver": "none", "volume": f"{folder}:/program:ro",
            "memory": memory, "memory-swap": memory, "pids-limit": str(limits.processes + 2), "workdir": "/work",
            "hostname": "sandbox",
        }  # fmt: skip
        if self._runtime:
            options["runtime"] = self._runtime
        bounds = {"cpu": limits.cpu_seconds, "fsize": limits.file_bytes, "nofile": 256, "core": 0}
        return [
            *self._docker, "run", "--rm", "--interactive", "--read-only",
            *(f"--{option}={value}" for option, value in options.items()),
            *(f"--ulimit={kind}={bound}" for kind, bound in bounds.items()),
            f"--tmpfs=/work:exec,{space}", f"--tmpfs=/tmp:{space}", "--env=PYTHONHASHSEED=0", "--env=HOME=/work",
            self._image, "sh", "-c", _START, "sh", *(program.argv or ("python3", "main.py")),
        ]  # fmt: skip

    async def run(self, program: Program, limits: Limits, place: int) -> Outcome:
        if program.collect:
            raise SandboxError("docker cannot collect files of a container that has ended; print them, or use the jail")
        name = f"penstock-{os.getpid()}-{uuid.uuid4().hex[:12]}"
        with tempfile.TemporaryDirectory(prefix="penstock-container-") as folder:
            for path, content in {**program.files, **({"main.py": program.code.encode()} if program.code else {})}.items():
                target = Path(folder, path)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
            os.chmod(folder, 0o755)
            began = time.monotonic()
            started = await asyncio.create_subprocess_exec(
                *self.command(program, limits, name, folder), stdin=-1, stdout=-1, stderr=-1
            )
            try:
                stopped, outputs = await _follow(started, program.stdin.encode(), limits)
            finally:
                if started.returncode is None:
                    await asyncio.shield(self._end(started, name))
        if started.returncode == _NO_CONTAINER and not stopped:
            raise SandboxError(f"docker could not run the program: {outputs[1].decode(errors='replace').strip()[-400:]}")
        stdout, stderr = (each.decode(errors="replace") for each in outputs)
        code = started.returncode or 0
        ended = -9 if stopped else 128 - code if code > 128 else code  # a shell's way to say that a signal ended it
        return Outcome(ended, stdout, stderr, stopped, time.monotonic() - began)

    async def _end(self, started: asyncio.subprocess.Process, name: str) -> None:
        """Remove the container by name: killing the client alone would leave it running."""
        removed = await asyncio.create_subprocess_exec(*self._docker, "rm", "--force", name, stdout=-3, stderr=-3)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(removed.wait(), _START_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            started.kill()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(started.wait(), _START_SECONDS)

    def close(self) -> None:
        """Nothing stays between programs."""


async def _follow(started: asyncio.subprocess.Process, stdin: bytes, limits: Limits) -> tuple[Stopped, list[bytes]]:
    """Feed a process and read it to its end or to a limit. Only a limit ends it early."""
    assert started.stdin is not None
    assert started.stdout is not None
    assert started.stderr is not None
    outputs = [bytearray(), bytearray()]

    async def read(stream: asyncio.StreamReader, output: bytearray) -> None:
        while (part := await stream.read(1 << 16)) and len(output) <= limits.output_bytes:
            output += part
        if len(output) > limits.output_bytes:
            raise OverflowError

    async def feed(stream: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            stream.write(stdin)
            await stream.drain()
            stream.close()

    stopped: Stopped = ""
    try:
        async with asyncio.timeout(limits.seconds), asyncio.TaskGroup() as group:
            group.create_task(feed(started.stdin))
            group.create_task(read(started.stdout, outputs[0]))
            group.create_task(read(started.stderr, outputs[1]))
            group.create_task(started.wait())
    except TimeoutError:
        stopped = "seconds"
    except ExceptionGroup:  # of OverflowErrors
        stopped = "output"
    return stopped, [bytes(output[: limits.output_bytes]) for output in outputs]

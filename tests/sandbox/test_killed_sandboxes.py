"""Whoever of trainer, warm process and keeper is killed: no program goes on, and the caller learns that nothing is known."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.sandbox import Program, SandboxError

TRAINER = """
import asyncio, sys
from jails import running
from penstock.sandbox import Program
made = running(sys.argv[1])
print("ready", flush=True)
detached = "import os, subprocess, time\\nsubprocess.Popen(['sleep', '{0}'], start_new_session=True)\\ntime.sleep(60)"
made(detached.format(sys.argv[2]))
"""


def processes_of(mark: str) -> list[int]:
    """Processes that sleep for this long."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "cmdline").read_bytes().split(b"\0")[:2] == [b"sleep", mark.encode()]:
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def until(wanted, seconds: float = 10.0):
    """What a call gives once it is true, or at last."""
    deadline = time.monotonic() + seconds
    while not (found := wanted()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def keeper_of(program: int, warm: int) -> int:
    """The child of the warm process that this program descends from; keepers of earlier programs may not be reaped yet."""
    while (parent := int(Path(f"/proc/{program}/stat").read_text().rpartition(")")[2].split()[1])) != warm:
        program = parent
    return program


def test_a_killed_trainer_leaves_no_program_behind(jail, request):
    kind = request.node.callspec.params["jail"]
    mark = f"61.{os.getpid()}"
    path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(Path(__file__).parent)])
    trainer = subprocess.Popen(
        [sys.executable, "-c", TRAINER, kind, mark], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
    )
    assert trainer.stdout is not None
    assert trainer.stdout.readline() == b"ready\n"
    assert until(lambda: processes_of(mark))
    trainer.kill()
    trainer.wait()
    trainer.stdout.close()
    assert until(lambda: not processes_of(mark))


@pytest.mark.parametrize("killed", ["warm process", "keeper"])
def test_a_killed_process_of_the_sandbox_leaves_no_program_behind(jail, killed):
    mark = f"62.{os.getpid()}{len(killed)}"
    detached = f"import subprocess, time\nsubprocess.Popen(['sleep', '{mark}'], start_new_session=True)\ntime.sleep(60)"

    async def lost() -> None:
        task = asyncio.ensure_future(jail.sandbox.run(Program(code=detached)))
        while not (program := processes_of(mark)):
            await asyncio.sleep(0.02)
        warm = jail.sandbox._backend._process.pid
        os.kill(warm if killed == "warm process" else keeper_of(program[0], warm), signal.SIGKILL)
        with pytest.raises(SandboxError, match="died"):
            await task

    jail.await_(lost())
    assert until(lambda: not processes_of(mark))
    assert jail("print('again')").stdout == "again\n"

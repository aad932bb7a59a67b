"""What running a program in the sandbox costs, next to the alternatives: start-up and programs a second on this machine.

    python benchmarks/sandbox.py --programs 200

The program prints a number. Each way runs it ``--programs`` times with ``--at-once`` of them together, and one after another
for the start-up; the ways take turns, so that other work on the machine hits them alike. Prints JSON: of each way the
median milliseconds of one program alone and programs a second. Ways that this machine lacks are named with the reason.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import shutil
import statistics
import subprocess
import time
from collections.abc import Awaitable, Callable

from penstock.sandbox import Limits, Program, Sandbox, SandboxError
from penstock.sandbox.jail import PYTHON, Jail

CODE = "print(sum(range(1000)))"
ROUNDS = 5
Way = Callable[[], Awaitable[bool]]


def of_sandbox(sandbox: Sandbox, program: Program) -> Way:
    async def run() -> bool:
        return (await sandbox.run(program)).stdout == "499500\n"

    return run


def of_command(*command: str, limits: bool = False) -> Way:
    def bound() -> None:
        for kind, most in ((resource.RLIMIT_AS, 2**29), (resource.RLIMIT_CPU, 10), (resource.RLIMIT_NPROC, 4096)):
            resource.setrlimit(kind, (most, most))

    async def run() -> bool:
        started = await asyncio.create_subprocess_exec(
            *command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=bound if limits else None,
        )
        output, _ = await started.communicate()
        return output == b"499500\n"

    return run


def ways(at_once: int) -> dict[str, Way]:
    python = (PYTHON, "-I", "-S", "-c", CODE)
    prefix: list[str] = []
    for path in ("/usr", "/lib", "/lib64", "/bin", os.path.dirname(os.path.dirname(PYTHON))):
        prefix += ["--ro-bind-try", path, path]
    found = {
        "plain subprocess": of_command(*python),
        "limits only": of_command(*python, limits=True),
        "jail with namespaces, warm Python": of_sandbox(Sandbox(Jail(layers=["namespaces"]), size=at_once), Program(code=CODE)),
        "jail with namespaces, a new Python": of_sandbox(
            Sandbox(Jail(layers=["namespaces"]), size=at_once), Program(argv=python)
        ),
        "jail without namespaces, warm Python": of_sandbox(Sandbox(Jail(layers=[]), size=at_once), Program(code=CODE)),
        "trusted, warm Python": of_sandbox(Sandbox(Jail(trusted=True), size=at_once, limits=Limits()), Program(code=CODE)),
    }
    if shutil.which("bwrap"):
        found["bubblewrap alone"] = of_command(
            "bwrap", "--unshare-all", "--die-with-parent", "--tmpfs", "/tmp", *prefix, *python
        )
    return found


async def together(way: Way, programs: int, at_once: int) -> float:
    """Programs a second."""
    places = asyncio.Semaphore(at_once)

    async def one() -> bool:
        async with places:
            return await way()

    began = time.perf_counter()
    assert all(await asyncio.gather(*(one() for _ in range(programs))))
    return programs / (time.perf_counter() - began)


async def alone(way: Way, programs: int) -> list[float]:
    taken = []
    for _ in range(programs):
        began = time.perf_counter()
        assert await way()
        taken.append(1000 * (time.perf_counter() - began))
    return taken


async def measure(programs: int, at_once: int) -> dict[str, object]:
    found, results = ways(at_once), {}
    for name, way in list(found.items()):
        try:
            await way()  # starts what stays
        except SandboxError as error:
            results[name] = str(error)
            del found[name]
    milliseconds: dict[str, list[float]] = {name: [] for name in found}
    rates: dict[str, list[float]] = {name: [] for name in found}
    for _ in range(ROUNDS):
        for name, way in found.items():
            milliseconds[name] += await alone(way, programs // 20)
            rates[name].append(await together(way, programs // ROUNDS, at_once))
    for name in found:
        results[name] = {
            "start_ms": round(statistics.median(milliseconds[name]), 1),
            "per_second": round(statistics.median(rates[name]), 1),
        }
    return {"load": os.getloadavg()[0], "user": os.geteuid(), "programs": programs, "at_once": at_once, "ways": results}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--at-once", type=int, default=2)
    given = parser.parse_args()
    print(json.dumps(asyncio.run(measure(given.programs, given.at_once)), indent=1))


if __name__ == "__main__":
    main()

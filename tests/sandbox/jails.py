"""Sandboxes for tests: each jail that can exist for this user, and one event loop for a module."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from penstock.sandbox import Limits, Outcome, Program, Sandbox, SandboxError
from penstock.sandbox.jail import Jail

LIMITS = Limits(seconds=4.0, cpu_seconds=1, memory_bytes=256 * 2**20, output_bytes=2**16, processes=16, file_bytes=8 * 2**20)
KINDS = {"namespaces": ("namespaces",), "landlock": ()}


class Running:
    """A sandbox and the loop that it runs in, for tests that are no coroutines."""

    def __init__(self, sandbox: Sandbox, kind: str) -> None:
        self.sandbox, self.kind, self._runner = sandbox, kind, asyncio.Runner()

    def __call__(self, code: str = "", **fields: object) -> Outcome:
        return self._runner.run(self.sandbox.run(Program(code=code, **fields)))  # type: ignore[arg-type]

    def together(self, programs: list[Program]) -> list[Outcome]:
        async def all_of_them() -> list[Outcome]:
            return list(await asyncio.gather(*map(self.sandbox.run, programs)))

        return self._runner.run(all_of_them())

    def await_(self, call: object) -> object:
        return self._runner.run(call)  # type: ignore[arg-type]

    def close(self) -> None:
        self.sandbox.close()
        self._runner.close()


def running(kind: str, **fields: object) -> Running:
    """A running sandbox of this kind.

    Raises:
        SandboxError: this machine, user and interpreter cannot have it.
    """
    limits = replace(LIMITS, **fields)  # type: ignore[arg-type]
    made = Running(Sandbox(Jail(layers=KINDS[kind]), size=4, limits=limits), kind)
    try:
        made("pass")
    except SandboxError:
        made.close()
        raise
    return made

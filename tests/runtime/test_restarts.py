"""Restarts are bounded: none where the error would come again, later and later ones while the run takes no step."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from penstock.core.errors import RoleError
from penstock.runtime import supervisor
from penstock.runtime.bootstrap import REFUSED
from penstock.runtime.supervisor import Presence, Role, Supervisor


class Child:
    """A process that has ended with a code."""

    address = ""

    def __init__(self, role: Role, code: int) -> None:
        self.role, self.code = role, code

    def signal(self, number: int, alone: bool = False) -> None:
        return None

    async def wait(self) -> int:
        return self.code

    async def stop(self) -> int:
        return self.code


def deaths(
    code: int, monkeypatch: pytest.MonkeyPatch, ready: bool = True, reached: Any = lambda: 0, most: int = 30
) -> tuple[int, list[float], BaseException | None]:
    """Starts of a role that always ends with ``code``, the pauses before them, and the error that ended it."""
    pauses: list[float] = []
    starts = 0

    async def main() -> BaseException | None:
        presence, pause, here = Presence(), asyncio.sleep, asyncio.get_running_loop()

        async def spawn(role: Role) -> Child:
            nonlocal starts
            starts += 1
            if ready:
                presence.ready.set()
            if starts >= most:
                await asyncio.Event().wait()
            return Child(role, code)

        async def slept(seconds: float, *rest: Any) -> None:
            if asyncio.get_running_loop() is not here:  # of a thread that another test left
                return await pause(seconds, *rest)
            pauses.append(seconds)
            await pause(0)

        monkeypatch.setattr(supervisor.asyncio, "sleep", slept)
        made = Supervisor(lambda what, **fields: None, {"generator-0": presence}, spawn, reached)
        made.start(Role("generator-0", {}))
        for _ in range(2000):
            await pause(0)
        await made.stop()
        return made.failed.exception() if made.failed.done() else None

    error = asyncio.run(main())
    return starts, pauses[1:], error


def test_an_error_that_would_come_again_ends_the_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    starts, _, error = deaths(REFUSED, monkeypatch)
    assert starts == 1
    assert isinstance(error, RoleError)
    assert str(error).startswith("generator-0 cannot do its work (exit code 2); it last said: nothing")


def test_deaths_without_a_step_in_between_end_the_run_after_longer_and_longer_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    starts, pauses, error = deaths(-9, monkeypatch)
    assert starts == supervisor.RESTARTS
    assert "ended 12 times and the run took no step in between (killed by SIGKILL)" in str(error)
    assert pauses[:8] == [0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0]


def test_a_role_of_a_run_that_gets_on_is_started_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = iter(range(10**6))
    starts, pauses, error = deaths(-9, monkeypatch, reached=lambda: next(steps))
    assert (starts, error) == (30, None)
    assert set(pauses) == {0.0}


def test_a_role_that_never_gets_ready_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    starts, _, error = deaths(1, monkeypatch, ready=False)
    assert starts == supervisor.FAILED_STARTS
    assert "ended 3 times before it was ready (exit code 1)" in str(error)


def test_a_role_says_by_its_exit_code_that_its_error_would_come_again(tmp_path: Path) -> None:
    from penstock.core.errors import ConnectionLost, DataError, StreamError
    from penstock.runtime.role import exit_code

    assert [exit_code(error) for error in (DataError("x"), StreamError("x"), ConnectionLost("x"))] == [REFUSED, 1, 0]

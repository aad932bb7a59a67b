"""Places, waiting and failures of a sandbox, over a backend that runs nothing."""

from __future__ import annotations

import asyncio

import pytest

from penstock.sandbox import Outcome, Program, Sandbox, SandboxError

PROGRAM = Program(code="pass")


class Backend:
    """Counts what runs at once; programs end when ``open`` is set."""

    def __init__(self, error: Exception | None = None) -> None:
        self.places: set[int] = set()
        self.most = self.starts = 0
        self.error = error
        self.open = asyncio.Event()

    async def start(self, limits, size):
        self.starts += 1
        if self.error:
            raise self.error

    async def run(self, program, limits, place):
        assert place not in self.places
        self.places.add(place)
        self.most = max(self.most, len(self.places))
        try:
            await self.open.wait()
        finally:
            self.places.discard(place)
        return Outcome(0)

    def close(self):
        pass


def over(scenario, error=None, **options):
    """What a scenario over (sandbox, backend) comes to."""

    async def all_of_it():
        backend = Backend(error)
        return await scenario(Sandbox(backend, **{"size": 1, **options}), backend)

    return asyncio.run(all_of_it())


async def begun(sandbox, backend, count=1):
    """So many calls, once programs run and others had a thousand turns to begin."""
    calls = [asyncio.ensure_future(sandbox.run(PROGRAM)) for _ in range(count)]
    while not backend.places:
        await asyncio.sleep(0)
    for _ in range(1000):
        await asyncio.sleep(0)
    return calls


def test_no_more_than_its_size_run_at_once_and_all_get_a_place():
    async def scenario(sandbox, backend):
        calls = await begun(sandbox, backend, 50)
        assert backend.places == {0, 1, 2}
        backend.open.set()
        assert all(outcome.ok for outcome in await asyncio.gather(*calls))
        return backend.most, sandbox.ran

    assert over(scenario, size=3) == (3, 50)


def test_more_waiting_calls_than_allowed_are_refused_at_once():
    async def scenario(sandbox, backend):
        calls = await begun(sandbox, backend, 3)
        with pytest.raises(SandboxError, match="2 programs wait"):
            await sandbox.run(PROGRAM)
        backend.open.set()
        return len(await asyncio.gather(*calls))

    assert over(scenario, waiting=2) == 3


def test_a_place_that_does_not_come_free_is_an_error_and_loses_no_place():
    async def scenario(sandbox, backend):
        (first,) = await begun(sandbox, backend)
        with pytest.raises(SandboxError, match=r"no place came free in 0.05 s"):
            await sandbox.run(PROGRAM)
        backend.open.set()
        await first
        return (await sandbox.run(PROGRAM)).ok

    assert over(scenario, patience=0.05)


def test_a_cancelled_call_gives_its_place_back():
    async def scenario(sandbox, backend):
        (call,) = await begun(sandbox, backend)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        backend.open.set()
        return (await sandbox.run(PROGRAM)).ok

    assert over(scenario)


def test_a_backend_that_cannot_start_is_an_error_of_each_call():
    async def scenario(sandbox, backend):
        for _ in range(2):
            with pytest.raises(SandboxError, match="nothing safe"):
                await sandbox.run(PROGRAM)
        return sandbox.ran

    assert over(scenario, SandboxError("nothing safe here")) == 0


def test_a_sandbox_serves_one_loop_after_another():
    backend = Backend()
    sandbox = Sandbox(backend, size=1)
    backend.open.set()
    assert asyncio.run(sandbox.run(PROGRAM)).ok
    assert asyncio.run(sandbox.run(PROGRAM)).ok

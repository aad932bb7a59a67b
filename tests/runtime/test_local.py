"""The local runtime: the main role decides when it is over, the first error ends everyone, nobody is left behind."""

import asyncio

import pytest

from penstock.core.errors import RewardError
from penstock.runtime.local import run_roles


class Role:
    """A role that works for ever and notes how it ended."""

    def __init__(self):
        self.ended = ""

    async def run(self):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.ended = "cancelled"
            raise


async def give(value, turns=3):
    for _ in range(turns):
        await asyncio.sleep(0)
    return value


async def fail(error, turns=3):
    await give(None, turns)
    raise error


def test_the_result_of_the_main_role_is_given_and_the_others_are_cancelled():
    other = Role()
    assert asyncio.run(run_roles(give(7), other.run())) == 7
    assert other.ended == "cancelled"


def test_an_error_of_the_main_role_is_raised_as_it_is():
    other = Role()
    with pytest.raises(RewardError, match=r"^math timed out$"):
        asyncio.run(run_roles(fail(RewardError("math timed out")), other.run()))
    assert other.ended == "cancelled"


def test_an_error_of_another_role_ends_the_main_one():
    main, other = Role(), Role()
    with pytest.raises(RewardError, match=r"^math timed out$"):
        asyncio.run(run_roles(main.run(), other.run(), fail(RewardError("math timed out"))))
    assert (main.ended, other.ended) == ("cancelled", "cancelled")


def test_another_role_may_end_before_the_main_one():
    assert asyncio.run(run_roles(give(7, turns=10), give(None, turns=1))) == 7


def test_cancelling_the_whole_cancels_every_role():
    main, other = Role(), Role()

    async def cancelled():
        task = asyncio.create_task(run_roles(main.run(), other.run()))
        await give(None)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(cancelled())
    assert (main.ended, other.ended) == ("cancelled", "cancelled")


def test_a_role_has_ended_its_clean_up_before_the_whole_returns():
    cleaned = []

    async def slow_to_stop():
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            cleaned.append(True)

    asyncio.run(run_roles(give(7), slow_to_stop()))
    assert cleaned == [True]

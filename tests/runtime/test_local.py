"""The local runtime: the main role decides when it is over, the first error ends everyone, nobody is left behind."""

import asyncio

import pytest

from penstock.core.errors import RewardError
from penstock.runtime.local import alongside


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


async def together(main, *others):
    async with alongside(*others):
        return await main


def test_the_block_goes_on_and_the_others_are_cancelled():
    other = Role()
    assert asyncio.run(together(give(7), other.run())) == 7
    assert other.ended == "cancelled"


def test_an_error_of_the_block_is_raised_as_it_is():
    other = Role()
    with pytest.raises(RewardError, match=r"^math timed out$"):
        asyncio.run(together(fail(RewardError("math timed out")), other.run()))
    assert other.ended == "cancelled"


def test_an_error_of_another_ends_the_block_and_leaves_its_task_uncancelled():
    main, other = Role(), Role()

    async def failing():
        with pytest.raises(RewardError, match=r"^math timed out$"):
            await together(main.run(), other.run(), fail(RewardError("math timed out")))
        return asyncio.current_task().cancelling()

    assert asyncio.run(failing()) == 0
    assert (main.ended, other.ended) == ("cancelled", "cancelled")


def test_another_may_end_before_the_block():
    assert asyncio.run(together(give(7, turns=10), give(None, turns=1))) == 7


def test_cancelling_the_whole_cancels_everyone():
    main, other = Role(), Role()

    async def cancelled():
        task = asyncio.create_task(together(main.run(), other.run()))
        await give(None)
        task.cancel()
        found = await asyncio.gather(task, return_exceptions=True)
        return isinstance(found[0], asyncio.CancelledError)

    assert asyncio.run(cancelled())
    assert (main.ended, other.ended) == ("cancelled", "cancelled")


def test_a_clean_up_has_ended_before_the_block_is_left():
    cleaned = []

    async def slow_to_stop():
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            cleaned.append(True)

    asyncio.run(together(give(7), slow_to_stop()))
    assert cleaned == [True]

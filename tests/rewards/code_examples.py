"""A judge of code that the tests of a module share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from reward_examples import make_sample

from penstock.rewards.code import CodeReward


def judging() -> Iterator[Callable[..., float]]:
    """``judged(answer, tests, give="all", **columns)``: the score of one answer to a row."""
    made = {give: CodeReward(60.0, give=give, limit=10.0, processes=2) for give in ("all", "fraction")}
    with asyncio.Runner() as runner:

        def once(answer: str, tests: object = None, give: str = "all", **columns: object) -> float:
            return runner.run(made[give](make_sample(answer), {"tests": tests, **columns}))

        yield once
    for each in made.values():
        each.close()

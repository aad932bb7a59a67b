"""Actors in processes: the numbers of one process, a bound on lag, and nothing lost or trained twice under kills."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest
from runs import Start, Undisturbed, events


def lags(run: Path) -> set[float]:
    """The largest lag of each batch."""
    return {event["values"]["lag/max"] for event in events(run) if "lag/max" in event.get("values", {})}


SLOW = [pytest.param((option,)) for option in ("--vtrace", "--game")]
FAST = ((), ("--replay",))


@pytest.mark.parametrize("more", [*FAST, *SLOW])
def test_one_actor_without_lag_gives_the_weights_of_one_process(
    start: Start, undisturbed: Undisturbed, more: tuple[str, ...]
) -> None:
    run = start("acting", *more)
    run.assert_ends(undisturbed("acting", *more))
    assert lags(run.run) == {0.0}


def test_a_learner_that_is_killed_ends_with_the_weights_of_an_undisturbed_run(start: Start, undisturbed: Undisturbed) -> None:
    run = start("acting", "--steps", "60")
    for step in (10, 30):
        run.until_step(step)
        run.signal("learner", signal.SIGKILL)
    run.assert_ends(undisturbed("acting", "--steps", "60"), 60)


def test_kills_of_actors_and_learner_lose_no_batch_and_keep_the_lag(start: Start) -> None:
    words = ("acting", "--steps", "400", "--vtrace", "--control.max-lag", "2", "--control.actors", "3")
    run, order = start(*words), random.Random(0)
    for number in range(12):
        run.until_step(10 + 25 * number)
        run.signal(order.choice(["actor-0", "actor-1", "actor-2", "learner"]), signal.SIGKILL)
    run.assert_ends(steps=400)
    assert max(lags(run.run)) <= 2

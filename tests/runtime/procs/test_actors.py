"""Actors in processes: the numbers of one process, a bound on lag, and nothing lost or trained twice under kills."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from runs import Start, assert_each_trained_once, weights


def lags(run: Path) -> set[float]:
    """The largest lag of each batch."""
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return {event["values"]["lag/max"] for event in events if "lag/max" in event.get("values", {})}


SLOW = [pytest.param((option,), marks=pytest.mark.slow) for option in ("--vtrace", "--game")]
FAST = ((), ("--replay",))


@pytest.mark.parametrize("more", [*FAST, *SLOW])
def test_one_actor_without_lag_gives_the_weights_of_one_process(
    start: Start, undisturbed: Callable[..., Path], more: tuple[str, ...]
) -> None:
    run = start("acting", *more)
    assert run.wait(200) == 0, run.everything()
    assert weights(run.run) == weights(undisturbed("acting", *more))
    assert lags(run.run) == {0.0}
    run.assert_clean()


def test_a_learner_that_is_killed_ends_with_the_weights_of_an_undisturbed_run(
    start: Start, undisturbed: Callable[..., Path]
) -> None:
    run = start("acting", "--steps", "120")
    for step in (20, 70):
        run.until_step(step)
        run.signal("learner", signal.SIGKILL)
    assert run.wait(200) == 0, run.everything()
    assert_each_trained_once(run.folder, 120)
    assert weights(run.run) == weights(undisturbed("acting", "--steps", "120"))
    run.assert_clean()


@pytest.mark.slow
def test_kills_of_actors_and_learner_lose_no_batch_and_keep_the_lag(start: Start) -> None:
    words = ("acting", "--steps", "400", "--vtrace", "--control.max-lag", "2", "--control.actors", "3")
    run, order = start(*words), random.Random(0)
    for number in range(12):
        run.until_step(10 + 25 * number)
        run.signal(order.choice(["actor-0", "actor-1", "actor-2", "learner"]), signal.SIGKILL)
    assert run.wait(300) == 0, run.everything()
    assert_each_trained_once(run.folder, 400)
    assert max(lags(run.run)) <= 2
    run.assert_clean()

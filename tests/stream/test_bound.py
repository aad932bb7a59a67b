"""The promise of the stream, over random schedules, delays and deaths.

No token older than ``max_lag`` is ever trained on, no group is lost, none is trained twice in the history that survives
(except by ``max_uses``), a batch that is leased again is the same, no slot leaks, and it always ends.
"""

from __future__ import annotations

import asyncio
import random

from bound_model import World
from bound_tasks import Tasks
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.stream.enrichment import REFERENCE, REWARD, EnrichmentStep
from penstock.stream.rules import BATCH_SELECTORS, Rules

BATCHES = 12

LIMIT = 20_000
"""Moves of a fair schedule within which everything has to end; some hundreds are usual."""

STEPS = ((), (REWARD,), (REWARD, REFERENCE), (REWARD, REFERENCE, EnrichmentStep("value", ("tokens", "reward", "reference"))))


@st.composite
def any_rules(draw: st.DrawFn) -> Rules:
    max_lag, on_stale = draw(st.integers(0, 3)), draw(st.sampled_from(("wait", "drop", "mask")))
    choosing = on_stale != "wait"
    flat = draw(st.sampled_from((0, 0, 2, 3)))
    return Rules(
        batch=draw(st.integers(1, 4)),
        max_lag=max_lag,
        on_stale=on_stale,
        batch_selector=draw(st.sampled_from(sorted(BATCH_SELECTORS))) if choosing else "fifo",
        oversample=draw(st.integers(0, 3)) if choosing else 0,
        keep=(lambda group: group.key.ordinal % flat != 0) if flat else None,
        dynamic_sampling=1000 if flat else 0,
        max_uses=draw(st.integers(1, max_lag + 1)),
        enrichment=draw(st.sampled_from(STEPS)),
    )


class TestAnySchedule:
    """``chaos`` moves with deaths among them, then a fair schedule until so many batches are trained."""

    @staticmethod
    def run(rules: Rules, generators: int, every: int, chaos: int, seed: int) -> World:
        world = World(rules, generators, every, random.Random(seed))
        for _ in range(chaos):
            world.step(mishaps=0.04)
        left, goal = LIMIT, max(BATCHES, len(world.history.known))
        while left and not world.is_between_batches(goal):
            world.step(mishaps=0.0)
            left -= 1
        assert left, f"did not end: {world.gate.describe()}"
        world.check_end()
        return world

    arguments = given(any_rules(), st.integers(1, 3), st.integers(1, 4), st.integers(0, 800), st.integers(0, 2**32))

    @arguments
    def test_the_promise_holds(self, rules, generators, every, chaos, seed):
        assert self.run(rules, generators, every, chaos, seed).gate.stats.largest_lag <= rules.max_lag

    @arguments
    @settings(max_examples=300)
    def test_the_promise_holds_at_length(self, rules, generators, every, chaos, seed):
        assert self.run(rules, generators, every, chaos, seed).gate.stats.largest_lag <= rules.max_lag


@given(any_rules(), st.integers(1, 3), st.integers(1, 4), st.integers(0, 2**32))
def test_the_promise_holds_among_tasks_that_wait(rules, generators, every, seed):
    tasks = Tasks(rules, every, 8, random.Random(seed))
    asyncio.run(tasks.run(generators))
    assert tasks.history.version == 8
    assert tasks.stream.stats.largest_lag <= rules.max_lag
    consumed = tasks.history.consumed()
    there = consumed | set(tasks.stream.gate.entries) | set(tasks.stream.gate.filter.reasons)
    assert there == set(range(len(there)))

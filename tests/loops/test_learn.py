"""The learn and offline loops with a learner that only counts."""

import asyncio
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loop_examples import BareRows, CountingLearner, prompt_of, sample_of

from penstock.algos import SFT
from penstock.core.errors import TrainingError
from penstock.core.types import Group, Row
from penstock.loops.learn import Labeller, Plan, Trainer, learn, mean_metrics, minibatches, offline, sample_metrics
from penstock.observe.sentinels import Sentinels
from penstock.stream.rules import Rules
from penstock.stream.stream import LearnerClient, Stream, Worker


@dataclass
class NotedChannel:
    """Notes when weights of a version go out."""

    calls: list = field(default_factory=list)

    async def publish(self, version):
        self.calls.append(("publish", version))


def trainer_of(learner):
    return Trainer(learner, SFT().loss(), watcher=Sentinels())


def unit(length=3):
    tokens_T = np.arange(20, 20 + length, dtype=np.int32)
    return (Row({"tokens_T": tokens_T}, np.arange(length) >= 1),)


def groups_of(count, batch=2):
    """Groups of two samples, each drawn by the version that its batch trains."""

    def versions(ordinal):
        return np.array([-1, ordinal // batch, ordinal // batch], np.int32)

    return [
        Group(prompt_of(n), tuple(sample_of([30, 31], 1.0, place=place, version_T=versions(n)) for place in range(2)))
        for n in range(count)
    ]


async def steps_over(groups, learner, plan, *, channel=None):
    """Run the learn loop in batches of two beside a rollout that delivers ready groups; gives its steps and labeller."""
    stream = Stream(Rules(2))
    worker, learner_side = Worker(stream, "g"), LearnerClient(Rules(2), stream)
    labeller = Labeller(BareRows(), learner, None)

    async def deliver():
        while True:
            (ticket,) = await worker.admit()
            await worker.put(ticket, groups[ticket.ordinal])

    delivery = asyncio.create_task(deliver())
    steps = learn(learner_side, labeller, trainer_of(learner), channel or NotedChannel(), plan)
    try:
        return [step async for step in steps], labeller
    finally:
        delivery.cancel()


@given(st.integers(0, 30), st.integers(1, 8), st.integers(0, 3))
def test_minibatches_are_a_partition_of_like_sizes(size, parts, seed):
    units = [(place,) for place in range(size)]
    found = list(minibatches(units, parts, (seed, 1, 2)))
    assert sorted(unit for part in found for unit in part) == units
    assert len(found) == min(parts, size)
    sizes = [len(part) for part in found]
    assert not sizes or max(sizes) - min(sizes) <= 1


def test_minibatches_are_a_pure_function_of_their_seed():
    units = [(place,) for place in range(12)]
    assert list(minibatches(units, 3, (0, 5, 1))) == list(minibatches(units, 3, (0, 5, 1)))
    assert list(minibatches(units, 3, (0, 5, 1))) != list(minibatches(units, 3, (0, 5, 2)))


def test_a_single_minibatch_keeps_the_order():
    units = [(place,) for place in range(5)]
    assert list(minibatches(units, 1, (9,))) == [units]


def test_metrics_of_micro_batches_are_added_and_peaks_are_maxima():
    learner = CountingLearner(budget=16)
    metrics = trainer_of(learner).step([unit(10), unit(5), unit(5)])
    micro_batches = [call for call in learner.calls if call != "step"]
    assert len(micro_batches) == 2
    assert metrics == {"share": pytest.approx(1.0), "max/peak": 2.0, "gradient_norm": 1.0}


def test_every_micro_batch_knows_the_denominator_of_all():
    learner = CountingLearner(budget=16)
    trainer_of(learner).step([unit(10), unit(10), unit(10)])
    assert learner.calls == [("accumulate", 1, 3.0)] * 3 + ["step"]


def test_metrics_of_optimizer_steps_are_averaged_and_peaks_are_maxima():
    assert mean_metrics([{"a": 1.0, "max/b": 3.0}, {"a": 2.0, "max/b": 1.0, "c": 5.0}]) == {"a": 1.5, "max/b": 3.0, "c": 5.0}


def test_each_step_makes_the_next_version():
    steps, _ = asyncio.run(steps_over(groups_of(6), CountingLearner(), Plan(steps=3)))
    assert [(step.index, step.version) for step in steps] == [(0, 1), (1, 2), (2, 3)]


@pytest.mark.parametrize(("epochs", "minibatches", "updates"), [(1, 1, 1), (1, 2, 2), (3, 2, 6)])
def test_a_batch_is_used_in_minibatches_and_epochs(epochs, minibatches, updates):
    learner = CountingLearner()
    asyncio.run(steps_over(groups_of(2), learner, Plan(steps=1, epochs=epochs, minibatches=minibatches)))
    assert learner.calls.count("step") == updates


def test_weights_go_out_after_the_last_optimizer_step_of_a_batch():
    learner = CountingLearner()
    channel = NotedChannel(learner.calls)
    asyncio.run(steps_over(groups_of(4), learner, Plan(steps=2, minibatches=2), channel=channel))
    kinds = [call if call == "step" else call[0] for call in learner.calls]
    assert kinds == ["accumulate", "step", "accumulate", "step", "publish"] * 2
    assert [call for call in learner.calls if call[0] == "publish"] == [("publish", 1), ("publish", 2)]


async def test_slots_stay_closed_while_the_caller_holds_a_step():
    stream = Stream(Rules(1))
    learner, worker, client = CountingLearner(), Worker(stream, "g"), LearnerClient(Rules(1), stream)
    await worker.put((await worker.admit())[0], groups_of(1)[0])
    steps = learn(client, Labeller(BareRows(), learner, None), trainer_of(learner), NotedChannel(), Plan(steps=2))
    await anext(steps)
    waiting = asyncio.create_task(worker.admit())
    for _ in range(5):
        await asyncio.sleep(0)
    held = waiting.done()
    following = asyncio.create_task(anext(steps))
    ((ordinal, _, _),) = await asyncio.wait_for(waiting, 1)
    following.cancel()
    assert (held, ordinal) == (False, 1)


def test_a_batch_in_which_every_sample_failed_is_refused_with_the_reason():
    groups = [
        Group(prompt_of(0), (sample_of([30], None).failed('reward "math" timed out'), sample_of([30], None, place=1)))
        for _ in range(2)
    ]
    with pytest.raises(TrainingError, match=r'all 4 samples of a batch failed.*: reward "math" timed out'):
        asyncio.run(steps_over(groups, CountingLearner(), Plan(steps=1)))


def test_a_failed_sample_is_left_out_and_counted():
    groups = groups_of(2)
    groups[0] = Group(groups[0].prompt, (groups[0].samples[0].failed("reward broke"), groups[0].samples[1]))
    learner = CountingLearner()
    (step,), _ = asyncio.run(steps_over(groups, learner, Plan(steps=1)))
    assert learner.calls[0] == ("accumulate", 3, 3.0)
    assert step.metrics["samples/failed"] == 1.0


def test_the_controller_moves_once_a_batch():
    _, labeller = asyncio.run(steps_over(groups_of(4), CountingLearner(), Plan(steps=2, epochs=2)))
    assert labeller.coefficients["kl"] == 2.0


def test_the_state_of_the_labeller_is_its_coefficients():
    labeller = Labeller(BareRows(), CountingLearner(), None)
    labeller.coefficients = {"kl": 0.25}
    other = Labeller(BareRows(), CountingLearner(), None)
    other.load_state(labeller.state())
    assert other.coefficients["kl"] == 0.25


def test_sample_metrics_by_hand():
    samples = (
        sample_of([1, 2, 3], 1.0, extras={"rewards": {"math": 1.0, "style": None}}),
        sample_of([1], None, finish="length", error="reward broke", extras={}),
        sample_of([1, 2], 0.0, extras={"rewards": {"math": 0.0, "style": 0.5}}),
    )
    found = sample_metrics([Group(prompt_of(0), samples[:2]), Group(prompt_of(1), samples[2:])])
    assert found == {
        "length/mean": 2.0,
        "length/max": 3.0,
        "finish/stop": pytest.approx(2 / 3),
        "samples/failed": 1.0,
        "tokens/generated": 6.0,
        "reward/math": 0.5,
        "reward/style": 0.5,
    }


@pytest.mark.parametrize("start", [0, 2])
async def test_the_offline_loop_trains_the_units_of_its_ordinals(start):
    asked = []

    def unit_of(ordinal):
        asked.append(ordinal)
        return unit()

    steps = [step async for step in offline(unit_of, trainer_of(CountingLearner()), batch=3, steps=4, start=start)]
    assert asked == list(range(start * 3, 12))
    assert [(step.index, step.version) for step in steps] == [(index, index + 1) for index in range(start, 4)]
    assert steps[0].metrics["tokens/trained"] == 9.0

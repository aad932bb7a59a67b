"""Fragments as groups of the stream, batches of several actors' fragments, and workers whose weights follow a learner's."""

import asyncio

import numpy as np
import pytest
import torch
from stage_examples import an_actor

from penstock.control.environments import Environments
from penstock.control.fragments import Collected, collected_of, group_of, side_by_side
from penstock.control.stage import EnvironmentsSpec
from penstock.control.worker import ActingWorker
from penstock.core.errors import WeightError
from penstock.core.types import PromptKey, WeightUpdate
from penstock.net import wire


def actor(tmp_path, count=3, memory=0):
    return an_actor(Environments(EnvironmentsSpec(id="CartPole-v1", count=count), 7, tmp_path), 20, 1, memory=memory)


def assert_same(one, other):
    for name, value in vars(one).items():
        if name == "ends":
            assert_same(value, other.ends)
        else:
            np.testing.assert_array_equal(value, getattr(other, name), err_msg=name)
            assert value.dtype == getattr(other, name).dtype, name


@pytest.mark.parametrize("memory", [0, 5])
def test_a_fragment_comes_over_the_wire_as_it_was(tmp_path, memory):
    fragment = actor(tmp_path, memory=memory).collect(4, 9)
    frame = b"".join(bytes(part) for part in wire.pack(group_of(Collected(fragment, [(12.0, 12)], "actor-1"), 9)))
    start = wire.PRELUDE.size
    header, body = wire.lengths(frame[:start], "actor-1")
    found = collected_of(wire.unpack(frame[start : start + header], frame[start + header : start + header + body], "actor-1"))
    assert_same(fragment, found.fragment)
    assert (list(found.episodes), found.actor) == ([(12.0, 12)], "actor-1")


def test_the_gate_sees_the_versions_of_a_fragment(tmp_path):
    group = group_of(Collected(actor(tmp_path).collect(4, 9), []), 9)
    assert group.oldest_version == 4
    assert group.key == PromptKey("fragments", 0, 9)


def test_fragments_side_by_side_keep_what_follows_each_step(tmp_path):
    parts = [actor(tmp_path, count=2).collect(0, 0), actor(tmp_path, count=3).collect(0, 1)]
    whole = side_by_side(parts)
    assert whole.reward_TN.shape == (20, 5)
    for which, columns in ((0, slice(0, 2)), (1, slice(2, 5))):
        part = parts[which]
        np.testing.assert_array_equal(
            whole.following(whole.value_TN, whole.following_K)[:, columns], part.following(part.value_TN, part.following_K)
        )
        np.testing.assert_array_equal(whole.last_TN[:, columns], part.last_TN)


def worker(tmp_path):
    return ActingWorker(actor(tmp_path), 5, "actor-0")


def update(made, version, change=1.0, **more):
    tensors = [(name, tensor + change) for name, tensor in made.actor.policy.weights()]
    return WeightUpdate(version, tensors, **more)


def test_a_worker_acts_with_the_weights_that_it_was_given(tmp_path):
    made = worker(tmp_path)
    before = [tensor.clone() for _, tensor in made.actor.policy.weights()]

    async def work():
        await made.load(update(made, 3))
        return await made.group(0)

    group = asyncio.run(work())
    assert set(group.samples[0].version_T.tolist()) == {3}
    for old, (_, new) in zip(before, made.actor.policy.weights(), strict=True):
        torch.testing.assert_close(new, old + 1)
    made.close()


@pytest.mark.parametrize("wrong", ["older", "missing", "shape", "not finite"])
def test_wrong_weights_are_refused_and_the_old_ones_stay(tmp_path, wrong):
    made = worker(tmp_path)
    asyncio.run(made.load(update(made, 3, 0.0)))
    good = update(made, 2 if wrong == "older" else 4)
    tensors = list(good.tensors)
    if wrong == "missing":
        tensors = tensors[1:]
    if wrong == "shape":
        place = next(place for place, (_, tensor) in enumerate(tensors) if tensor.ndim == 2)
        tensors[place] = (tensors[place][0], tensors[place][1][:1])
    if wrong == "not finite":
        tensors[-1] = (tensors[-1][0], tensors[-1][1] * float("nan"))
    before = [tensor.clone() for _, tensor in made.actor.policy.weights()]
    with pytest.raises(WeightError):
        asyncio.run(made.load(WeightUpdate(good.version, tensors)))
    assert made.version == 3
    assert all(torch.equal(old, new) for old, (_, new) in zip(before, made.actor.policy.weights(), strict=True))
    made.close()


def test_a_cancelled_fragment_ends_before_the_next_begins(tmp_path):
    made = worker(tmp_path)

    async def work():
        await made.load(update(made, 0, 0.0))
        cancelled = asyncio.create_task(made.group(0))
        while not made.stats().running:
            await asyncio.sleep(0.001)
        cancelled.cancel()
        return await made.group(1)

    group = asyncio.run(work())
    other = worker(tmp_path)

    async def undisturbed():
        await other.load(update(other, 0, 0.0))
        await other.group(0)
        return await other.group(1)

    assert_same(collected_of(group).fragment, collected_of(asyncio.run(undisturbed())).fragment)
    made.close()
    other.close()


def test_actors_that_begin_elsewhere_see_other_episodes(tmp_path):
    fragments = []
    for ordinal in (1, 2):
        made = worker(tmp_path)
        asyncio.run(made.load(update(made, 0, 0.0)))
        fragments.append(collected_of(asyncio.run(made.group(ordinal))).fragment)
        made.close()
    assert not np.array_equal(fragments[0].observation_TNF[0], fragments[1].observation_TNF[0])

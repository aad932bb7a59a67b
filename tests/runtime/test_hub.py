"""Who may do what at the hub, which stage a role works for, and which weights a generator hears of."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hub_scenes import Peers, scene

from penstock.core.errors import StreamError
from penstock.core.types import Group, Prompt, PromptKey


def manifest(version: int, learner_epoch: int = 1) -> dict[str, Any]:
    return {"kind": "disk", "version": version, "learner_epoch": learner_epoch, "buckets": []}


@scene
async def test_the_learner_hears_which_roles_take_weights_and_no_more_of_those_that_left(peers: Peers) -> None:
    learner = await peers.learner()
    assert list(await learner.announce(manifest(1))) == []
    for name in ("a", "b", "c"):
        generator = await peers.connect(name)
        if name != "c":
            assert (await generator.registry.wait_newer(-1, -1) or {})["version"] == 1
    assert list(await learner.announce(manifest(2))) == ["a", "b"]
    await peers.leave("a")
    assert list(await learner.announce(manifest(3))) == ["b"]


@scene
async def test_a_generator_that_starts_while_a_learner_catches_up_is_given_weights_that_are_there(peers: Peers) -> None:
    """Version 3 is known, but its files died with the learner that made it; the one before will do until it comes again."""
    await (await peers.learner()).announce(manifest(3))
    await peers.leave("learner")
    successor = await peers.learner()
    await successor.announce(manifest(1, learner_epoch=2))
    generator = await peers.connect("newcomer")
    assert (await generator.registry.wait_newer(-1, -1) or {})["version"] == 1
    await successor.announce(manifest(2, learner_epoch=2))
    assert (await generator.registry.wait_newer(2, 1) or {})["version"] == 2


@scene
async def test_a_generator_for_which_there_are_no_newer_weights_is_told_so_after_the_deadline(peers: Peers) -> None:
    peers.hub.deadline = 0.01
    await peers.learner()
    assert await (await peers.connect("g")).registry.wait_newer(-1, -1) is None


@scene
async def test_workers_that_are_late_to_leave_a_stage_reach_neither_groups_nor_columns_of_the_next(peers: Peers) -> None:
    learner = await peers.learner("one")
    late, scorer = await peers.connect("g"), await peers.connect("r", "reward")
    (ticket,) = await late.worker.admit()
    await learner.end()
    await peers.leave("learner")
    successor = await peers.learner("two")
    young = await peers.connect("g", stage="two")
    assert await young.worker.admit() == [ticket]  # ordinal 0 again, of the next stage
    await late.worker.put(ticket, group("one"))
    await scorer.worker.take("reward")
    await scorer.worker.write(ticket, "reward", [])
    assert await young.worker.put(ticket, group("two"))
    await scorer.worker.write(ticket, "reward", [])
    fresh = await peers.connect("r", "reward", "two")
    ((taken, _),) = await fresh.worker.take("reward")
    assert await fresh.worker.write(taken, "reward", [])
    assert [one.key.source for one in (await successor.lease(0)).groups] == ["two"]


def group(source: str) -> Group:
    """The first group of a stage, without samples."""
    return Group(Prompt(PromptKey(source, 0, 0), ""), ())


@scene
async def test_a_role_of_a_stage_that_is_over_is_refused(peers: Peers) -> None:
    await peers.learner("two")
    with pytest.raises(StreamError, match='generator "g" is for the stage one, which is not under way'):
        await peers.connect("g", stage="one")


@scene
async def test_a_role_that_has_joined_no_stage_has_no_part_in_its_stream(peers: Peers) -> None:
    await peers.learner()
    stranger = await peers.connect("g", stage="")
    with pytest.raises(StreamError, match="has joined no stage"):
        await stranger.worker.admit()


@scene
async def test_an_evaluation_that_ends_evaluator_after_evaluator_ends_the_run_with_its_step(peers: Peers) -> None:
    learner = await peers.learner()
    await learner.hub.ask(4, manifest(4))
    for _ in range(3):
        evaluator = await peers.connect("evaluator-0", "evaluator")
        assert (await evaluator.evaluations.next_evaluation(0)) is not None
        await peers.leave("evaluator-0")
    with pytest.raises(StreamError, match="3 evaluators in a row ended on the evaluation of step 4"):
        await learner.lease(0)


@scene
async def test_what_a_learner_that_is_gone_had_evaluated_is_asked_again_by_its_successor(peers: Peers) -> None:
    """Its weights are gone with it: an evaluator that was given the request would look for them for ever."""
    await (await peers.learner()).hub.ask(4, manifest(4))
    evaluator = await peers.connect("evaluator-0", "evaluator")
    old = await evaluator.evaluations.next_evaluation(0)
    assert old is not None
    await peers.leave("learner")
    successor = await peers.learner()
    await evaluator.evaluations.answer(old.number, {}, [])
    await successor.hub.ask(4, manifest(4, learner_epoch=2))
    new = await evaluator.evaluations.next_evaluation(old.number)
    assert new is not None
    assert new.manifest["learner_epoch"] == 2
    await evaluator.evaluations.answer(new.number, {"evaluation/reward": 1.0}, [])
    assert await successor.hub.answers(True) == [(4, {"evaluation/reward": 1.0}, [])]


@scene
async def test_the_hub_knows_the_longest_gap_between_the_signs_of_life_of_each_process(peers: Peers) -> None:
    await peers.learner()
    now, generator = asyncio.get_running_loop().time(), await peers.connect("g")
    await generator.role.alive({})
    gaps = []
    for earlier in (7.0, 3.0):
        peers.hub.presence["g"].seen -= earlier
        await generator.role.alive({})
        gaps.append(peers.hub.presence["g"].gap)
    await peers.leave("g")
    peers.hub.presence["g"].seen = now - 1000
    await (await peers.connect("g")).role.alive({})
    assert 7.0 <= gaps[0] < 8.0
    assert gaps == [peers.hub.presence["g"].gap] * 2

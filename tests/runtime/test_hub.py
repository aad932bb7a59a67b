"""Who may do what at the hub, which stage a role works for, and which weights a generator hears of."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock.core.errors import StreamError
from penstock.core.types import Group, Prompt, PromptKey
from penstock.net.rpc import Client, connect
from penstock.runtime.hub import Hub
from penstock.runtime.remote import HubClient, RemoteLearner
from penstock.stream.enrichment import REWARD
from penstock.stream.rules import Rules

TOKEN = "a token of sixteen characters"
RULES = Rules(batch=1, enrichment=(REWARD,))
SECONDS = 5.0


def manifest(version: int, learner_epoch: int = 1) -> dict[str, Any]:
    return {"kind": "disk", "version": version, "learner_epoch": learner_epoch, "buckets": []}


async def nothing(stage: str) -> None:
    return None


class Peers:
    """A hub and connections to it."""

    def __init__(self, hub: Hub, address: str) -> None:
        self.hub, self.address = hub, address
        self.clients: list[Client] = []

    async def connect(self, name: str, role: str = "generator", stage: str = "") -> HubClient:
        self.clients.append(await connect(self.address, TOKEN, name=name, role=role))
        made = HubClient(self.clients[-1])
        if stage:
            await made.role.join(stage)
        return made

    async def learner(self, stage: str = "one") -> RemoteLearner:
        made = RemoteLearner(RULES, lambda what, **fields: None)
        await made.begin(await self.connect("learner", "learner"), stage)
        return made

    async def leave(self, name: str) -> None:
        (peer,) = (peer for peer in self.hub.server.peers.values() if peer.name == name)
        await self.clients[peer.id - 1].close()
        while peer.id in self.hub.server.peers:
            await asyncio.sleep(0.001)


@asynccontextmanager
async def served(deadline: float = SECONDS) -> AsyncIterator[Peers]:
    hub = Hub(lambda stage: RULES, TOKEN, nothing, nothing, deadline)
    peers = Peers(hub, await hub.start())
    try:
        yield peers
    finally:
        for client in peers.clients:
            await client.close()
        await hub.stop()


def play(scene: Callable[[Peers], Coroutine[Any, Any, Any]], deadline: float = SECONDS) -> Any:
    async def main() -> Any:
        async with served(deadline) as peers:
            return await scene(peers)

    return asyncio.run(asyncio.wait_for(main(), 30))


def test_the_learner_hears_which_roles_take_weights_and_no_more_of_those_that_left() -> None:
    async def scene(peers: Peers) -> list[list[str]]:
        learner = await peers.learner()
        following = [list(await learner.announce(manifest(1)))]
        for name in ("a", "b", "c"):
            generator = await peers.connect(name, stage="one")
            if name != "c":
                assert (await generator.registry.wait_newer(-1, -1) or {})["version"] == 1
        following.append(list(await learner.announce(manifest(2))))
        await peers.leave("a")
        following.append(list(await learner.announce(manifest(3))))
        return following

    assert play(scene) == [[], ["a", "b"], ["b"]]


def test_a_generator_that_starts_while_a_learner_catches_up_is_given_weights_that_are_there() -> None:
    """Version 3 is known, but its files died with the learner that made it; the one before will do until it comes again."""

    async def scene(peers: Peers) -> list[int]:
        await (await peers.learner()).announce(manifest(3))
        await peers.leave("learner")
        successor = await peers.learner()
        await successor.announce(manifest(1, learner_epoch=2))
        generator = await peers.connect("newcomer", stage="one")
        first = await generator.registry.wait_newer(-1, -1) or {}
        await successor.announce(manifest(2, learner_epoch=2))
        second = await generator.registry.wait_newer(2, 1) or {}
        return [first["version"], second["version"]]

    assert play(scene) == [1, 2]


def test_a_generator_for_which_there_are_no_newer_weights_is_told_so_after_the_deadline() -> None:
    async def scene(peers: Peers) -> Any:
        await peers.learner()
        return await (await peers.connect("g", stage="one")).registry.wait_newer(-1, -1)

    assert play(scene, deadline=0.01) is None


def test_workers_that_are_late_to_leave_a_stage_reach_neither_groups_nor_columns_of_the_next() -> None:
    async def scene(peers: Peers) -> list[str]:
        learner = await peers.learner("one")
        late, scorer = await peers.connect("g", stage="one"), await peers.connect("r", "reward", "one")
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
        return [one.key.source for one in (await successor.lease(0)).groups]

    assert play(scene) == ["two"]


def group(source: str) -> Group:
    """The first group of a stage, without samples."""
    return Group(Prompt(PromptKey(source, 0, 0), ""), ())


def test_a_role_of_a_stage_that_is_over_is_refused() -> None:
    async def scene(peers: Peers) -> None:
        await peers.learner("two")
        await peers.connect("g", stage="one")

    with pytest.raises(StreamError, match='generator "g" is for the stage one, which is not under way'):
        play(scene)


def test_a_role_that_has_joined_no_stage_has_no_part_in_its_stream() -> None:
    async def scene(peers: Peers) -> None:
        await peers.learner()
        await (await peers.connect("g")).worker.admit()

    with pytest.raises(StreamError, match="has joined no stage"):
        play(scene)


def test_an_evaluation_that_ends_evaluator_after_evaluator_ends_the_run_with_its_step() -> None:
    async def scene(peers: Peers) -> None:
        learner = await peers.learner()
        await learner.hub.ask(4, manifest(4))
        for _ in range(3):
            evaluator = await peers.connect("evaluator-0", "evaluator", "one")
            assert (await evaluator.evaluations.next_evaluation(0)) is not None
            await peers.leave("evaluator-0")
        await learner.lease(0)

    with pytest.raises(StreamError, match="3 evaluators in a row ended on the evaluation of step 4"):
        play(scene)


def test_what_a_learner_that_is_gone_had_evaluated_is_asked_again_by_its_successor() -> None:
    """Its weights are gone with it: an evaluator that was given the request would look for them for ever."""

    async def scene(peers: Peers) -> tuple[int, list[Any]]:
        await (await peers.learner()).hub.ask(4, manifest(4))
        evaluator = await peers.connect("evaluator-0", "evaluator", "one")
        old = await evaluator.evaluations.next_evaluation(0)
        assert old is not None
        await peers.leave("learner")
        successor = await peers.learner()
        await evaluator.evaluations.answer(old.number, {}, [])
        await successor.hub.ask(4, manifest(4, learner_epoch=2))
        new = await evaluator.evaluations.next_evaluation(old.number)
        assert new is not None
        await evaluator.evaluations.answer(new.number, {"evaluation/reward": 1.0}, [])
        return new.manifest["learner_epoch"], await successor.hub.answers(True)

    assert play(scene) == (2, [(4, {"evaluation/reward": 1.0}, [])])


def test_the_hub_knows_the_longest_gap_between_the_signs_of_life_of_each_process() -> None:
    async def scene(peers: Peers) -> list[float]:
        await peers.learner()
        now, generator = asyncio.get_running_loop().time(), await peers.connect("g", stage="one")
        await generator.role.alive({})
        gaps = []
        for earlier in (7.0, 3.0):
            peers.hub.presence["g"].seen -= earlier
            await generator.role.alive({})
            gaps.append(peers.hub.presence["g"].gap)
        await peers.leave("g")
        peers.hub.presence["g"].seen = now - 1000
        await (await peers.connect("g", stage="one")).role.alive({})
        return [*gaps, peers.hub.presence["g"].gap]

    first, second, third = play(scene)
    assert 7.0 <= first < 8.0
    assert first == second == third

"""What the hub does about roles that vanish without a goodbye, and about batches larger than a frame."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hub_scenes import Peers, scene

from network_relay import relayed
from penstock.core.errors import StreamError
from penstock.core.types import Group, Prompt, PromptKey, Sample, SampleKey
from penstock.net import link, wire
from penstock.stream.enrichment import REWARD
from penstock.stream.entry import Ticket
from penstock.stream.rules import Rules


def group_of(ticket: Ticket, size: int = 2) -> Group:
    key = PromptKey("test", 0, ticket.ordinal)
    tokens, logp_T = np.full(size, ticket.ordinal, np.int32), np.zeros(size, np.float32)
    sample = Sample(SampleKey(key, 0), {"tokens_T": tokens}, np.ones(size, bool), logp_T, np.zeros(size, np.int32), "stop")
    return Group(Prompt(key, "?"), (sample,))


@scene
async def test_groups_of_a_generator_whose_network_broke_go_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "SILENCE", 1.0)
    async with Peers(Rules(batch=2)) as peers, relayed(peers.address) as (relay, there):
        await peers.learner()
        far = await peers.connect("generator-0", address=there)
        assert len(await far.worker.admit(most=2)) == 2
        near = await peers.connect("generator-1")
        waiting = asyncio.create_task(near.worker.admit(most=2))
        relay.open.clear()
        assert await waiting == [Ticket(0, 1), Ticket(1, 1)]


@scene
async def test_the_successor_of_a_learner_that_vanished_begins_as_soon_as_the_old_one_is_dropped(peers: Peers) -> None:
    async with relayed(peers.address) as (relay, there):
        await peers.learner(address=there)
        relay.open.clear()
        with pytest.raises(StreamError, match="only while there is no other"):
            await peers.learner()
        await peers.clients[-1].close()
        await peers.hub.server.drop("learner")
        await peers.learner()
        assert peers.epochs == [1, 2]


@scene
async def test_a_batch_larger_than_a_frame_is_leased_whole_and_again_by_the_learners_successor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size = 10_000
    monkeypatch.setattr(wire, "MAX_BODY", 20 * size)  # a group has 13 bytes a token
    async with Peers(Rules(batch=8, enrichment=(REWARD,))) as peers:
        learner, worker = await peers.learner(), (await peers.connect("generator-0")).worker
        for ticket in await worker.admit(most=8):
            await worker.put(ticket, group_of(ticket, size))
        for ticket, _ in await worker.take(REWARD.name, 8):
            await worker.write(ticket, REWARD.name, [{"error": None}])
        first = await learner.lease(0)
        await peers.leave("learner")
        again = await (await peers.learner()).lease(0)
        assert first.ordinals == again.ordinals == tuple(range(8))
        for lease in (first, again):
            tokens = [group.samples[0].tokens_T for group in lease.groups]
            assert all(np.array_equal(one, np.full(size, ordinal)) for ordinal, one in enumerate(tokens))

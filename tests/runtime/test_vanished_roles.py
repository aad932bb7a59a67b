"""What the hub does about roles that vanish without a goodbye, and about batches larger than a frame."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest

from network_relay import Relay, relayed
from penstock.core.errors import StreamError
from penstock.core.types import Group, Prompt, PromptKey, Sample, SampleKey
from penstock.net import link, wire
from penstock.net.rpc import Client, connect
from penstock.runtime.hub import Hub
from penstock.runtime.remote import HubClient, RemoteLearner
from penstock.stream.enrichment import REWARD
from penstock.stream.entry import Ticket
from penstock.stream.rules import Rules
from penstock.stream.stream import Worker

TOKEN = "a token of sixteen characters"
SOON = 30.0


async def nothing(stage: str) -> None:
    return None


@asynccontextmanager
async def broken_network(rules: Rules) -> AsyncIterator[tuple[Hub, str, Relay, str]]:
    """A hub, its address, a relay before it and that one's address."""
    hub = Hub(lambda stage: rules, TOKEN, nothing, nothing)
    address = await hub.start()
    try:
        async with asyncio.timeout(SOON), relayed(address) as (relay, there):
            yield hub, address, relay, there
    finally:
        await hub.stop()


async def worker_of(client: Client) -> Worker:
    """What a role of the stage asks of its stream."""
    hub = HubClient(client)
    await hub.role.join("stage")
    return hub.worker


def group_of(ticket: Ticket, size: int = 2) -> Group:
    key = PromptKey("test", 0, ticket.ordinal)
    tokens, logp_T = np.full(size, ticket.ordinal, np.int32), np.zeros(size, np.float32)
    sample = Sample(SampleKey(key, 0), {"tokens_T": tokens}, np.ones(size, bool), logp_T, np.zeros(size, np.int32), "stop")
    return Group(Prompt(key, "?"), (sample,))


def test_groups_of_a_generator_whose_network_broke_go_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "SILENCE", 1.0)

    async def main() -> list[Ticket]:
        async with broken_network(Rules(batch=2)) as (_, address, relay, there):
            learner = RemoteLearner(Rules(batch=2), lambda what, **fields: None)
            client = await connect(address, TOKEN, name="learner", role="learner")
            await learner.begin(HubClient(client), "stage")
            far = await connect(there, TOKEN, name="generator-0", role="generator")
            assert len(await (await worker_of(far)).admit(most=2)) == 2
            near = await connect(address, TOKEN, name="generator-1", role="generator")
            waiting = asyncio.create_task((await worker_of(near)).admit(most=2))
            relay.open.clear()
            tickets = await waiting
            for one in (far, near, client):
                await one.close()
            return tickets

    assert asyncio.run(main()) == [Ticket(0, 1), Ticket(1, 1)]


def test_the_successor_of_a_learner_that_vanished_begins_as_soon_as_the_old_one_is_dropped() -> None:
    async def main() -> list[int]:
        async with broken_network(Rules(batch=1)) as (hub, address, relay, there):
            epochs = []
            for where in (there, address):
                client = await connect(where, TOKEN, name="learner", role="learner")
                learner = RemoteLearner(Rules(batch=1), lambda what, **fields: None)
                if relay.open.is_set():
                    epochs.append(await learner.begin(HubClient(client), "stage"))
                    relay.open.clear()
                    continue
                with pytest.raises(StreamError, match="only while there is no other"):
                    await learner.begin(HubClient(client), "stage")
                await client.close()
                await hub.server.drop("learner")
                client = await connect(where, TOKEN, name="learner", role="learner")
                epochs.append(await learner.begin(HubClient(client), "stage"))
                await client.close()
            return epochs

    assert asyncio.run(main()) == [1, 2]


def test_a_batch_larger_than_a_frame_is_leased_whole_and_again_by_the_learners_successor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rules, size = Rules(batch=8, enrichment=(REWARD,)), 10_000
    monkeypatch.setattr(wire, "MAX_BODY", 20 * size)  # a group has 13 bytes a token

    async def main() -> None:
        async with broken_network(rules) as (hub, address, _, _):
            client = await connect(address, TOKEN, name="learner", role="learner")
            learner = RemoteLearner(rules, lambda what, **fields: None)
            kept = learner.state()
            await learner.begin(HubClient(client), "stage")
            other = await connect(address, TOKEN, name="generator-0", role="generator")
            worker = await worker_of(other)
            for ticket in await worker.admit(most=8):
                await worker.put(ticket, group_of(ticket, size))
            for ticket, _ in await worker.take(REWARD.name, 8):
                await worker.write(ticket, REWARD.name, [{"error": None}])
            first = await learner.lease(0)
            await client.close()
            while "learner" in {peer.name for peer in hub.server.peers.values()}:
                await asyncio.sleep(0.001)
            client = await connect(address, TOKEN, name="learner", role="learner")
            learner.load_state(kept)
            await learner.begin(HubClient(client), "stage")
            again = await learner.lease(0)
            assert first.ordinals == again.ordinals == tuple(range(8))
            for lease in (first, again):
                tokens = [group.samples[0].tokens_T for group in lease.groups]
                assert all(np.array_equal(one, np.full(size, ordinal)) for ordinal, one in enumerate(tokens))
            await client.close()
            await other.close()

    asyncio.run(main())

"""What every stream must do between those that generate groups, those that write columns, and a learner.

An implementation joins by one entry in ``STREAMS`` and a class that opens it for some rules. The tests speak to it as the
roles of a run do.
"""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest

from penstock.core.errors import StreamError
from penstock.core.types import Group, Prompt, PromptKey, Sample, SampleKey
from penstock.net.rpc import connect
from penstock.net.wire import pack
from penstock.runtime.hub import Hub
from penstock.runtime.remote import HubClient, RemoteLearner
from penstock.stream.enrichment import REFERENCE, REWARD, changes
from penstock.stream.entry import Ticket
from penstock.stream.rules import Rules
from penstock.stream.stream import LearnerClient, Stream, Worker

SECONDS, SOON = 20.0, 0.05
TOKEN = "the token of this run"


def held(gate):
    """Groups that a gate keeps: those on their way, those that may be used again, those of leases."""
    return len(gate.entries) + len(gate.staleness.used) + sum(len(lease.groups) for lease in gate.leases)


class InOneProcess:
    """Roles that share the stream itself."""

    def __init__(self, rules):
        self.rules, self.stream = rules, Stream(rules, deadline=SECONDS)

    async def worker(self, name):
        return Worker(self.stream, name)

    async def learner(self, kept=None):
        made = LearnerClient(self.rules, self.stream)
        if kept is not None:
            made.load_state(kept)
            self.stream.gate.restore(made.ledger)
        return made

    async def learner_dies(self):
        return None

    async def leave(self, name):
        await Worker(self.stream, name).leave()

    async def kept(self):
        return held(self.stream.gate)

    async def close(self):
        return None


class OverSockets:
    """Roles with connections of their own to a hub."""

    def __init__(self, rules):
        self.rules = rules
        self.hub = Hub(lambda stage: rules, TOKEN, self.nothing, self.nothing, SECONDS)
        self.clients = {}

    async def nothing(self, stage):
        return None

    async def open(self):
        self.address = await self.hub.start()
        return self

    async def connected(self, name, role):
        self.clients[name] = await connect(self.address, TOKEN, name=name, role=role)
        return HubClient(self.clients[name])

    async def worker(self, name):
        hub = await self.connected(name, "generator")
        await hub.role.join("stage")
        return hub.worker

    async def learner(self, kept=None):
        made = RemoteLearner(self.rules, lambda what, **fields: None)
        if kept is not None:
            made.load_state(kept)
        await made.begin(await self.connected("learner", "learner"), "stage")
        return made

    async def learner_dies(self):
        await self.leave("learner")

    async def leave(self, name):
        await self.clients.pop(name).close()
        while name in {peer.name for peer in self.hub.server.peers.values()}:
            await asyncio.sleep(0.001)

    async def kept(self):
        return held(self.hub.stage.stream.gate)

    async def close(self):
        for client in self.clients.values():
            await client.close()
        await self.hub.stop()


STREAMS = ("one process", "hub")


@pytest.fixture(params=STREAMS)
def kind(request):
    return request.param


@pytest.fixture
def play(kind):
    """``play(scene, rules)``: run ``scene(stream, learner, worker)`` over a new stream of the implementation;
    the worker is called "g"."""

    @asynccontextmanager
    async def opened(rules):
        made = InOneProcess(rules) if kind == "one process" else await OverSockets(rules).open()
        try:
            yield made
        finally:
            await made.close()

    def run(scene, rules):
        async def whole():
            async with asyncio.timeout(SECONDS), opened(rules) as stream:
                return await scene(stream, await stream.learner(), await stream.worker("g"))

        return asyncio.run(whole())

    return run


def generated(ticket, versions=((0,), (0,)), rewards=None):
    """A group with texts, columns of its prompt and arrays beside its samples."""
    key = PromptKey("test", 0, ticket.ordinal)
    samples = []
    for place, ones in enumerate(versions):
        size = len(ones) + 1
        extras = {"greedy": place == 0, "scores": np.arange(3.0) + ticket.ordinal}
        logp_T = np.linspace(-1, 0, size, dtype=np.float32)
        columns = {"tokens_T": np.arange(size, dtype=np.int32) + 20, "seen_T": np.full((size, 2, 3), place, np.float32)}
        known = (np.arange(size) > 0, logp_T, np.array([-1, *ones], np.int32))
        samples.append(Sample(SampleKey(key, place), columns, *known, "stop", f"text {place}", extras=extras))
    group = Group(Prompt(key, "what?", columns={"answer": 42, "picture": b"\x00\x01"}), tuple(samples), "generator-0")
    return group if rewards is None else scored(group, rewards)


def scored(group, rewards):
    return replace(group, samples=tuple(one.scored(reward) for one, reward in zip(group.samples, rewards, strict=True)))


def same(one, other):
    """Bit for bit."""
    return b"".join(map(bytes, pack(one))) == b"".join(map(bytes, pack(other)))


async def fill(worker, count, **like):
    """Draw and deliver so many groups."""
    tickets = []
    while len(tickets) < count:
        tickets += await worker.admit(most=count - len(tickets))
    for ticket in tickets:
        assert await worker.put(ticket, generated(ticket, **like))
    return tickets


async def finish(learner, lease, durable=True):
    learner.trained(lease)
    if durable:
        learner.acknowledge()
    await learner.release(lease)


async def waits(work):
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(work, SOON)


def test_admission_stops_at_the_slots(play):
    async def scene(stream, learner, worker):
        first = await worker.admit(most=9)
        await waits(worker.admit(most=1))
        return [ticket.ordinal for ticket in first]

    assert play(scene, Rules(2, max_lag=1)) == [0, 1, 2, 3]


def test_a_group_comes_back_as_it_was_generated(play):
    async def scene(stream, learner, worker):
        await fill(worker, 2, versions=((0, 0, 0), (0,)))
        return (await learner.lease(0)).groups

    for ordinal, group in enumerate(play(scene, Rules(2))):
        assert same(group, generated(Ticket(ordinal), versions=((0, 0, 0), (0,))))


def test_batches_come_in_the_order_of_admission(play):
    async def scene(stream, learner, worker):
        tickets = await worker.admit(most=4)
        for place in (3, 0, 2, 1):
            await worker.put(tickets[place], generated(tickets[place]))
        return [(await learner.lease(0)).ordinals for _ in range(2)]

    assert play(scene, Rules(2, max_lag=1)) == [(0, 1), (2, 3)]


def test_a_published_batch_opens_its_slots(play):
    async def scene(stream, learner, worker):
        await fill(worker, 2)
        lease = await learner.lease(0)
        await waits(worker.admit(most=1))
        await finish(learner, lease)
        return await worker.admit(most=9)

    assert play(scene, Rules(2)) == [Ticket(2, min_version=1), Ticket(3, min_version=1)]


def test_columns_are_written_next_to_the_group_and_come_back_with_it(play):
    async def scene(stream, learner, worker):
        columns = await stream.worker("r")
        await fill(worker, 1)
        for stage in (REWARD, REFERENCE):
            ((ticket, group),) = await columns.take(stage.name, 1)
            made = scored(group, (1.0, 0.0)) if stage is REWARD else group
            if stage is REFERENCE:
                column = {"reference_T": np.array([0.5, -0.5], np.float32)}
                made = replace(group, samples=tuple(replace(one, extras={**one.extras, **column}) for one in group.samples))
            assert await columns.write(ticket, stage.name, changes(group, made))
        return made, (await learner.lease(0)).groups[0]

    made, group = play(scene, Rules(1, enrichment=(REWARD, REFERENCE)))
    assert [one.reward for one in group.samples] == [1.0, 0.0]
    assert group.samples[1].extras["reference_T"].tolist() == [0.5, -0.5]
    assert same(group, made)


def test_what_a_worker_that_left_was_generating_is_generated_by_another(play):
    async def scene(stream, learner, first):
        second = await stream.worker("h")
        await first.admit(most=2)
        await stream.leave("g")
        tickets = await fill(second, 2)
        return tickets, (await learner.lease(0)).ordinals

    assert play(scene, Rules(2)) == ([Ticket(0, 1), Ticket(1, 1)], (0, 1))


def test_a_late_delivery_is_refused(play):
    async def scene(stream, learner, first):
        second = await stream.worker("h")
        (ticket,) = await first.admit(most=1)
        await stream.leave("g")
        await fill(second, 1)
        assert not await second.put(ticket, generated(ticket, versions=((0, 0, 0),)))
        return (await learner.lease(0)).groups[0]

    assert len(play(scene, Rules(1)).samples) == 2


def test_a_group_that_comes_twice_is_refused(play):
    async def scene(stream, learner, worker):
        (ticket,) = await fill(worker, 1)
        await worker.put(ticket, generated(ticket))

    with pytest.raises(StreamError, match="was delivered before"):
        play(scene, Rules(2))


def test_a_group_that_is_too_old_is_refused(play):
    async def scene(stream, learner, worker):
        await fill(worker, 1)
        await learner.lease(2)

    with pytest.raises(StreamError, match="test/0/0 is 2 versions old; max_lag=1 forbids"):
        play(scene, Rules(1, max_lag=1))


def test_tokens_that_are_too_old_are_left_out(play):
    async def scene(stream, learner, worker):
        await fill(worker, 1, versions=((0, 1, 2),))
        return (await learner.lease(2)).groups[0].samples[0]

    sample = play(scene, Rules(1, max_lag=1, on_stale="mask"))
    assert list(sample.action_T) == [False, False, True, True]
    assert list(sample.tokens_T) == [20, 21, 22, 23]


def test_a_group_without_signal_is_filtered(play):
    def keep(group):
        return len({one.reward for one in group.samples}) > 1

    async def scene(stream, learner, worker):
        await fill(worker, 1, rewards=(1.0, 1.0))
        await fill(worker, 1, rewards=(1.0, 0.0))
        lease = await learner.lease(0)
        return lease.ordinals, lease.filtered

    assert play(scene, Rules(1, keep=keep, dynamic_sampling=1)) == ((1,), (0,))


def test_a_learner_that_died_is_given_the_same_batches_again(play):
    async def scene(stream, learner, worker):
        await fill(worker, 2)
        kept = learner.state()
        first = await learner.lease(0)
        await finish(learner, first, durable=False)
        second = await learner.lease(1)
        await stream.learner_dies()
        learner = await stream.learner(kept)
        again = [await learner.lease(version) for version in (0, 1)]
        return [*first.groups, *second.groups], [group for lease in again for group in lease.groups]

    before, after = play(scene, Rules(1, max_lag=1))
    assert len(before) == len(after) == 2
    assert all(same(one, other) for one, other in zip(before, after, strict=True))


def test_a_trained_group_may_be_in_a_later_batch_again(play):
    async def scene(stream, learner, worker):
        await fill(worker, 2)
        await finish(learner, await learner.lease(0))
        await fill(worker, 1, versions=((1,),))
        return (await learner.lease(1)).reused

    (group,) = play(scene, Rules(2, max_lag=1, max_uses=2))
    assert same(group, generated(Ticket(0)))


def test_nothing_is_kept_of_what_a_checkpoint_holds(play):
    async def scene(stream, learner, worker):
        counts = []
        for version in range(3):
            await fill(worker, 2, versions=((version,),))
            lease = await learner.lease(version)
            counts.append(await stream.kept())
            await finish(learner, lease)
        return counts, await stream.kept()

    counts, left = play(scene, Rules(2))
    assert max(counts) <= 4
    assert left <= 2

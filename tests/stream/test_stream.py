"""The stream: slots bound what is in flight, leases come in order, nothing is lost and nothing is trained twice."""

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from stream_examples import Both, group

from penstock.core.errors import StreamError
from penstock.stream.entry import Ticket
from penstock.stream.leases import Lease
from penstock.stream.rules import Rules
from penstock.stream.stream import LearnerClient, Stream


def within(awaitable, seconds=0.02):
    return asyncio.wait_for(awaitable, seconds)


async def admit(stream):
    """The ordinal of one ticket."""
    (ticket,) = await within(stream.admit())
    assert ticket.attempt == 0
    return ticket.ordinal


async def put(stream, ordinal, version=0):
    return await stream.put(Ticket(ordinal), group(ordinal, version))


async def fill(stream, count, version=0):
    """Admit and deliver groups."""
    ordinals = [await admit(stream) for _ in range(count)]
    for ordinal in ordinals:
        assert await put(stream, ordinal, version)
    return ordinals


@pytest.mark.parametrize(("batch", "max_lag", "slots"), [(1, 0, 1), (4, 0, 4), (4, 1, 8), (2, 3, 8)])
def test_admission_stops_at_the_slots(batch, max_lag, slots):
    async def take():
        stream = Both(Rules(batch, max_lag))
        assert [await admit(stream) for _ in range(slots)] == list(range(slots))
        with pytest.raises(TimeoutError):
            await admit(stream)

    asyncio.run(take())


def test_delivered_and_leased_groups_keep_their_slots():
    async def take():
        stream = Both(Rules(2))
        await fill(stream, 2)
        with pytest.raises(TimeoutError):
            await admit(stream)
        stream.trained(await stream.lease(0))
        with pytest.raises(TimeoutError):
            await admit(stream)

    asyncio.run(take())


def test_release_opens_the_slots_of_its_batch():
    async def take():
        stream = Both(Rules(2, max_lag=1))
        await fill(stream, 4)
        waiting = asyncio.create_task(stream.admit())
        await asyncio.sleep(0)
        assert not waiting.done()
        lease = await stream.lease(0)
        stream.trained(lease)
        await stream.release(lease)
        assert await within(waiting) == [Ticket(4, min_version=1)]
        assert await admit(stream) == 5
        with pytest.raises(TimeoutError):
            await admit(stream)

    asyncio.run(take())


def test_a_lease_waits_for_a_whole_batch():
    async def take():
        stream = Both(Rules(2))
        leasing = asyncio.create_task(stream.lease(0))
        await fill(stream, 1)
        await asyncio.sleep(0)
        assert not leasing.done()
        await fill(stream, 1)
        assert (await within(leasing)).ordinals == (0, 1)

    asyncio.run(take())


def test_a_lease_holds_the_groups_in_the_order_of_admission():
    async def take():
        stream = Both(Rules(3))
        for _ in range(3):
            await stream.admit()
        for ordinal in (2, 0, 1):
            await put(stream, ordinal)
        lease = await stream.lease(0)
        assert lease.ordinals == (0, 1, 2)
        assert [held.key.ordinal for held in lease.groups] == [0, 1, 2]

    asyncio.run(take())


def test_a_straggler_is_waited_for_rather_than_overtaken_until_it_is_stale():
    """With one batch of lag: were group 1 trained before the slow group 0, then 0 would come two versions late."""

    async def take():
        stream = Both(Rules(1, max_lag=1))
        await stream.admit()
        await stream.admit()
        await put(stream, 1)
        leasing = asyncio.create_task(stream.lease(0))
        with pytest.raises(TimeoutError):
            await within(asyncio.shield(leasing))
        await put(stream, 0)
        assert (await within(leasing)).ordinals == (0,)

    asyncio.run(take())


def test_a_group_that_is_too_old_is_refused():
    async def take():
        stream = Both(Rules(1, max_lag=1))
        await stream.admit()
        await put(stream, 0, 3)
        with pytest.raises(StreamError, match=r"group test/0/0 is 2 versions old; max_lag=1 forbids training on it"):
            await stream.lease(5)

    asyncio.run(take())


def test_a_group_from_the_future_is_refused():
    async def take():
        stream = Both(Rules(1))
        await stream.admit()
        await put(stream, 0, 1)
        with pytest.raises(StreamError, match="-1 versions old"):
            await stream.lease(0)

    asyncio.run(take())


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_the_largest_lag_is_counted(lag):
    async def take():
        stream = Both(Rules(1, max_lag=2))
        await stream.admit()
        await put(stream, 0, 3)
        await stream.lease(3 + lag)
        return stream.stats.largest_lag

    assert asyncio.run(take()) == lag


def test_a_group_that_was_not_admitted_is_refused():
    with pytest.raises(StreamError, match=r"group test/0/0 \(ordinal 0\) was not admitted"):
        Both(Rules(1)).gate.put("g", Ticket(0), group(0))


def test_a_group_that_comes_twice_is_refused():
    async def take():
        stream = Both(Rules(2))
        await fill(stream, 1)
        with pytest.raises(StreamError, match="was delivered before"):
            await put(stream, 0)

    asyncio.run(take())


@pytest.mark.parametrize("others", [0, 1])
def test_a_lease_that_is_released_twice_is_refused(others):
    """Also while other batches hold slots, where the count of free slots would not tell."""

    async def take():
        stream = Both(Rules(1, max_lag=1))
        await fill(stream, 1 + others)
        lease = await stream.lease(0)
        stream.trained(lease)
        await stream.release(lease)
        with pytest.raises(StreamError, match="released twice"):
            await stream.release(lease)
        for _ in range(2 - others):
            await admit(stream)
        with pytest.raises(TimeoutError):
            await admit(stream)

    asyncio.run(take())


class Impatient:
    """A clock on which every wait takes longer than its deadline."""

    def __init__(self):
        self.asked = []

    def now(self):
        return 0.0

    async def wait(self, what, seconds):
        self.asked.append(seconds)
        what.close()
        raise TimeoutError


def test_a_learner_that_waits_too_long_names_the_rollout_and_what_is_in_flight():
    async def take():
        stream = Both(Rules(2), deadline=7.0, clock=Impatient())
        await stream.admit()
        await fill(stream, 1)
        with pytest.raises(StreamError, match=r"7 s for 2 groups from the rollout; 1 groups are ready, 1 in flight .*\[0\]"):
            await stream.lease(0)
        assert stream.stream.clock.asked == [7.0]

    asyncio.run(take())


def test_a_rollout_that_waits_too_long_names_the_learner():
    async def take():
        stream = Both(Rules(1), deadline=0.01)
        await stream.admit()
        with pytest.raises(StreamError, match="for a free slot from the learner to publish new weights"):
            await stream.admit()

    asyncio.run(take())


def test_a_learner_waits_on_while_tokens_are_generated():
    """An episode may take hours; what ends the wait is that nobody works any more."""
    tokens = iter([0.0, 5.0, 9.0, 9.0])
    clock = Impatient()

    async def take():
        stream = Stream(Rules(1), deadline=7.0, clock=clock, work=lambda: next(tokens))
        await stream.lease(0)

    with pytest.raises(StreamError, match="waited 7 s for 1 groups"):
        asyncio.run(take())
    assert clock.asked == [7.0, 7.0, 7.0]


def test_the_stream_works_on_after_a_deadline():
    async def take():
        stream = Both(Rules(1), deadline=0.01)
        with pytest.raises(StreamError):
            await stream.lease(0)
        await fill(stream, 1)
        return (await stream.lease(0)).ordinals

    assert asyncio.run(take()) == (0,)


def test_a_cancelled_wait_takes_no_slot():
    async def take():
        stream = Both(Rules(1))
        await fill(stream, 1)
        waiting = asyncio.create_task(stream.admit())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        lease = await stream.lease(0)
        stream.trained(lease)
        await stream.release(lease)
        return await admit(stream)

    assert asyncio.run(take()) == 1


@pytest.mark.parametrize("turns", range(5))
def test_a_wait_that_is_cancelled_just_as_its_slot_opens_ends(turns):
    async def take():
        stream = Both(Rules(1))
        await fill(stream, 1)
        waiting = asyncio.create_task(stream.admit())
        await asyncio.sleep(0)
        lease = await stream.lease(0)
        stream.trained(lease)
        await stream.release(lease)
        for _ in range(turns):
            await asyncio.sleep(0)
        accepted = waiting.cancel()
        await asyncio.wait([waiting])
        return accepted, waiting.cancelled()

    accepted, cancelled = asyncio.run(take())
    assert accepted == cancelled


def test_restore_returns_untrained_leases_in_their_place():
    async def take():
        stream = Both(Rules(2, max_lag=1))
        await fill(stream, 4)
        trained = await stream.lease(0)
        stream.trained(trained)
        await stream.release(trained)
        kept = stream.learner.ledger
        await stream.lease(1)
        stream.gate.restore(kept)
        return (await within(stream.lease(1))).ordinals

    assert asyncio.run(take()) == (2, 3)


def test_a_resume_starts_exactly_the_untrained_ordinals_again():
    async def take():
        stream = Both(Rules(2, max_lag=1))
        await fill(stream, 4)
        stream.trained(await stream.lease(0))
        resumed = Both(stream.rules, kept=stream.learner.ledger)
        return await fill(resumed, 4, version=1), (await resumed.lease(1)).ordinals

    assert asyncio.run(take()) == ([2, 3, 4, 5], (2, 3))


def test_a_resume_leaves_out_what_was_trained_out_of_order():
    async def take():
        stream = Both(Rules(1, max_lag=1, on_stale="drop"))
        _, quick = await stream.admit(2)
        await stream.put(quick, group(1))
        stream.trained(await stream.lease(0))
        resumed = Both(stream.rules, kept=stream.learner.ledger)
        return [await admit(resumed) for _ in range(2)]

    assert asyncio.run(take()) == [0, 2]


def test_the_state_is_plain_json():
    import json

    state = LearnerClient(Rules(2)).state()
    assert state.arrays == {}
    assert json.loads(json.dumps(state.values)) == state.values


def test_stats_count_groups():
    async def take():
        stream = Both(Rules(2, max_lag=1))
        await fill(stream, 3)
        await stream.train(0)
        return stream.stats

    stats = asyncio.run(take())
    assert (stats.admitted, stats.delivered, stats.trained) == (3, 3, 2)


class Interleavings(RuleBasedStateMachine):
    """Rollout and learner in any order, with deaths of either side; the model is a few sets of ordinals."""

    batch, max_lag = 2, 2

    def __init__(self):
        super().__init__()
        self.runner = asyncio.Runner()
        self.rules = Rules(self.batch, self.max_lag)
        self.start(Both(self.rules), trained=[], version=0)
        self.saved = (self.stream.learner.ledger, [], 0)

    def start(self, stream: Both, trained: list[int], version: int) -> None:
        self.stream, self.trained, self.version = stream, trained, version
        self.flying: dict[int, int] = {}
        self.ready: set[int] = set()
        self.lease: Lease | None = None
        self.lease_trained = False
        self.returned: tuple[int, ...] = ()

    def do(self, awaitable):
        return self.runner.run(within(awaitable, 5))

    def held(self) -> int:
        return len(self.flying) + len(self.ready) + len(self.returned) + (self.batch if self.lease else 0)

    @precondition(lambda self: self.held() < self.stream.rules.slots)
    @rule()
    def admit(self):
        ((ordinal, _, _),) = self.do(self.stream.admit())
        assert ordinal not in self.flying
        assert ordinal not in self.ready
        assert ordinal not in self.trained
        self.flying[ordinal] = self.version

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def deliver(self, data):
        ordinal = data.draw(st.sampled_from(sorted(self.flying)))
        assert self.do(put(self.stream, ordinal, self.flying.pop(ordinal)))
        self.ready.add(ordinal)

    def oldest(self) -> list[int]:
        return sorted([*self.flying, *self.ready])[: self.batch]

    @precondition(lambda self: not self.lease and (self.returned or len(self.ready & set(self.oldest())) == self.batch))
    @rule()
    def take_lease(self):
        self.lease, self.lease_trained = self.do(self.stream.lease(self.version)), False
        assert list(self.lease.ordinals) == list(self.returned or self.oldest())
        self.ready -= set(self.lease.ordinals)
        self.returned = ()

    @precondition(lambda self: not self.lease and not self.returned)
    @precondition(lambda self: len(self.ready) >= self.batch > len(self.ready & set(self.oldest())))
    @rule()
    def a_lease_waits_for_the_oldest(self):
        with pytest.raises(TimeoutError):
            self.runner.run(within(self.stream.lease(self.version), 0.001))

    @precondition(lambda self: self.lease and not self.lease_trained)
    @rule()
    def train(self):
        self.stream.trained(self.lease)
        self.trained = [*self.trained, *self.lease.ordinals]
        self.version += 1
        self.lease_trained = True

    @precondition(lambda self: self.lease and self.lease_trained)
    @rule()
    def publish(self):
        self.do(self.stream.release(self.lease))
        self.lease = None

    @precondition(lambda self: not self.lease or self.lease_trained)
    @rule()
    def checkpoint(self):
        self.saved = (self.stream.learner.ledger, list(self.trained), self.version)
        self.stream.learner.acknowledge()

    @precondition(lambda self: self.lease and not self.lease_trained)
    @rule()
    def learner_dies(self):
        """After a checkpoint of all it trained; see test_bound.py for other moments."""
        self.stream.gate.restore(self.stream.learner.ledger)
        self.returned, self.lease = self.lease.ordinals, None

    @rule()
    def everything_dies(self):
        ledger, trained, version = self.saved
        stream = Both(self.rules, kept=ledger)
        stream.learner.ledger = ledger
        self.start(stream, list(trained), version)

    @invariant()
    def nothing_is_trained_twice(self):
        assert len(set(self.trained)) == len(self.trained)

    @invariant()
    def the_lag_stays_within_its_bound(self):
        assert self.stream.stats.largest_lag <= self.max_lag

    def teardown(self):
        """Let the run go on: everything that was ever started gets trained, without a gap."""
        for _ in range(4):
            while self.held() < self.stream.rules.slots:
                self.admit()
            for ordinal in sorted(self.flying):
                assert self.do(put(self.stream, ordinal, self.flying.pop(ordinal)))
                self.ready.add(ordinal)
            steps: list[Callable[[], None]] = [] if self.lease else [self.take_lease]
            for step in [*steps, *([] if self.lease_trained and self.lease else [self.train]), self.publish]:
                step()
        assert sorted(self.trained) == list(range(len(self.trained)))
        self.runner.close()


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_worker_has_no_more_groups_in_flight_than_it_asked_for():
    async def take():
        stream = Both(Rules(4))
        first = await stream.as_owner("a").admit(most=4, max_in_flight=2)
        with pytest.raises(TimeoutError):
            await within(stream.as_owner("a").admit(most=4, max_in_flight=2))
        return len(first), len(await stream.as_owner("b").admit(most=4, max_in_flight=4))

    assert asyncio.run(take()) == (2, 2)


def test_a_request_that_waited_while_its_groups_ended_gets_all_that_opens():
    """Or the groups of one version would enter the engine in two steps, and processes would not do what one process does."""

    async def take():
        stream = Both(Rules(2))
        tickets = await stream.admit(most=2, max_in_flight=2)
        await stream.put(tickets[0], group(0))
        waiting = asyncio.create_task(stream.admit(most=2, max_in_flight=2))
        await asyncio.sleep(0)
        await stream.put(tickets[1], group(1))
        lease = await stream.lease(0)
        stream.trained(lease)
        await stream.release(lease)
        return [ticket.ordinal for ticket in await within(waiting)]

    assert asyncio.run(take()) == [2, 3]


def test_what_a_worker_had_in_flight_counts_no_more_when_it_is_gone():
    async def take():
        stream = Both(Rules(1, max_lag=0, on_stale="drop"))
        await stream.as_owner("a").admit(max_in_flight=1)
        await stream.as_owner("a").leave()
        return len(await within(stream.as_owner("a").admit(max_in_flight=1)))

    assert asyncio.run(take()) == 1

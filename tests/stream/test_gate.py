"""The gate's rules, one by one: what comes back, who writes which column, what becomes too old, and learners that die."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from stream_examples import Both, deliver, generated, group, scored, train

from penstock.core.errors import StreamError
from penstock.core.types import Group, Prompt, PromptKey
from penstock.stream import lag
from penstock.stream.enrichment import REFERENCE, REWARD, EnrichmentStep, changes
from penstock.stream.entry import Ticket
from penstock.stream.gate import MAX_FAILED_OWNERS, Gate
from penstock.stream.rules import Rules
from penstock.stream.staleness import PATIENCE
from penstock.stream.stream import Stream, Worker

VALUE = EnrichmentStep("value", ("tokens", "reward"))


def write(gate, ticket, step, before, after=None, owner="worker"):
    return gate.write(owner, ticket, step, changes(before, before if after is None else after))


def taken(by="worker"):
    """A gate with one group, whose reward a worker is writing; its ticket, and what the worker was given."""
    gate = Gate(Rules(1, enrichment=(REWARD,)))
    (ticket,) = deliver(gate, 1)
    return gate, ticket, gate.take(by, "reward")


def noted(before, **extras):
    return Group(before.prompt, tuple(replace(one, extras={**one.extras, **extras}) for one in before.samples))


# ---- groups that come back


def test_a_group_of_a_lost_generator_is_generated_again_under_a_higher_attempt():
    gate = Gate(Rules(2))
    gate.admit("first", 2)
    gate.release_owner("first")
    assert gate.admit("second", 5) == [Ticket(0, attempt=1), Ticket(1, attempt=1)]
    assert gate.stats.returned == 2


def test_a_group_that_is_generated_again_takes_no_new_slot():
    gate = Gate(Rules(2, max_lag=1))
    gate.admit("first", 2)
    gate.release_owner("first")
    assert [ticket.ordinal for ticket in gate.admit("second", 9)] == [0, 1, 2, 3]
    assert not gate.may_admit("g")


def test_only_the_groups_of_the_one_who_left_go_back():
    gate = Gate(Rules(2))
    gate.admit("first"), gate.admit("second")
    gate.release_owner("first")
    assert gate.admit("second", 9) == [Ticket(0, attempt=1)]


def test_a_finished_group_stays_when_its_generator_is_lost():
    gate = Gate(Rules(1))
    deliver(gate, 1, owner="first")
    gate.release_owner("first")
    assert not gate.may_admit("g")
    assert gate.lease(0).ordinals == (0,)


def test_a_group_that_is_generated_again_must_be_generated_by_the_version_published_by_then():
    gate = Gate(Rules(1, max_lag=1))
    tickets = gate.admit("first", 2)
    assert {ticket.min_version for ticket in tickets} == {0}
    gate.put("first", tickets[0], group(0))
    train(gate, 0)
    gate.release_owner("first")
    assert gate.admit("second", 1) == [Ticket(1, attempt=1, min_version=1)]


def test_a_late_group_of_an_earlier_attempt_is_refused_and_counted():
    gate = Gate(Rules(1))
    (lost,) = gate.admit("first")
    gate.release_owner("first")
    assert gate.put("first", lost, group(0)) is False
    (again,) = gate.admit("second")
    assert gate.put("first", lost, group(0)) is False
    assert gate.put("second", again, group(0)) is True
    assert gate.put("first", lost, group(0)) is False
    assert (gate.stats.refused, gate.stats.delivered) == (3, 1)


def test_a_group_on_which_workers_die_again_and_again_ends_the_run_with_its_name():
    gate = Gate(Rules(2))
    deliver(gate, 1)
    for life in range(MAX_FAILED_OWNERS):
        assert [ticket.ordinal for ticket in gate.admit(f"generator {life}")] == [1]
        gate.release_owner(f"generator {life}")
    expected = f"{MAX_FAILED_OWNERS} workers in a row died on the group of ordinal 1, the last one generator 9"
    with pytest.raises(StreamError, match=expected):
        gate.admit("generator")
    with pytest.raises(StreamError, match=expected):
        gate.lease(0)


def test_of_several_groups_that_were_there_at_every_death_all_are_named():
    gate = Gate(Rules(2))
    for _ in range(MAX_FAILED_OWNERS):
        gate.admit("generator", 2)
        gate.release_owner("generator")
    with pytest.raises(StreamError, match=r"10 workers in a row died on one of the groups of ordinals \[0, 1\]"):
        gate.lease(0)


def test_deaths_count_only_in_a_row():
    gate = Gate(Rules(1, enrichment=(REWARD,)))
    for _ in range(MAX_FAILED_OWNERS - 1):
        gate.admit("generator")
        gate.release_owner("generator")
    deliver(gate, 0)
    (ticket,) = gate.admit("generator")
    gate.put("generator", ticket, generated(0, [0]))
    gate.take("worker", "reward")
    gate.release_owner("worker")
    assert gate.lease(0) is None


def test_a_group_on_which_the_workers_of_a_step_die_is_named_too():
    gate = Gate(Rules(1, enrichment=(REWARD,)))
    deliver(gate, 1)
    for life in range(MAX_FAILED_OWNERS):
        gate.take(f"worker {life}", "reward")
        gate.release_owner(f"worker {life}")
    with pytest.raises(StreamError, match="10 workers in a row died on the group of ordinal 0, the last one worker 9"):
        gate.lease(0)


# ---- columns


def test_a_group_is_ready_once_its_column_is_written():
    gate = Gate(Rules(1, enrichment=(REWARD,)))
    (ticket,) = gate.admit("g")
    plain = generated(0, [0])
    gate.put("g", ticket, plain)
    assert gate.lease(0) is None
    assert gate.take("worker", "reward") == [(ticket, plain)]
    assert gate.lease(0) is None
    assert write(gate, ticket, "reward", plain, scored(plain, 3.0)) is True
    assert gate.lease(0).groups[0].samples[0].reward == 3.0


def test_a_stage_takes_groups_in_the_order_in_which_they_came():
    gate = Gate(Rules(3, enrichment=(REWARD,)))
    tickets = gate.admit("g", 3)
    for place in (2, 0, 1):
        gate.put("g", tickets[place], generated(place, [0]))
    assert [ticket.ordinal for ticket, _ in gate.take("one", "reward", 2)] == [2, 0]
    assert [ticket.ordinal for ticket, _ in gate.take("two", "reward", 2)] == [1]
    assert gate.take("two", "reward", 2) == []


def test_a_stage_waits_for_all_of_its_inputs():
    gate = Gate(Rules(1, enrichment=(REWARD, REFERENCE, VALUE)))
    ticket = deliver(gate, 1)[0]
    assert [bool(gate.enrichment.waiting(name)) for name in ("reward", "reference", "value")] == [True, True, False]
    ((_, plain),) = gate.take("worker", "reward")
    write(gate, ticket, "reward", plain, scored(plain, 2.0))
    ((_, rewarded),) = gate.take("critic", "value")
    assert rewarded.samples[0].reward == 2.0


def test_two_stages_work_on_a_group_at_once_and_both_columns_stay():
    gate = Gate(Rules(1, enrichment=(REWARD, REFERENCE)))
    ticket = deliver(gate, 1)[0]
    ((_, one),), ((_, two),) = gate.take("worker", "reward"), gate.take("worker", "reference")
    assert write(gate, ticket, "reference", two, noted(two, reference_logp=0.5)) is True
    assert gate.lease(0) is None
    assert write(gate, ticket, "reward", one, scored(one, 7.0)) is True
    (sample,) = gate.lease(0).groups[0].samples
    assert (sample.reward, sample.extras) == (7.0, {"reference_logp": 0.5})


def test_what_a_lost_worker_had_is_given_to_another_without_drawing_it_again():
    gate, ticket, given = taken("first")
    gate.release_owner("first")
    assert gate.admit("g", 9) == []
    assert gate.take("second", "reward") == given == [(ticket, given[0][1])]
    assert gate.stats.returned == 1


def test_a_late_column_of_a_lost_worker_is_refused():
    gate, ticket, _ = taken("first")
    gate.release_owner("first")
    assert gate.write("first", ticket, "reward", [{"error": "late"}]) is False
    assert gate.stats.refused == 1


def test_a_column_that_is_written_twice_is_refused():
    gate, ticket, _ = taken()
    assert [gate.write("worker", ticket, "reward", [{}]) for _ in range(2)] == [True, False]


def test_a_column_with_too_few_findings_is_refused_and_may_be_written_again():
    gate, ticket, _ = taken()
    with pytest.raises(StreamError, match="has 1 samples, but a step wrote about 0"):
        gate.write("worker", ticket, "reward", [])
    assert gate.lease(0) is None
    assert gate.write("worker", ticket, "reward", [{}]) is True
    assert gate.lease(0).ordinals == (0,)


def test_groups_without_signal_are_judged_once_all_columns_are_there():
    gate = Gate(Rules(1, dynamic_sampling=1, enrichment=(REWARD,), keep=lambda one: one.samples[0].reward != 0.0))
    (ticket,) = gate.admit("g")
    plain = generated(0, [0])
    gate.put("g", ticket, plain)
    gate.take("worker", "reward")
    assert not gate.may_admit("g")
    write(gate, ticket, "reward", plain, scored(plain, 0.0))
    assert gate.admit("g") == [Ticket(1)]


def test_an_unknown_stage_is_refused_with_those_there_are():
    with pytest.raises(StreamError, match=r"no step \"judge\"; the stream has \['reward'\]"):
        Gate(Rules(1, enrichment=(REWARD,))).take("worker", "judge")


def test_a_stage_whose_input_nobody_writes_is_refused():
    with pytest.raises(StreamError, match='step "value" needs reward; name the steps that write it before it'):
        Rules(1, enrichment=(VALUE, REWARD))


# ---- what becomes too old


def overtaken(on_stale, oversample=1, **rules):
    """A gate of single groups without lag: ordinal 0 is on its way, version 0 was trained on ordinal 1."""
    gate = Gate(Rules(1, on_stale=on_stale, oversample=oversample, **rules))
    slow, quick = gate.admit("g", 2)
    gate.put("g", quick, group(1))
    assert train(gate, 0).ordinals == (1,)
    return gate, slow


def test_oversampling_adds_slots():
    assert len(Gate(Rules(2, max_lag=1, on_stale="drop", oversample=3)).admit("g", 99)) == 7


def test_oversampling_needs_a_way_with_what_is_left_over():
    with pytest.raises(StreamError, match='set on_stale="drop" or "mask"'):
        Rules(2, oversample=1)


def test_drop_starts_a_finished_group_again_that_became_too_old():
    gate, slow = overtaken("drop")
    gate.put("g", slow, generated(0, [0, 0, 0]))
    assert gate.lease(1) is None
    assert gate.admit("g") == [Ticket(0, attempt=1, min_version=1)]
    assert (gate.stats.dropped, gate.stats.tokens_dropped) == (1, 3)


def test_drop_revokes_the_ticket_of_a_group_that_is_too_old_and_refuses_what_comes_of_it():
    gate, slow = overtaken("drop")
    assert gate.lease(1) is None
    assert gate.revoked == {"g": [slow]}
    assert gate.put("g", slow, group(0, 1)) is False
    assert (gate.stats.dropped, gate.stats.tokens_dropped, gate.stats.refused) == (1, 0, 1)


def test_a_worker_that_brings_a_revoked_group_need_not_hear_of_it_any_more():
    gate, slow = overtaken("drop")
    gate.lease(1)
    gate.put("g", slow, group(0, 1))
    assert gate.revoked == {"g": []}


def test_drop_revokes_the_tickets_of_a_step_s_worker_as_well():
    gate = Gate(Rules(1, on_stale="drop", oversample=1, enrichment=(REWARD,)))
    first, second = deliver(gate, 2)
    gate.take("worker", "reward", 2)
    gate.write("worker", first, "reward", [{}])
    train(gate, 0)
    assert gate.lease(1) is None
    assert gate.revoked == {"worker": [second]}
    assert gate.write("worker", second, "reward", [{}]) is False


def test_a_stale_group_that_no_worker_has_taken_is_not_offered_any_more():
    gate = Gate(Rules(1, on_stale="drop", oversample=1, enrichment=(REWARD,)))
    first, _ = deliver(gate, 2)
    gate.take("worker", "reward")
    gate.write("worker", first, "reward", [{}])
    train(gate, 0)
    assert gate.lease(1) is None
    assert not gate.enrichment.waiting("reward")


def test_what_was_revoked_from_a_lost_generator_is_forgotten():
    gate, _ = overtaken("drop")
    gate.lease(1)
    gate.release_owner("g")
    assert gate.revoked == {}


def test_drop_keeps_what_is_young_enough():
    gate, slow = overtaken("drop", max_lag=1)
    gate.put("g", slow, group(0, 0))
    assert gate.lease(1).ordinals == (0,)
    assert gate.stats.dropped == 0


def test_the_learner_waits_for_a_group_that_was_started_again_too_often():
    gate = Gate(Rules(1, on_stale="drop", oversample=1))
    slow = gate.admit("slow")[0]
    for version in range(PATIENCE):
        deliver(gate, 1, version, "quick")
        train(gate, version)
        assert gate.lease(version + 1) is None
        slow = gate.admit("slow")[0]
        assert slow == Ticket(0, version + 1, version + 1)
    deliver(gate, 1, PATIENCE, "quick")
    assert gate.lease(PATIENCE) is None
    gate.put("slow", slow, group(0, PATIENCE))
    assert gate.lease(PATIENCE).ordinals == (0,)


def test_mask_masks_the_tokens_that_are_too_old_and_trains_the_others():
    gate, slow = overtaken("mask")
    gate.put("g", slow, generated(0, [0, 0, 1]))
    lease = gate.lease(1)
    assert lease.groups[0].samples[0].action_T.tolist() == [False, False, False, True]
    assert gate.stats.tokens_masked == 2
    assert gate.stats.largest_lag == 0


def test_mask_lets_a_group_go_on_that_is_being_drawn():
    gate, _ = overtaken("mask")
    assert gate.lease(1) is None
    assert (gate.revoked, gate.stats.dropped) == ({}, 0)


def test_mask_starts_a_group_again_of_which_nothing_is_left():
    gate, slow = overtaken("mask")
    gate.put("g", slow, generated(0, [0, 0]))
    assert gate.lease(1) is None
    assert gate.admit("g") == [Ticket(0, attempt=1, min_version=1)]
    assert (gate.stats.dropped, gate.stats.tokens_dropped, gate.stats.tokens_masked) == (1, 2, 0)


def test_a_group_without_actions_is_never_too_old():
    gate, slow = overtaken("mask")
    gate.put("g", slow, generated(0, []))
    assert gate.lease(1).ordinals == (0,)


def test_wait_trains_stragglers_in_their_turn():
    gate = Gate(Rules(1, max_lag=1))
    slow, quick = gate.admit("g", 2)
    gate.put("g", quick, group(1))
    assert gate.lease(0) is None
    gate.put("g", slow, group(0))
    assert [train(gate, version).ordinals for version in range(2)] == [(0,), (1,)]


# ---- whom a wait is waiting for


async def test_a_learner_that_waits_too_long_names_who_works_on_what():
    stream = Stream(Rules(3, enrichment=(REWARD,)), deadline=0.01)
    first, second, _ = stream.gate.admit("generator 1", 3)
    stream.gate.put("generator 1", first, generated(0, [0]))
    stream.gate.put("generator 1", second, generated(1, [0]))
    stream.gate.take("math worker", "reward")
    with pytest.raises(StreamError) as error:
        await stream.lease(0)
    assert "for 3 groups from the rollout; 0 groups are ready, 3 in flight (ordinals [0, 1, 2]…)" in str(error.value)
    assert str(error.value).endswith("with generator 1 (tokens), math worker (reward)")


async def test_a_worker_for_which_there_is_nothing_to_do_is_told_so_after_the_deadline():
    worker = Worker(Stream(Rules(1, enrichment=(REWARD,)), deadline=0.01), "worker")
    assert (await worker.take("reward"), await worker.revoked()) == ([], [])


def test_groups_that_nobody_works_on_are_named_by_their_ordinals_alone():
    gate = Gate(Rules(2))
    gate.admit("g", 1)
    gate.release_owner("g")
    assert gate.describe() == "0 groups are ready, 1 in flight (ordinals [0]…)"


# ---- what belongs to another


def test_a_group_is_delivered_by_the_worker_that_was_admitted_alone():
    gate = Gate(Rules(1))
    (ticket,) = gate.admit("g")
    assert gate.put("another", ticket, group(0)) is False
    assert gate.put("g", ticket, group(0)) is True


def test_a_column_is_written_by_the_worker_that_took_the_group_alone():
    gate, ticket, _ = taken()
    assert gate.write("another", ticket, "reward", [{}]) is False
    assert gate.write("worker", ticket, "reward", [{}]) is True


# ---- how much it reads


@pytest.mark.parametrize("on_stale", ["drop", "mask"])
def test_a_learner_that_is_woken_by_every_group_reads_each_groups_tokens_once(on_stale, monkeypatch):
    """256 groups of 16 samples of 8,192 tokens: what was read again at every delivery held the hub for 75 s a batch."""
    reads = []
    monkeypatch.setattr(lag, "_action_versions", lambda samples: reads.append(samples) or np.zeros(1, np.int32))
    monkeypatch.setattr(lag, "_masked", lambda sample, oldest: reads.append(sample))
    count, long = 256, generated(0, [0] * 8192).samples[0].scored(1.0)
    gate = Gate(Rules(count, max_lag=1, on_stale=on_stale))
    for ticket in gate.admit("g", count):
        key = PromptKey("test", 0, ticket.ordinal)
        assert gate.lease(0) is None
        gate.put("g", ticket, Group(Prompt(key, ""), (long,) * 16))
    assert len(gate.lease(0).groups) == count
    assert len(reads) == count


# ---- the same with waiting


async def test_a_generator_hears_of_revoked_tickets_as_soon_as_there_are_some():
    stream = Both(Rules(1, on_stale="drop", oversample=1))
    slow, quick = await stream.admit(2)
    hearing = asyncio.create_task(stream.worker.revoked())
    await stream.put(quick, group(1))
    await stream.train(0)
    leasing = asyncio.create_task(stream.lease(1))
    heard = await asyncio.wait_for(hearing, 5)
    leasing.cancel()
    assert heard == [slow]


async def test_a_group_that_became_too_old_is_generated_again_by_a_worker_that_waits_for_a_ticket():
    stream = Both(Rules(1, on_stale="drop", oversample=1))
    await stream.as_owner("slow").admit()
    (quick,) = await stream.admit()
    await stream.put(quick, group(1))
    await stream.train(0)
    leasing = asyncio.create_task(stream.lease(1))
    assert await stream.admit() == [Ticket(2, min_version=1)]
    again = await stream.admit()
    leasing.cancel()
    assert again == [Ticket(0, attempt=1, min_version=1)]


async def test_what_a_lost_worker_had_wakes_those_that_wait_for_it():
    stream = Both(Rules(1, enrichment=(REWARD,)))
    first, second = stream.as_owner("first"), stream.as_owner("second")
    await first.admit()
    admitting = asyncio.create_task(second.admit())
    await asyncio.sleep(0)
    await first.leave()
    (ticket,) = await admitting
    await second.put(ticket, generated(0, [0]))
    first, second = stream.as_owner("first worker"), stream.as_owner("second worker")
    await first.take("reward")
    taking = asyncio.create_task(second.take("reward"))
    await asyncio.sleep(0)
    await first.leave()
    assert ticket.attempt == 1
    assert [ticket.ordinal for ticket, _ in await taking] == [0]

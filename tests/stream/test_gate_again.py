"""Batches that are trained on again: groups within their uses, and leases of a learner that died."""

import pytest
from stream_examples import deliver, train

from penstock.core.errors import StreamError
from penstock.stream.entry import Ticket
from penstock.stream.gate import Gate
from penstock.stream.rules import Rules


def test_a_group_is_in_as_many_batches_as_max_uses_says():
    gate, batches = Gate(Rules(2, max_lag=1, max_uses=2)), []
    for version, count in enumerate((2, 1, 1, 1)):
        deliver(gate, count, version)
        lease = train(gate, version)
        batches.append((lease.ordinals, tuple(old.key.ordinal for old in lease.reused)))
    assert batches == [((0, 1), ()), ((2,), (0,)), ((3,), (2,)), ((4,), (3,))]


def test_a_group_that_is_too_old_is_not_trained_on_again():
    gate = Gate(Rules(2, max_lag=1, max_uses=2))
    deliver(gate, 2, version=0)
    train(gate, 0)
    deliver(gate, 1, version=1)
    assert [old.key.ordinal for old in train(gate, 1).reused] == [0]
    deliver(gate, 1, version=2)
    assert [old.key.ordinal for old in train(gate, 2).reused] == [2]  # 1 was in one batch only, but is two versions old


def test_reuse_beyond_the_bound_is_refused():
    with pytest.raises(StreamError, match="max_uses=3: a group is young enough for 2 batches"):
        Rules(2, max_lag=1, max_uses=3)


def contents(lease):
    return lease.number, lease.version, lease.ordinals, lease.filtered, lease.groups, lease.reused


def test_leases_after_the_checkpoint_come_again_as_they_were_and_in_order():
    gate = Gate(Rules(2, max_lag=2, on_stale="drop", max_uses=2))
    saved = gate.ledger.values()
    first = []
    for version in range(3):
        deliver(gate, gate.free, version)
        first.append(contents(train(gate, version)))
    gate.restore(saved)
    assert [contents(train(gate, version)) for version in range(3)] == first


@pytest.mark.parametrize("released", [False, True])
def test_slots_of_a_batch_that_is_trained_twice_open_once(released):
    gate = Gate(Rules(2, max_lag=1))
    saved = gate.ledger.values()
    deliver(gate, 4)
    lease = gate.lease(0)
    if released:
        gate.release(lease.number)
    assert gate.free == 2 * released
    gate.restore(saved)
    assert gate.free == 2 * released
    train(gate, 0)
    assert gate.free == 2


def test_slots_of_a_batch_that_was_saved_open_though_its_learner_died_before_it_could_say_so():
    gate = Gate(Rules(2))
    deliver(gate, 2)
    gate.restore(gate.lease(0).ledger)
    assert gate.free == 2
    assert gate.admit("g")[0] == Ticket(2, min_version=1)


def test_a_learner_that_asks_with_another_version_is_refused_and_nothing_is_lost():
    gate = Gate(Rules(1, max_lag=1))
    saved = gate.ledger.values()
    deliver(gate, 2)
    train(gate, 0)
    gate.restore(saved)
    with pytest.raises(StreamError, match="a learner of version 1 asked for the batch that version 0 was trained on"):
        gate.lease(1)
    assert gate.lease(0).ordinals == (0,)


def test_a_batch_that_was_trained_while_a_checkpoint_was_written_is_kept():
    gate = Gate(Rules(1))
    deliver(gate, 1)
    first = train(gate, 0)
    deliver(gate, 1, version=1)
    second = gate.lease(1)
    assert second is not None
    gate.release(second.number, saved=1)
    gate.restore(first.ledger)
    again = gate.lease(1)
    assert again is not None
    assert again.number == second.number


def test_a_checkpoint_older_than_what_was_forgotten_is_refused():
    gate = Gate(Rules(1))
    saved = gate.ledger.values()
    deliver(gate, 1)
    gate.release(gate.lease(0).number, saved=1)
    with pytest.raises(
        StreamError, match=r"goes on from version 0, but batches up to version 1 are durable .*newest checkpoint"
    ):
        gate.restore(saved)


def test_what_is_published_never_goes_back():
    """Generators hold version 1 already, so that whoever is admitted can begin with it."""
    gate = Gate(Rules(1, max_lag=1))
    saved = gate.ledger.values()
    deliver(gate, 2)
    train(gate, 0)
    gate.restore(saved)
    assert gate.admit("g") == [Ticket(2, min_version=1)]

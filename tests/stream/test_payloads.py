"""Cards and payloads: what the gate sees of a group, and that the whole comes back bit for bit."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from flow_examples import deliver, drawn, scored

from penstock.core.errors import StreamError
from penstock.core.types import Prompt
from penstock.net.wire import pack
from penstock.stream.columns import changes, masked, merged
from penstock.stream.gate import Gate
from penstock.stream.payloads import (
    CARRIED,
    PayloadGone,
    Payloads,
    card_of,
    framed,
    row_of,
    rows_of,
    ticket_of,
    unframed,
    whole,
)
from penstock.stream.rules import Rules, Ticket

TICKET = Ticket(7, 2, 5)


class Held:
    """Rows in memory."""

    def __init__(self):
        self.rows = {}

    async def put(self, key, frame):
        self.rows[key] = frame.copy()

    async def get(self, keys):
        return {key: self.rows[key] for key in keys if key in self.rows}


def rich(ordinal=7):
    """A group with everything that can travel."""
    made = drawn(ordinal, [3, 3, 4], [4])
    samples = [
        replace(one, text=f"said {place}", extras={"greedy": place == 1, "scores": np.arange(3.0) + place})
        for place, one in enumerate(made.samples)
    ]
    prompt = Prompt(made.key, "what?", ({"role": "user", "content": "what?"},), {"answer": 42, "image": b"\x00\x01"})
    return replace(made, prompt=prompt, samples=tuple(samples), origin="generator-0 #3")


def same(one, other):
    return [bytes(part) for part in pack(one)] == [bytes(part) for part in pack(other)]


def test_a_group_comes_back_bit_for_bit():
    group = rich()
    assert same(whole(card_of(group, "7.2"), {"7.2": unframed(framed(group))}), group)


def test_a_card_holds_what_the_gate_decides_by_and_nothing_that_is_large():
    group = scored(rich(), 1.0, 0.5)
    card = card_of(group, "7.2")
    assert [one.reward for one in card.samples] == [1.0, 0.5]
    assert card.oldest_version == 3
    assert card.key == group.key
    assert (card.prompt.text, card.prompt.columns, card.samples[0].text) == ("", {}, "")
    assert [len(one.tokens_T) + len(one.logp_T) for one in card.samples] == [0, 0]
    assert card.samples[1].extras == {"greedy": True}
    assert rows_of(card) == {"tokens": "7.2"}


def test_tokens_that_the_gate_masked_stay_masked():
    card = masked(card_of(rich(), "r"), oldest=4)
    found = whole(card, {"r": rich()})
    assert [list(one.action_T) for one in found.samples] == [[False, False, False, True], [False, True]]
    assert list(found.samples[0].version_T) == [-1, 3, 3, 4]


def test_what_a_stage_found_comes_back_with_the_group():
    async def take():
        payloads, group = Payloads(Held()), rich()
        card = await payloads.away(TICKET, group)
        column = {"reference_T": np.full(4, 0.5, np.float32)}
        samples = tuple(replace(one, extras=one.extras | column) for one in scored(group, 1.0, 0.25).samples)
        after = replace(group, samples=samples)
        found = await payloads.changed(TICKET, "reference", changes(group, after))
        assert all("reference_T" not in change["extras"] for change in found)
        return await payloads.back([merged(card, found)]), after, payloads.rows.rows

    (got,), after, rows = asyncio.run(take())
    assert same(got, after)
    assert sorted(rows) == ["7.2", "7.2/reference"]


def test_findings_without_arrays_need_no_row():
    async def take():
        payloads, group = Payloads(Held()), drawn(0, [1])
        found = await payloads.changed(TICKET, "reward", changes(group, scored(group, 1.0)))
        return found, payloads.rows.rows

    (change,), rows = asyncio.run(take())
    assert rows == {}
    assert change["reward_T"].tolist() == [0.0, 1.0]


def test_rows_that_are_gone_are_named():
    async def take():
        payloads = Payloads(Held())
        cards = [await payloads.away(Ticket(ordinal), drawn(ordinal, [0])) for ordinal in (0, 1)]
        del payloads.rows.rows["1.0"]
        await payloads.back(cards)

    with pytest.raises(PayloadGone, match=r"1 payloads are gone, 1\.0 among them") as caught:
        asyncio.run(take())
    assert caught.value.rows == {"1.0"}


def test_without_rows_groups_travel_whole():
    async def take():
        group = rich()
        return group, await CARRIED.away(TICKET, group), await CARRIED.back([group])

    group, sent, (back,) = asyncio.run(take())
    assert sent is group
    assert back is group


def test_arrays_of_a_payload_are_their_own_memory_and_may_be_written():
    frame = framed({"odd": np.zeros(3, np.uint8), "whole": np.arange(4)})
    value = unframed(frame)
    value["whole"][0] = 9
    assert value["whole"].flags.aligned
    assert unframed(frame)["whole"][0] == 0


def test_a_payload_that_came_back_short_is_refused():
    with pytest.raises(StreamError, match="bytes came back where"):
        unframed(framed({"a": np.zeros(9)})[:-1])


@pytest.mark.parametrize("row", ["7.2", "7.2/reference"])
def test_a_row_names_the_ticket_it_is_of(row):
    assert row_of(TICKET) == "7.2"
    assert ticket_of(row) == Ticket(7, 2)


# ---- the gate, when what was stored is gone


def gone(*ordinals):
    return lambda group: group.key.ordinal in ordinals


def test_a_lost_group_is_drawn_again_under_another_attempt():
    gate = Gate(Rules(2))
    deliver(gate, 2)
    assert gate.lost(Ticket(1))
    assert gate.admit("h") == [Ticket(1, 1)]
    assert gate.stats.returned == 1


def test_a_group_that_was_started_again_already_is_not_lost_twice():
    gate = Gate(Rules(2))
    deliver(gate, 2)
    gate.lost(Ticket(1))
    assert not gate.lost(Ticket(1))


def test_a_batch_given_back_comes_again_with_only_the_lost_group_drawn_anew():
    gate = Gate(Rules(2, max_lag=1))
    deliver(gate, 4)
    first = gate.lease(0)
    gate.give_back(first, gone(1))
    assert gate.lease(0) is None
    (ticket,) = gate.admit("h", 4)
    assert ticket == Ticket(1, 1)
    again = scored(drawn(1, [0, 0]), 1.0)
    assert gate.put(ticket, again)
    lease = gate.lease(0)
    assert lease.ordinals == (0, 1)
    assert lease.groups[0] is first.groups[0]
    assert lease.groups[1] is again


def test_a_batch_given_back_opens_no_slot():
    gate = Gate(Rules(2))
    deliver(gate, 2)
    gate.give_back(gate.lease(0), gone())
    assert not gate.open
    assert gate.lease(0).ordinals == (0, 1)


def test_a_batch_that_older_weights_were_trained_on_cannot_be_drawn_again():
    gate = Gate(Rules(1, max_lag=1))
    deliver(gate, 1)
    before = gate.ledger.state()
    lease = gate.lease(0)
    gate.trained(lease)
    gate.release(lease)
    gate.restore(before)
    with pytest.raises(StreamError, match="version 1 is published; resume the run from its newest checkpoint"):
        gate.give_back(gate.lease(0), gone(0))


def test_a_trained_group_whose_payload_is_gone_is_in_no_batch_again():
    gate = Gate(Rules(2, max_lag=1, reuse=2))
    deliver(gate, 2)
    first = gate.lease(0)
    gate.trained(first)
    gate.release(first)
    deliver(gate, 1, version=1)
    second = gate.lease(1)
    assert (second.ordinals, [group.key.ordinal for group in second.again]) == ((2,), [0])
    gate.give_back(second, gone(0))
    third = gate.lease(1)
    assert (third.ordinals, [group.key.ordinal for group in third.again]) == ((2,), [1])


def test_what_a_checkpoint_holds_is_needed_no_more():
    gate = Gate(Rules(1, max_lag=1))
    deliver(gate, 2)
    lease = gate.lease(0)
    gate.trained(lease)
    gate.release(lease)
    assert sorted(group.key.ordinal for group in gate.held()) == [0, 1]
    gate.acknowledge()
    assert [group.key.ordinal for group in gate.held()] == [1]

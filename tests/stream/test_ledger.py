"""Which ordinals are trained, in little room."""

import json

from hypothesis import given
from hypothesis import strategies as st

from penstock.stream.gate import Ledger


def ledger_of(*ordinals, version=1):
    ledger = Ledger()
    ledger.add(ordinals, version)
    return ledger


def test_what_was_added_is_in_it():
    ledger = ledger_of(0, 2)
    assert [ordinal in ledger for ordinal in range(4)] == [True, False, True, False]


def test_the_floor_rises_over_what_is_without_a_gap():
    ledger = ledger_of(0, 1, 3)
    assert (ledger.floor, ledger.above) == (2, {3})
    ledger.add([2], 2)
    assert (ledger.floor, ledger.above, ledger.version) == (4, set(), 2)


@given(st.permutations(range(12)), st.integers(0, 12))
def test_it_knows_the_same_in_whatever_order_ordinals_come(ordinals, count):
    ledger = Ledger()
    for version, ordinal in enumerate(ordinals[:count]):
        ledger.add([ordinal], version + 1)
    assert {ordinal for ordinal in range(12) if ordinal in ledger} == set(ordinals[:count])
    assert ledger.version == count


@given(st.sets(st.integers(0, 20)), st.integers(0, 9))
def test_a_state_that_went_through_json_makes_the_same_ledger(ordinals, version):
    ledger = ledger_of(*ordinals, version=version)
    loaded = Ledger(json.loads(json.dumps(ledger.values())))
    assert (loaded.floor, loaded.above, loaded.version) == (ledger.floor, ledger.above, version)


def test_a_state_does_not_change_with_its_ledger():
    ledger = ledger_of(1)
    values = ledger.values()
    ledger.add([0, 5], 2)
    assert values == {"floor": 0, "trained": [1], "version": 1}

"""The packing gives back exactly the rows that went in, under its budget, with little waste."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.contracts import Batch, Denominator
from penstock.core.errors import DataError
from penstock.core.types import Row
from penstock.models.packing import lay_out, shared_prefix
from penstock.train.learner import by_row


def row(tokens, actions=(), **fields):
    action_T = np.zeros(len(tokens), np.bool_)
    action_T[list(actions)] = True
    return Row({"tokens_T": np.array(tokens, np.int32)}, action_T, fields)


def units_of(seed):
    """Up to six units of up to four ragged rows, which begin alike, with few different tokens and random actions."""
    rng = np.random.default_rng(seed)

    def made(prefix):
        tokens = [*prefix, *rng.integers(0, 4, rng.integers(0 if len(prefix) else 1, 9))]
        actions = [t for t in range(1, len(tokens)) if rng.random() < 0.5]
        number = int(rng.integers(0, 1000))
        return row(tokens, actions, advantage=float(number), logp=np.arange(len(actions), dtype=np.float32) + number)

    def unit():
        prefix = rng.integers(0, 4, rng.integers(0, 7))
        return tuple(made(prefix) for _ in range(rng.integers(1, 5)))

    return [unit() for _ in range(rng.integers(1, 7))]


LAYOUTS = (st.integers(0, 1 << 30).map(units_of), st.integers(1, 40), st.booleans())


def flat(units):
    return [row for unit in units for row in unit]


@given(*LAYOUTS)
def test_gathering_gives_every_row_its_tokens_and_positions(units, budget, share):
    for batch in lay_out(units, budget, share):
        for b, row_id in enumerate(batch.row_ids):
            own, length = flat(units)[row_id], batch.length_B[b]
            cells_T = batch.gather_BT[b]
            assert batch.tokens_N[cells_T[:length]].tolist() == own.tokens_T.tolist()
            assert batch.position_N[cells_T[:length]].tolist() == list(range(length))
            assert (cells_T[length:] == cells_T[length - 1]).all()
            assert batch.last_B[b] == cells_T[length - 1]


@given(*LAYOUTS)
def test_scattering_undoes_gathering(units, budget, share):
    for batch in lay_out(units, budget, share):
        assert batch.gather_BT.reshape(-1)[batch.scatter_N].tolist() == list(range(len(batch.tokens_N)))


@given(*LAYOUTS)
def test_shared_tokens_are_read_from_the_first_row_of_their_unit(units, budget, share):
    for batch in lay_out(units, budget, share):
        row_N = batch.scatter_N // batch.gather_BT.shape[1]
        for n, b in enumerate(row_N):
            users = np.flatnonzero((batch.gather_BT == n).any(1))
            assert b == users[0]
            assert len({int(batch.unit_B[user]) for user in users}) == 1


@given(*LAYOUTS)
def test_each_action_is_predicted_by_the_token_before_it(units, budget, share):
    for batch in lay_out(units, budget, share):
        expected = [
            (b, int(own.tokens_T[t]), int(batch.gather_BT[b, t - 1]))
            for b, own in enumerate(flat(units)[row_id] for row_id in batch.row_ids)
            for t in np.flatnonzero(own.action_T)
        ]
        found = zip(batch.row_A.tolist(), batch.target_A.tolist(), batch.source_A.tolist(), strict=True)
        assert list(found) == expected


@given(*LAYOUTS)
def test_actions_are_never_shared(units, budget, share):
    for batch in lay_out(units, budget, share):
        uses_N = np.bincount(
            np.concatenate([cells[:n] for cells, n in zip(batch.gather_BT, batch.length_B, strict=True)]),
            minlength=len(batch.tokens_N),
        )
        for b, row_id in enumerate(batch.row_ids):
            action_cells = batch.gather_BT[b, np.flatnonzero(flat(units)[row_id].action_T)]
            assert (uses_N[action_cells] == 1).all()
            assert uses_N[batch.last_B[b]] == 1


@given(*LAYOUTS)
def test_a_unit_is_never_split_and_keeps_its_order(units, budget, share):
    batches = lay_out(units, budget, share)
    ends = np.cumsum([len(unit) for unit in units])
    placed = [row_id for batch in batches for row_id in batch.row_ids]
    assert sorted(placed) == list(range(ends[-1]))
    for batch in batches:
        unit_ids = np.searchsorted(ends, batch.row_ids, side="right")
        assert batch.unit_B.tolist() == np.cumsum(np.diff(unit_ids, prepend=unit_ids[0]) != 0).tolist()
        for unit_id in set(unit_ids.tolist()):
            held = [row_id for row_id, u in zip(batch.row_ids, unit_ids, strict=True) if u == unit_id]
            assert held == list(range(ends[unit_id] - len(units[unit_id]), ends[unit_id]))


@given(*LAYOUTS)
def test_the_budget_holds_unless_a_single_unit_is_longer(units, budget, share):
    for batch in lay_out(units, budget, share):
        assert len(batch.tokens_N) <= budget or batch.unit_B[-1] == 0


@given(*LAYOUTS)
def test_uncoupled_rows_hold_the_budget_unless_one_row_is_longer(units, budget, share):
    batches = lay_out(units, budget, share, coupled=False)
    assert sorted(row_id for batch in batches for row_id in batch.row_ids) == list(range(len(flat(units))))
    for batch in batches:
        assert len(batch.tokens_N) <= budget or len(batch.row_ids) == 1
        for b, row_id in enumerate(batch.row_ids):
            assert batch.tokens_N[batch.gather_BT[b, : batch.length_B[b]]].tolist() == flat(units)[row_id].tokens_T.tolist()


def test_parts_of_a_group_repeat_its_prompt():
    """5 rows of 4 tokens on a prompt of 6, budget 14: 6 + 2 · 4 tokens, twice, and a row by itself."""
    unit = tuple(row([9] * 6 + [i] * 4, range(6, 10)) for i in range(5))
    batches = lay_out([unit], 14, True, coupled=False)
    assert [(len(batch.tokens_N), batch.row_ids) for batch in batches] == [(14, (0, 1)), (14, (2, 3)), (10, (4,))]
    assert [len(batch.tokens_N) for batch in lay_out([unit], 14, True)] == [26]


@given(*LAYOUTS)
def test_fields_and_results_come_back_in_input_order(units, budget, share):
    batches = lay_out(units, budget, share)
    numbers = ({"logp": b.fields["logp"], "score": b.fields["advantage"]} for b in batches)
    found = by_row(units, batches, frozenset({"logp", "score"}), frozenset({"score"}), numbers)
    assert [values.tolist() for values in found["logp"]] == [own.fields["logp"].tolist() for own in flat(units)]
    assert found["score"] == [own.fields["advantage"] for own in flat(units)]


@given(*LAYOUTS)
def test_counts_add_up_over_micro_batches(units, budget, share):
    batches = lay_out(units, budget, share)
    sums = Denominator(
        tokens=sum(len(batch.target_A) for batch in batches),
        rows=sum(len(batch.length_B) for batch in batches),
        units=sum(int(batch.unit_B[-1]) + 1 for batch in batches),
    )
    assert Denominator.of(units) == sums


def test_a_layout_by_hand():
    unit = (row([7, 8, 1, 2], [2, 3], w=1.0), row([7, 8, 3], [2], w=2.0))
    (batch,) = lay_out([unit], 100, share_prefix=True)
    assert batch.tokens_N.tolist() == [7, 8, 1, 2, 3]
    assert batch.position_N.tolist() == [0, 1, 2, 3, 2]
    assert batch.gather_BT.tolist() == [[0, 1, 2, 3], [0, 1, 4, 4]]
    assert batch.scatter_N.tolist() == [0, 1, 2, 3, 6]
    assert batch.length_B.tolist() == [4, 3]
    assert batch.source_A.tolist() == [1, 2, 1]
    assert batch.target_A.tolist() == [1, 2, 3]
    assert batch.row_A.tolist() == [0, 0, 1]
    assert batch.last_B.tolist() == [3, 4]
    assert batch.unit_B.tolist() == [0, 0]
    assert batch.fields["w"].tolist() == [1.0, 2.0]
    integers = [getattr(batch, name) for name in Batch.__annotations__ if name not in ("fields", "row_ids")]
    assert {array.dtype for array in integers} == {np.dtype(np.int32)}
    assert batch.fields["w"].dtype == np.float32


def test_without_sharing_every_row_stands_for_itself():
    (batch,) = lay_out([(row([7, 8, 1], [2]), row([7, 8, 3], [2]))], 100, share_prefix=False)
    assert batch.tokens_N.tolist() == [7, 8, 1, 7, 8, 3]


@pytest.mark.parametrize(
    ("unit", "length"),
    [
        ((row([1, 2, 3], [2]), row([1, 2, 4], [2])), 2),
        ((row([1, 2, 3], [2]), row([1, 2, 3], [2])), 2),  # equal actions are still each row's own
        ((row([1, 2, 3], [1, 2]), row([1, 2, 3], [2])), 1),  # an action of any row ends the prefix of all
        ((row([1, 2, 3]), row([1, 2, 3])), 2),  # every row keeps its last token
        ((row([1, 2]), row([1, 2, 3])), 1),
        ((row([1]), row([1, 2])), 0),
        ((row([1, 2]), row([2, 2])), 0),
        ((row([1, 2, 3]),), 0),
    ],
)
def test_the_shared_prefix_ends_where_rows_part_or_act(unit, length):
    assert shared_prefix(unit) == length


def test_nothing_to_lay_out_is_no_batch():
    assert lay_out([], 100, True) == []


def test_rows_without_actions_are_laid_out():
    (batch,) = lay_out([(row([1, 2, 3]),)], 100, True)
    assert batch.source_A.shape == batch.target_A.shape == (0,)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([row([1, 2], [0])], "row 0: its first token is an action"),
        ([row([1], []), row([])], "row 1: 0 tokens"),
        ([Row({"tokens_T": np.array([1, 2], np.int32)}, np.zeros(3, np.bool_))], "2 tokens and 3 action marks"),
        ([row([1, 2], [1], w=1.0), row([1, 2], [1])], "row 1: .* w is not in every row"),
        ([row([1, 2], [1], w=1.0), row([1, 2], [1], w=np.ones(1))], 'row 1: field "w" is a number in some'),
        ([row([1, 2, 3], [1, 2], w=np.ones(3))], 'row 0: field "w" has 3 entries for 2 action tokens'),
    ],
)
def test_a_malformed_row_is_refused_by_name(rows, says):
    with pytest.raises(DataError, match=says):
        lay_out([(item,) for item in rows], 100, True)


def test_a_unit_without_rows_is_refused():
    with pytest.raises(DataError, match="no rows"):
        lay_out([()], 100, True)


def test_fields_over_actions_may_have_further_axes():
    one, two = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(3, dtype=np.float32).reshape(1, 3)
    (batch,) = lay_out([(row([1, 2, 3], [1, 2], noise=one), row([1, 2], [1], noise=two))], 100, True)
    assert batch.fields["noise"].tolist() == [*one.tolist(), *two.tolist()]
    with pytest.raises(DataError, match="its axes differ"):
        lay_out([(row([1, 2], [1], noise=one[:1]), row([1, 2], [1], noise=two[:, :2]))], 100, True)


LENGTHS = np.random.default_rng(0).lognormal(mean=(4.0, 4.1), sigma=(0.40, 0.47), size=(7000, 2)).astype(int) + 1
"""Tokens of a prompt and of a completion, as grade-school word problems have them."""


def samples(generator, lengths, group):
    prompt, completion = lengths
    tokens = generator.integers(0, 1000, prompt)
    sizes = np.maximum(1, (completion * generator.uniform(0.8, 1.2, group)).astype(int))
    return tuple(row([*tokens, *generator.integers(0, 1000, size)], range(prompt, prompt + size)) for size in sizes)


@pytest.mark.parametrize("units", [64, 96, 128])
def test_micro_batches_are_filled_whatever_the_lengths_of_their_rows(units):
    """Each has no room for the next row: no more of them than the tokens need, but for the end of the last."""
    generator = np.random.default_rng(units)
    chosen = [samples(generator, lengths, 1) for lengths in generator.permutation(LENGTHS)[:units]]
    sizes = [len(batch.tokens_N) for batch in lay_out(chosen, 4096, True)]
    longest = max(len(item.tokens_T) for (item,) in chosen)
    assert all(4096 - longest < size <= 4096 for size in sizes[:-1])
    assert sum(sizes) == sum(len(item.tokens_T) for (item,) in chosen)


def test_prompts_of_groups_are_packed_once():
    generator = np.random.default_rng(0)
    chosen = generator.permutation(LENGTHS)[:64]
    batches = lay_out([samples(generator, lengths, 8) for lengths in chosen], 4096, True)
    assert sum(len(batch.tokens_N) for batch in batches) < 0.7 * sum(int(batch.length_B.sum()) for batch in batches)

"""Rows that are several sequences: each is read by itself, all are one row to a loss."""

import numpy as np
import pytest

import tiny_models
from penstock.core.types import PART, Row
from penstock.models.language_policy import LanguagePolicy
from penstock.models.packing import lay_out
from penstock.train.learner import Scoring

LOGP = frozenset({"logp"})


def row(*parts, fields=None):
    """A row of parts ``(tokens, actions at the end)``."""
    tokens_T = np.concatenate([tokens for tokens, _ in parts]).astype(np.int32)
    action_T = np.concatenate([np.arange(len(tokens)) >= len(tokens) - actions for tokens, actions in parts])
    part_T = np.repeat(np.arange(len(parts), dtype=np.int32), [len(tokens) for tokens, _ in parts])
    columns = {"tokens_T": tokens_T, PART: part_T} if len(parts) > 1 else {"tokens_T": tokens_T}
    return Row(columns, action_T, fields or {})


def drawn(seed, length):
    return tiny_models.tokens(np.random.default_rng(seed), length)


@pytest.fixture
def scored(tiny):
    policy = LanguagePolicy(tiny())
    return lambda units: Scoring(policy).score(units, LOGP)["logp"]


def test_each_sequence_is_read_by_itself(scored):
    one, two = (drawn(1, 9), 3), (drawn(2, 12), 4)
    apart = np.concatenate([scored([(row(part),)])[0] for part in (one, two)])
    np.testing.assert_allclose(scored([(row(one, two),)])[0], apart, atol=1e-5)


def test_what_siblings_share_may_be_computed_once(scored):
    begin = drawn(3, 6)
    parts = [(np.concatenate([begin, drawn(seed, 5)]), 3) for seed in range(4)]
    apart = [scored([(row(part),)])[0] for part in parts]
    found = scored([(row(*parts[:3]), row(parts[3]))])
    np.testing.assert_allclose(np.concatenate(found), np.concatenate(apart), atol=1e-5)


def test_a_sequence_without_actions_is_not_read():
    whole = row((drawn(1, 9), 0), (drawn(2, 12), 4))
    (batch,) = lay_out([(whole,)], 1000, True)
    assert len(batch.tokens_N) == 12


def test_fields_and_rows_are_those_of_the_whole():
    fields = {"advantage": np.arange(7, dtype=np.float32), "coefficient": 2.0}
    more = {"advantage": np.ones(2, np.float32), "coefficient": 3.0}
    units = [(row((drawn(1, 9), 3), (drawn(2, 12), 4), fields=fields),), (row((drawn(4, 5), 2), fields=more),)]
    (batch,) = lay_out(units, 1000, True)
    assert batch.row_A.tolist() == [0] * 7 + [1] * 2
    assert batch.unit_B.tolist() == [0, 1]
    assert batch.fields["coefficient"].tolist() == [2.0, 3.0]
    assert batch.tokens_N[batch.last_B].tolist() == [drawn(2, 12)[-1], drawn(4, 5)[-1]]

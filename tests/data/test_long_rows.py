"""Rows that are too long are refused, dropped or truncated as the spec says, and counted."""

import json

import numpy as np
import pytest

from penstock.algos import DPO, ILQL, SFT, BradleyTerry
from penstock.config.parts import DataSpec, Drop, Refuse, Truncate
from penstock.core.errors import DataError, SpecError
from penstock.data.units import Units, prompts_of

ROWS = [{"prompt": "a" * 4, "completion": "b" * length, "label": index} for index, length in enumerate((3, 20, 5, 30))]
"""Of 8, 25, 10 and 35 tokens, the end among them."""


class Characters:
    """A tokenizer of single characters; 1 ends an answer."""

    end, ends = 1, frozenset({1})
    rendered = None

    def encode(self, text):
        return [ord(letter) for letter in text]

    prompt = encode

    def pair(self, prompt, completion):
        return self.encode(prompt), self.encode(completion)

    store = None

    def showing(self, blobs):
        return self


def units(tmp_path, algorithm, rule, rows=ROWS, context=64, **fields):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Units(DataSpec(source=str(file), too_long=rule, **fields), tmp_path, 0, algorithm, Characters(), context)


def lengths(found, count=None):
    return sorted(len(row.tokens_T) for ordinal in range(count or len(found)) for row in found(ordinal))


@pytest.mark.parametrize(
    ("rule", "context", "bound"), [(Refuse(), 20, "the model's context of 20"), (Refuse(tokens=9), 64, "of 9")]
)
def test_a_long_row_is_refused_by_name_unless_the_spec_says_more(rule, context, bound, tmp_path):
    found = units(tmp_path, SFT(), rule, context=context, shuffle=False)
    assert len(found(0)[0].tokens_T) == 8
    with pytest.raises(
        DataError, match=rf"rows.jsonl row 1: 25 tokens do not fit .*{bound}; set data.too_long to Drop or Truncate"
    ):
        found(1)


@pytest.mark.parametrize(("rule", "context"), [(Drop(tokens=10), 64), (Drop(), 10)])
def test_long_rows_are_dropped_from_every_epoch_and_counted(rule, context, tmp_path):
    found = units(tmp_path, SFT(), rule, context=context)
    assert len(found) == 2
    assert lengths(found, 8) == [8] * 4 + [10] * 4
    assert found.counts == {"data/dropped": 2.0, "data/truncated": 0.0}


def test_what_a_later_error_names_is_the_row_of_the_file(tmp_path):
    found = units(tmp_path, SFT(), Drop(tokens=10), shuffle=False)
    assert [found.sampler.index(ordinal) for ordinal in range(2)] == [0, 2]


@pytest.mark.parametrize("aggregate", ["token", "sequence"])
def test_of_a_truncated_row_the_beginning_is_learned(aggregate, tmp_path):
    found = units(tmp_path, SFT(aggregate=aggregate), Truncate(tokens=10), shuffle=False)
    assert lengths(found) == [8, 10, 10, 10]
    assert found.counts == {"data/dropped": 0.0, "data/truncated": 2.0}
    (row,) = found(1)
    assert row.tokens_T.tolist() == [97] * 4 + [98] * 6  # and no end: the answer goes on
    np.testing.assert_allclose(row.fields["weight"], 1.0 if aggregate == "token" else 1 / 6)


def test_a_row_whose_prompt_fills_it_leaves_nothing_to_learn(tmp_path):
    rows = [*ROWS[:1], {"prompt": "a" * 12, "completion": "b"}]
    found = units(tmp_path, SFT(), Truncate(tokens=10), rows)
    assert (lengths(found), found.counts) == ([8], {"data/dropped": 1.0, "data/truncated": 0.0})


def test_a_pair_is_truncated_on_both_sides_or_dropped_whole(tmp_path):
    rows = [{"prompt": "a" * 4, "chosen": "b" * 10, "rejected": "c"}, {"prompt": "a" * 12, "chosen": "b", "rejected": "c"}]
    cut = units(tmp_path, DPO(), Truncate(tokens=10), rows)
    assert (lengths(cut), cut.counts) == ([6, 10], {"data/dropped": 1.0, "data/truncated": 1.0})
    dropped = units(tmp_path, BradleyTerry(), Drop(tokens=14), rows)
    assert (lengths(dropped), dropped.counts["data/dropped"]) == ([14, 14], 1.0)


@pytest.mark.parametrize("algorithm", [BradleyTerry(), ILQL()])
def test_what_is_read_at_the_end_is_not_truncated(algorithm, tmp_path):
    with pytest.raises(SpecError, match=r"means nothing without its end; set data.too_long=Drop"):
        units(tmp_path, algorithm, Truncate(tokens=10))


def test_data_of_which_every_row_is_too_long_are_refused(tmp_path):
    with pytest.raises(DataError, match="all of its 4 rows are too long"):
        units(tmp_path, SFT(), Drop(tokens=5))


def test_prompts_are_dropped_by_their_own_length(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"prompt": "a" * length}) + "\n" for length in (3, 9, 5)))
    found = prompts_of(DataSpec(source=str(file), too_long=Drop(tokens=5)), tmp_path, 0, Characters())
    assert sorted(len(found(ordinal).text) for ordinal in range(4)) == [3, 3, 5, 5]


@pytest.mark.parametrize("rule", [Truncate(tokens=5), Drop()])
def test_prompts_are_not_truncated_and_dropped_by_a_length_only(rule, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}\n')
    with pytest.raises(SpecError, match=r"another question; drop long ones: Drop\(tokens=…\)"):
        prompts_of(DataSpec(source=str(tmp_path / "rows.jsonl"), too_long=rule), tmp_path, 0, Characters())


def test_only_a_rule_for_long_rows_is_one():
    with pytest.raises(SpecError, match="SFT is no rule for long rows; use Refuse, Drop or Truncate"):
        DataSpec(source="x.jsonl", too_long=SFT())
    with pytest.raises(SpecError, match="must be 0 or more"):
        Drop(tokens=-1)

"""Rewards by comparison."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reward_examples import make_group, make_sample, score

from penstock.config.run import DataSpec, RewardSpec
from penstock.core.errors import RewardError
from penstock.data.sources import open_source
from penstock.rewards.built_in import contains, exact_match, find_last_number, last_number
from penstock.rewards.runner import Mixture


@pytest.mark.parametrize(
    ("text", "options", "right"),
    [("42", {}, 1), (" 42\n", {}, 1), (" 42", {"strip": False}, 0), ("43", {}, 0), ("042", {}, 0), ("", {}, 0)],
)
def test_exact_match(text, options, right):
    assert exact_match(make_sample(text), {"answer": "42"}, **options) == right


def test_a_number_in_the_data_is_compared_as_text():
    assert exact_match(make_sample("42"), {"gold": 42}, column="gold") == 1


@pytest.mark.parametrize("columns", [{"question": "x"}, {"answer": None, "question": "x"}])
def test_a_missing_answer_is_an_error_and_not_a_wrong_answer(columns):
    with pytest.raises(RewardError, match=r'no value in column "answer".*question'):
        exact_match(make_sample("None"), columns)


def test_contains():
    assert contains(make_sample("the answer is 42."), {"answer": " 42 "}) == 1
    assert contains(make_sample("the answer"), {"answer": "42"}) == 0
    with pytest.raises(RewardError, match="every completion contains"):
        contains(make_sample("x"), {"answer": " "})


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("so 48+24 = 72.", "72"),
        ("#### -5", "-5"),
        ("16-9", "9"),
        ("(3)-4", "4"),
        ("x = -9", "-9"),
        ("costs $1,234,567.50 in all", "1234567.50"),
        ("1,2,3", "3"),
        ("2024,25", "25"),
        ("0.5", "0.5"),
        ("it is .5", "0.5"),
        ("−7", "-7"),
        ("70%", "70"),
        ("1.2.3", "3"),
        ("72.\n", "72"),
        ("no number", None),
        ("", None),
    ],
)
def test_the_last_number_of_a_text(text, number):
    assert find_last_number(text) == (None if number is None else Decimal(number))


@given(st.integers(), st.text(alphabet="ab .\n$="))
def test_a_number_is_found_whatever_stands_before_it(number, before):
    assert find_last_number(f"{before} {number}") == number
    assert find_last_number(f"{before} {number:,}.") == number


def test_last_number_compares_values():
    columns = {"answer": "48/2 = 24 clips.\n#### 1,072"}
    assert last_number(make_sample("That makes 1072.0"), columns) == 1
    assert last_number(make_sample("That makes 1072 of 3"), columns) == 0
    assert last_number(make_sample("dunno"), columns) == 0


def test_an_answer_without_a_number_is_an_error():
    with pytest.raises(RewardError, match=r"no number in column.*many"):
        last_number(make_sample("3"), {"answer": "many"})


def test_gym_rows_are_scored_by_their_own_task(tmp_path):
    row = open_source(DataSpec(source="gym:chain_sum", size=1), tmp_path)[0]
    group = make_group(row["answer"], "wrong", columns=row)
    right, wrong = score(Mixture((RewardSpec(function="gym"),)), group).samples
    assert right.reward == 1
    assert wrong.reward < 1


def test_gym_scores_need_gym_rows():
    (sample,) = score(Mixture((RewardSpec(function="gym"),)), make_group("a")).samples
    assert sample.error.startswith('RewardError: reward "gym" failed on prompt gsm8k/0/17#0: found no columns task and entry')

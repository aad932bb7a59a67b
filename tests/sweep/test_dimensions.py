"""Ranges and choices as the command line has them."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import SpecError
from penstock.sweep.dimensions import Dimension, dimension, split, words_of

NUMBERS = st.floats(-1e12, 1e12, allow_nan=False)


@given(NUMBERS, NUMBERS)
def test_a_range_has_its_two_ends_and_everything_between(low: float, high: float) -> None:
    text = f"{low!r}..{high!r}"
    if low >= high:
        with pytest.raises(SpecError, match="the range is empty"):
            dimension("rate", text)
        return
    found = dimension("rate", text)
    assert found is not None
    assert (found.low, found.high, found.whole) == (low, high, False)
    assert all(low <= found.at(share) <= high for share in (0.0, 0.3, 1.0))


@given(st.integers(-1000, 1000), st.integers(1, 1000), st.floats(0, 1))
def test_a_range_of_integers_has_only_integers(low: int, width: int, share: float) -> None:
    found = dimension("batch", f"{low}..{low + width}")
    assert found is not None
    assert found.whole
    assert isinstance(found.at(share), int)
    assert low <= found.at(share) <= low + width


@pytest.mark.parametrize(
    ("text", "log"), [("1e-6..1e-4", True), ("1..10", True), ("1..9", False), ("0..10", False), ("-1..100", False)]
)
def test_a_positive_range_of_a_factor_of_ten_is_logarithmic(text: str, log: bool) -> None:
    found = dimension("rate", text)
    assert found is not None
    assert found.log is log


def test_the_middle_of_a_logarithmic_range_is_its_geometric_mean() -> None:
    assert math.isclose(Dimension(name="rate", low=1e-6, high=1e-4).at(0.5), 1e-5)


@given(st.lists(st.text(alphabet="abcxyz019.-", min_size=1), min_size=2, max_size=5, unique=True))
def test_words_between_commas_are_choices(words: list[str]) -> None:
    found = dimension("algorithm", ",".join(words))
    assert found is not None
    assert len(found.choices) == len(words)


@given(
    st.lists(st.one_of(st.integers(), st.booleans(), st.lists(st.floats(0, 1))), min_size=2, max_size=5, unique_by=json.dumps)
)
def test_json_values_between_commas_are_choices(values: list[object]) -> None:
    found = dimension("clip", ",".join(map(json.dumps, values)))
    assert found is not None
    assert [json.loads(choice) for choice in found.choices] == values


@pytest.mark.parametrize(
    "text", ["1e-5", "cosine", "[0.2, 0.28]", '{"kind": "AdamW", "beta": 1}', '"a, b"', "a..b", "../data.jsonl"]
)
def test_one_value_is_no_dimension(text: str) -> None:
    assert dimension("field", text) is None


@pytest.mark.parametrize("text", ["a,a", "a,,b", "1,1"])
def test_choices_that_repeat_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match="repeat"):
        dimension("field", text)


def test_dimensions_are_taken_out_of_a_command_line() -> None:
    fixed, found = split(["--steps", "3", "--grpo.batch", "2..8", "--fast", "--algorithm=ppo,grpo", "--clip", "[0.2, 0.28]"])
    assert fixed == ["--steps", "3", "--fast", "--clip", "[0.2, 0.28]"]
    assert [one.name for one in found] == ["grpo.batch", "algorithm"]
    assert found[1].choices == ("ppo", "grpo")


def test_a_negative_range_is_no_flag() -> None:
    assert split(["--bias", "-1..1"]) == ([], (Dimension(name="bias", low=-1, high=1, whole=True),))


def test_a_field_that_is_swept_twice_is_refused() -> None:
    with pytest.raises(SpecError, match="given twice"):
        split(["--rate", "1..2", "--rate", "3,4"])


@given(st.one_of(NUMBERS, st.integers(), st.text(alphabet="ab ", min_size=1)))
def test_values_become_flags_of_one_word(value: float | int | str) -> None:
    (word,) = words_of({"grpo.batch": value})
    assert word.startswith("--grpo.batch=")
    text = word.partition("=")[2]
    assert (text if isinstance(value, str) else json.loads(text)) == value

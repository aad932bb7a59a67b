"""Distinct n-grams against counts by hand, and what they do not depend on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.algos.diversity import distinct_ngrams
from penstock.core.errors import TrainingError


@pytest.mark.parametrize(
    ("sequences", "n", "share"),
    [
        (["abc"], 1, 1.0),
        (["abab"], 1, 2 / 4),  # a, b
        (["abab"], 2, 2 / 3),  # ab, ba, ab
        (["abab"], 3, 1.0),  # aba, bab
        (["ab", "ab"], 2, 1 / 2),
        (["ab", "cd"], 2, 1.0),  # bc spans two samples and is none
        (["ab", "a"], 2, 1.0),  # one that is too short says nothing
        (["aaaa"], 2, 1 / 3),
    ],
)
def test_values_by_hand(sequences, n, share):
    assert distinct_ngrams(sequences, n) == pytest.approx(share)


SEQUENCES = st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=8), min_size=1, max_size=6)


@given(SEQUENCES, st.randoms())
def test_the_order_of_samples_and_the_names_of_tokens_do_not_matter(sequences, random):
    other = [[f"token {token}" for token in tokens] for tokens in random.sample(sequences, len(sequences))]
    assert distinct_ngrams(other, 2) == distinct_ngrams(sequences, 2)


@given(SEQUENCES)
def test_saying_everything_twice_halves_it(sequences):
    assert distinct_ngrams(sequences * 2, 2) == pytest.approx(distinct_ngrams(sequences, 2) / 2)


@pytest.mark.parametrize(("sequences", "n", "words"), [([], 1, "undefined"), (["a", "b"], 2, "undefined"), (["ab"], 0, "n=0")])
def test_what_is_undefined_is_refused(sequences, n, words):
    with pytest.raises(TrainingError, match=words):
        distinct_ngrams(sequences, n)

"""Alpha, kappa and intervals against published and hand values."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from penstock.feedback.errors import FeedbackError
from penstock.feedback.quality.agreement import bootstrap_interval, cohen_kappa, krippendorff_alpha, wilson_interval

X = math.nan
PUBLISHED = [
    [1, 2, 3, 3, 2, 1, 4, 1, 2, X, X, X],
    [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, X, 3],
    [X, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, X],
    [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, X],
]
"""Four observers, twelve units, missing values: the example C and D of Krippendorff 2011."""


@pytest.mark.parametrize(("level", "alpha"), [("nominal", 0.743), ("ordinal", 0.815), ("interval", 0.849)])
def test_alpha_is_the_published_one(level, alpha):
    assert krippendorff_alpha(PUBLISHED, level) == pytest.approx(alpha, abs=5e-4)


def test_alpha_of_two_observers_by_hand():
    # Units (a, a), (a, b), (b, b): coincidences aa 2, ab 1, ba 1, bb 2. Observed 2 / 6; expected 2 · 3 · 3 / (6 · 5) = 0.6.
    assert krippendorff_alpha([[0, 0, 1], [0, 1, 1]]) == pytest.approx(1 - (2 / 6) / 0.6)


def test_alpha_is_one_when_all_agree_and_undefined_without_variation():
    assert krippendorff_alpha([[1, 2, 3], [1, 2, 3]]) == 1
    assert math.isnan(krippendorff_alpha([[1, 1], [1, 1]]))
    assert math.isnan(krippendorff_alpha([[1, X], [X, 2]]))


tables = arrays.arrays(np.float64, (3, 8), elements=st.sampled_from([0.0, 1.0, 2.0, math.nan]))


@given(tables, st.permutations(range(3)), st.permutations(range(8)))
def test_alpha_knows_no_order_of_annotators_or_units(value_AU, rows, columns):
    mixed_AU = value_AU[list(rows)][:, list(columns)]
    for level in ("nominal", "ordinal", "interval"):
        assert krippendorff_alpha(value_AU, level) == pytest.approx(krippendorff_alpha(mixed_AU, level), nan_ok=True)


@given(tables)
def test_the_ordinal_alpha_reads_only_the_order(value_AU):
    stretched = krippendorff_alpha(value_AU**3 + 5, "ordinal")
    assert krippendorff_alpha(value_AU, "ordinal") == pytest.approx(stretched, nan_ok=True)


@pytest.mark.parametrize(
    ("first", "second", "weights", "kappa"),
    [
        # 20 both yes, 5 yes-no, 10 no-yes, 15 both no: agreement 0.7, by chance 0.5 · 0.6 + 0.5 · 0.4 = 0.5.
        ([1] * 25 + [0] * 25, [1] * 20 + [0] * 5 + [1] * 10 + [0] * 15, None, 0.4),
        # One of four differs, by 1. By chance, from the margins (¼, ¼, ½) and (¼, ½, ¼): 0.875, squared 1.25.
        ([0, 1, 2, 2], [0, 1, 2, 1], "linear", 1 - 0.25 / 0.875),
        ([0, 1, 2, 2], [0, 1, 2, 1], "quadratic", 1 - 0.25 / 1.25),
        ([1, 0, X, 1], [1, 0, 1, X], None, 1),
    ],
    ids=["unweighted", "linear", "quadratic", "what one did not judge is left out"],
)
def test_kappa_by_hand(first, second, weights, kappa):
    assert cohen_kappa(first, second, *filter(None, [weights])) == pytest.approx(kappa)


def test_the_bootstrap_interval_holds_the_statistic_and_repeats():
    one = bootstrap_interval(PUBLISHED, krippendorff_alpha, samples=300, seed=3)
    assert one == bootstrap_interval(PUBLISHED, krippendorff_alpha, samples=300, seed=3)
    assert one[0] < 0.743 < one[1] <= 1


def test_the_bootstrap_of_a_mean_is_as_wide_as_theory_says():
    value_AU = np.random.default_rng(0).normal(size=(1, 400))
    low, high = bootstrap_interval(value_AU, lambda drawn_AU: float(drawn_AU.mean()), samples=2000)
    assert high - low == pytest.approx(2 * 1.96 / 20, rel=0.12)


def test_wilson_intervals_by_hand():
    assert wilson_interval(0, 0) == (0.0, 1.0)
    assert wilson_interval(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson_interval(10, 10)[1] == 1.0


def test_wrong_tables_are_refused():
    with pytest.raises(FeedbackError, match="table"):
        krippendorff_alpha([1, 2, 3])
    with pytest.raises(FeedbackError, match="level"):
        krippendorff_alpha(PUBLISHED, "ratio")

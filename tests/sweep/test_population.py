"""Who copies whom, with which values, and folders that begin where a donor ended. Pure functions; no run is started."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweep_examples import RATE, sweep_of

from penstock.core.errors import SpecError
from penstock.sweep.dimensions import Dimension
from penstock.sweep.population import exploit, explore, first_values, require_changeable

DIMENSIONS = st.one_of(
    st.tuples(st.floats(1e-9, 1e3), st.floats(1.1, 1e6)).map(
        lambda ends: Dimension(name="x", low=ends[0], high=ends[0] * ends[1])
    ),
    st.tuples(st.floats(-1e3, 1e3), st.floats(0.1, 1e3)).map(lambda ends: Dimension(name="x", low=ends[0], high=sum(ends))),
    st.tuples(st.integers(-50, 50), st.integers(1, 500)).map(
        lambda ends: Dimension(name="x", low=ends[0], high=sum(ends), whole=True)
    ),
    st.integers(2, 5).map(lambda count: Dimension(name="x", choices=tuple("abcde"[:count]))),
)


def generator() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize(
    ("scores", "copies"),
    [
        pytest.param([0.3, 0.9, 0.1, 0.5], {2: 1}, id="the worst of four copies the best"),
        pytest.param([None, 0.5, None, None], {0: 1, 2: 1, 3: 1}, id="all that failed copy and nobody copies them"),
        pytest.param([0.5, 0.5, 0.5, 0.5], {}, id="members that are equally good keep what they have"),
    ],
)
def test_who_copies_whom(scores: list[float | None], copies: dict[int, int]) -> None:
    assert exploit(scores, generator()) == copies


def test_the_worst_quarter_copies_members_of_the_best_quarter() -> None:
    copies = exploit([0.1 * place for place in range(12)], generator())
    assert set(copies) == {0, 1, 2}
    assert set(copies.values()) <= {9, 10, 11}


@given(
    st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6)), min_size=3, max_size=40).filter(
        lambda scores: any(s is not None for s in scores)
    )
)
def test_a_copy_always_gains(scores: list[float | None]) -> None:
    for member, donor in exploit(scores, generator()).items():
        ours, theirs = scores[member], scores[donor]
        assert theirs is not None
        assert ours is None or theirs > ours


@given(DIMENSIONS, st.floats(0, 1), st.integers(0, 2**20))
def test_a_value_moves_and_stays_in_its_range(one: Dimension, share: float, seed: int) -> None:
    value = one.at(share)
    moved = explore(one, value, np.random.default_rng(seed))
    assert moved != value
    if one.choices:
        assert moved in one.choices
    else:
        assert one.low <= moved <= one.high
        assert isinstance(moved, int) == one.whole


def test_on_a_logarithmic_scale_a_value_moves_by_a_quarter() -> None:
    one = Dimension(name="rate", low=1e-6, high=1e-2)
    found = {explore(one, 1e-4, np.random.default_rng(seed)) for seed in range(20)}
    assert sorted(found) == pytest.approx([8e-5, 1.25e-4])


@given(st.integers(3, 20), st.integers(0, 2**20))
def test_members_begin_spread_over_each_range(count: int, seed: int) -> None:
    found = first_values([Dimension(name="x", low=0, high=1)], count, np.random.default_rng(seed))
    assert sorted(int(float(one["x"]) * count) for one in found) == list(range(count))


UNCHANGEABLE = [
    (Dimension(name="grpo.batch", low=2, high=8, whole=True), "cannot change on the way"),
    (Dimension(name="sft.learner.learning_rate", low=1e-5, high=1e-3), "cannot change on the way"),
    (Dimension(name="grpo.learner.schedule", choices=("cosine", "constant")), "set --grpo.learner.schedule constant"),
    (Dimension(name="grpo.algorithm.kl.coefficient", low=0.01, high=0.02), "kept in the run's checkpoints"),
]


@pytest.mark.parametrize(("one", "said"), UNCHANGEABLE, ids=[one.name for one, _ in UNCHANGEABLE])
def test_what_cannot_change_while_a_run_trains_is_refused(one: Dimension, said: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=said):
        require_changeable(sweep_of(tmp_path / "s", one, population=4))


def test_rates_may_change_while_a_run_trains(tmp_path: Path) -> None:
    assert require_changeable(sweep_of(tmp_path / "s", RATE, population=4)) is None

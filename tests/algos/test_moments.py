"""Running moments and discounted returns: hand values, and that splitting into batches changes nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.algos.moments import merged_moments, running_returns
from penstock.core.errors import TrainingError


def test_moments_of_a_second_batch_by_hand() -> None:
    """1, 3 then 5, 7, 9: mean 5, squared deviations 16 + 4 + 0 + 4 + 16."""
    first = merged_moments(0, 0.0, 0.0, [1.0, 3.0])
    assert first == (2, 2.0, 2.0)
    assert merged_moments(*first, [5.0, 7.0, 9.0]) == (5, 5.0, 40.0)


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=30), st.integers(0, 30), st.floats(-1e4, 1e4))
def test_moments_do_not_depend_on_how_numbers_are_split(numbers: list[float], cut: int, shift: float) -> None:
    values = np.array(numbers)[:, None] + shift
    count, mean, squares = merged_moments(*merged_moments(0, np.zeros(1), np.zeros(1), values[:cut]), values[cut:])
    assert count == len(values)
    np.testing.assert_allclose(mean, values.mean(0), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(squares, ((values - values.mean(0)) ** 2).sum(0), rtol=1e-6, atol=1e-5)


def test_moments_refuse_what_is_not_finite() -> None:
    with pytest.raises(TrainingError, match="not finite"):
        merged_moments(2, 0.0, 1.0, [np.nan])


def test_discounted_returns_from_behind_by_hand() -> None:
    """Discount 1/2, carried 4: 1 + 2, then 2 + 1.5; a new episode begins with the third step."""
    found = running_returns([[1.0], [2.0], [3.0]], [[False], [False], [True]], [4.0], 0.5)
    assert found.ravel().tolist() == [3.0, 3.5, 3.0]

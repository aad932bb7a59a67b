"""Advantages over [T, N] fragments: hand values, the definitions, and the same numbers as for one trajectory alone."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.algos import advantages
from penstock.algos.fragment_advantages import generalised_advantages, vtrace
from penstock.core.errors import TrainingError

REWARD = np.array([[1.0, 1.0], [2.0, 2.0], [4.0, 4.0]])
VALUE = np.array([[0.5, 0.5], [1.0, 1.0], [2.0, 2.0]])


def marks(step: int) -> np.ndarray:
    """The last row, and a step of the second environment."""
    last = np.zeros((3, 2), bool)
    last[-1] = last[step, 1] = True
    return last


def test_gae_of_a_running_episode_by_hand() -> None:
    following = np.array([[1.0, 1.0], [2.0, 2.0], [8.0, 0.0]])
    advantage, returns = generalised_advantages(REWARD, VALUE, following, marks(2), 0.5, 0.5)
    # running: deltas 1 + .5 - .5 = 1, 2 + 1 - 1 = 2, 4 + 4 - 2 = 6; terminated: the last is 4 - 2 = 2
    assert advantage[:, 0].tolist() == [1 + 0.25 * (2 + 0.25 * 6), 2 + 0.25 * 6, 6]
    assert advantage[:, 1].tolist() == [1 + 0.25 * (2 + 0.25 * 2), 2 + 0.25 * 2, 2]
    assert np.array_equal(returns, advantage + VALUE)


def test_gae_tells_terminated_from_truncated_by_hand() -> None:
    """The second environment ends after the first row: truncated where the last observation is worth 3, terminated at 0."""
    truncated = np.array([[1.0, 3.0], [2.0, 2.0], [8.0, 8.0]])
    terminated = np.array([[1.0, 0.0], [2.0, 2.0], [8.0, 8.0]])
    cut, _ = generalised_advantages(REWARD, VALUE, truncated, marks(0), 0.5, 0.5)
    over, _ = generalised_advantages(REWARD, VALUE, terminated, marks(0), 0.5, 0.5)
    assert cut[0, 1] == 1 + 0.5 * 3 - 0.5
    assert over[0, 1] == 1 - 0.5
    assert np.array_equal(cut[1:], over[1:])


def random_fragment(seed: int, steps: int = 12, count: int = 5) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    last = rng.random((steps, count)) < 0.2
    last[-1] = True
    value = rng.normal(size=(steps, count))
    following = np.vstack([value[1:], np.zeros((1, count))])
    following[last] = rng.normal(size=int(last.sum())) * (rng.random(int(last.sum())) < 0.5)
    reward, gap = rng.normal(size=(steps, count)), rng.normal(scale=0.7, size=(steps, count))
    return {"reward": reward, "value": value, "following": following, "last": last, "gap": gap}


def pieces(last: np.ndarray) -> list[tuple[slice, int]]:
    found = []
    for column in range(last.shape[1]):
        start = 0
        for end in np.flatnonzero(last[:, column]):
            found.append((slice(start, int(end) + 1), column))
            start = int(end) + 1
    return found


@pytest.mark.parametrize("seed", range(3))
def test_gae_is_that_of_each_episode_alone(seed: int) -> None:
    f = random_fragment(seed)
    advantage, returns = generalised_advantages(f["reward"], f["value"], f["following"], f["last"], 0.9, 0.7)
    for rows, column in pieces(f["last"]):
        end = float(f["following"][rows, column][-1])
        alone = advantages.generalised_advantages(f["reward"][rows, column], f["value"][rows, column], 0.9, 0.7, bootstrap=end)
        np.testing.assert_allclose(advantage[rows, column], alone[0])
        np.testing.assert_allclose(returns[rows, column], alone[1])


@pytest.mark.parametrize("seed", range(3))
def test_vtrace_is_that_of_each_episode_alone(seed: int) -> None:
    f, bounds = random_fragment(seed), (1.2, 0.9, 0.8)
    advantage, target = vtrace(f["reward"], f["value"], f["following"], f["last"], f["gap"], 0.9, 0.7, bounds)
    for rows, column in pieces(f["last"]):
        arrays = [f[name][rows, column] for name in ("reward", "value", "gap")]
        given = {
            "lam": 0.7,
            "bounds": bounds[:2],
            "policy_bound": bounds[2],
            "bootstrap": float(f["following"][rows, column][-1]),
        }
        alone = advantages.vtrace(*arrays, 0.9, **given)
        np.testing.assert_allclose(advantage[rows, column], alone[0])
        np.testing.assert_allclose(target[rows, column], alone[1])


def test_vtrace_is_the_papers_sum() -> None:
    """v_s = V(x_s) + Σ_t γ^(t-s) (Π_{i<t} c_i) ρ_t (r_t + γ V(x_{t+1}) - V(x_t)), one environment that runs on."""
    rng = np.random.default_rng(0)
    reward, value, gap, end, discount = rng.normal(size=6), rng.normal(size=6), rng.normal(size=6), 0.7, 0.95
    ratio, after = np.exp(gap), np.append(value[1:], end)
    rho, c = np.minimum(1.5, ratio), np.minimum(1.0, ratio)
    delta = rho * (reward + discount * after - value)
    expected = [value[s] + sum(discount ** (t - s) * np.prod(c[s:t]) * delta[t] for t in range(s, 6)) for s in range(6)]
    last = np.zeros((6, 1), bool)
    last[-1] = True
    grids = [item[:, None] for item in (reward, value, after)]
    advantage, target = vtrace(*grids, last, gap[:, None], discount, bounds=(1.5, 1.0, 1.5))
    np.testing.assert_allclose(target[:, 0], expected)
    np.testing.assert_allclose(advantage[:, 0], rho * (reward + discount * np.append(expected[1:], end) - value))


def test_vtrace_on_policy_is_the_n_step_return_by_hand() -> None:
    following = np.array([[1.0, 1.0], [2.0, 2.0], [8.0, 0.0]])
    _, target = vtrace(REWARD, VALUE, following, marks(2), np.zeros((3, 2)), 0.5)
    assert target[:, 0].tolist() == [1 + 0.5 * (2 + 0.5 * (4 + 0.5 * 8)), 2 + 0.5 * (4 + 0.5 * 8), 4 + 0.5 * 8]
    assert target[:, 1].tolist() == [1 + 0.5 * (2 + 0.5 * 4), 2 + 0.5 * 4, 4]


def test_nothing_after_an_end_reaches_what_is_before_it() -> None:
    f = random_fragment(4)
    f["last"][5] = True
    changed = {name: array.copy() for name, array in f.items()}
    for name in ("reward", "value", "gap"):
        changed[name][6:] = 100.0
    for estimate in (
        lambda g: generalised_advantages(g["reward"], g["value"], g["following"], g["last"], 0.9, 0.9)[0],
        lambda g: vtrace(g["reward"], g["value"], g["following"], g["last"], g["gap"], 0.9)[0],
    ):
        assert np.array_equal(estimate(f)[:6], estimate(changed)[:6])


def test_shapes_and_coefficients_are_refused() -> None:
    with pytest.raises(TrainingError, match="one shape"):
        generalised_advantages(REWARD, VALUE[:2], VALUE, marks(2), 0.9, 0.9)
    with pytest.raises(TrainingError, match="discount=2"):
        generalised_advantages(REWARD, VALUE, VALUE, marks(2), 2, 0.9)
    with pytest.raises(TrainingError, match="bounds"):
        vtrace(REWARD, VALUE, VALUE, marks(2), VALUE, 0.9, bounds=(1.0, 2.0, 1.0))

"""Advantages over [T, N] fragments: the definition of V-trace, and the same numbers as for one trajectory alone."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.algos import advantages
from penstock.algos.fragment_advantages import generalised_advantages, vtrace
from penstock.core.errors import TrainingError


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
def test_estimates_are_those_of_each_episode_alone(seed: int) -> None:
    """Of one that terminated, is cut or is still running: ``following`` is 0 or not at its last step."""
    f, bounds = random_fragment(seed), (1.2, 0.9, 0.8)
    grids = [f[name] for name in ("reward", "value", "following", "last")]
    found = *generalised_advantages(*grids, 0.9, 0.7), *vtrace(*grids, f["gap"], 0.9, 0.7, bounds)
    for here in pieces(f["last"]):
        reward, value, gap, following = (f[name][here] for name in ("reward", "value", "gap", "following"))
        end = float(following[-1])
        more = {"lam": 0.7, "bounds": bounds[:2], "policy_bound": bounds[2], "bootstrap": end}
        alone = advantages.generalised_advantages(reward, value, 0.9, 0.7, bootstrap=end)
        alone += advantages.vtrace(reward, value, gap, 0.9, **more)
        for whole, part in zip(found, alone, strict=True):
            np.testing.assert_allclose(whole[here], part)


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


def test_shapes_and_coefficients_are_refused() -> None:
    grid, last = np.ones((3, 2)), np.ones((3, 2), bool)
    with pytest.raises(TrainingError, match="one shape"):
        generalised_advantages(grid, grid[:2], grid, last, 0.9, 0.9)
    with pytest.raises(TrainingError, match="discount=2"):
        generalised_advantages(grid, grid, grid, last, 2, 0.9)
    with pytest.raises(TrainingError, match="bounds"):
        vtrace(grid, grid, grid, last, grid, 0.9, bounds=(1.0, 2.0, 1.0))

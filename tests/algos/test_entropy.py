"""The entropy bonus and the controller of its weight."""

import pytest

from penstock.algos import GRPO, EntropyBonus
from penstock.algos.entropy import steered
from penstock.core.errors import TrainingError


@pytest.mark.parametrize(
    ("coefficient", "measured", "expected"),
    [
        (0.01, 0.1, 0.015),  # too certain: one step up
        (0.01, 0.9, 0.005),  # too uncertain: one step down
        (0.002, 0.9, 0.0),  # never below zero
        (0.01, 0.5, 0.01),
    ],
)
def test_the_controller_by_hand(coefficient, measured, expected):
    assert steered(coefficient, measured, target=0.5, step=0.005) == pytest.approx(expected)


def test_a_measurement_that_is_not_finite_is_refused():
    with pytest.raises(TrainingError, match="entropy is nan"):
        steered(0.01, float("nan"), target=0.5, step=0.005)


def test_the_control_moves_by_the_entropy_of_the_samples_and_may_start_at_zero():
    algorithm = GRPO(entropy=EntropyBonus(target=0.5))
    moved = algorithm.adapt(algorithm.initial_coefficients(), {"entropy/sampled": 0.2})
    assert moved["entropy"] == pytest.approx(0.005)
    assert algorithm.entropy.current(moved) == moved["entropy"]


def test_a_fixed_bonus_stays():
    algorithm = GRPO(entropy=EntropyBonus(coefficient=0.01))
    assert algorithm.adapt(algorithm.initial_coefficients(), {"entropy/sampled": 0.2})["entropy"] == 0.01
    assert algorithm.entropy.current({}) == 0.01


def test_a_steered_bonus_asks_for_the_entropy_even_while_its_weight_is_zero():
    assert GRPO(entropy=EntropyBonus(target=0.5)).loss().needs == {"logp", "entropy"}
    assert GRPO().loss().needs == {"logp"}

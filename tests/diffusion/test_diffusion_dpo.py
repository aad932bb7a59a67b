"""Diffusion-DPO: its loss by hand, equal noise for both pictures of a pair, what it refuses, and that pairs teach digits."""

import math

import numpy as np
import pytest
import torch
from denoiser_examples import DDIM, KINDS, tiny
from training import accumulated, digits_run, metric, steps

from penstock.algos import denoising_losses as losses
from penstock.algos.diffusion_dpo import DiffusionDPO
from penstock.config.learner import LearnerSpec
from penstock.core.contracts import Denominator
from penstock.core.errors import DataError
from penstock.models.diffusion.policy import DiffusionPolicy
from penstock.train.learner import DeviceLearner, LearnerPlan
from tiers import LANGUAGE

PREDICTIONS = pytest.mark.parametrize("denoising", [KINDS["flow"], DDIM], ids=["velocity", "noise"])


def pairs(model, algorithm, count=4):
    draw = np.random.default_rng(0)
    pictures = draw.integers(0, 256, (count, 2, 4, 4)).astype(np.uint8)
    examples = [{"prompt": "cat", "chosen": chosen, "rejected": rejected} for chosen, rejected in pictures]
    return [algorithm.rows(example, model.text) for example in examples]


def learner_of(denoising, rate=1e-3):
    policy = DiffusionPolicy(tiny(denoising))
    policy.teacher = DiffusionPolicy(tiny(denoising)).teaching(None)
    return DeviceLearner(policy, LearnerSpec(learning_rate=rate, token_budget=10**6), LearnerPlan(50))


def test_the_loss_by_hand():
    """Errors of 1 and 3 where the reference has 2 and 2, with β = 1: gains of 1 and -1, so -log σ(1)."""
    found = losses.preferred(torch.tensor([2.0 - 1.0]), torch.tensor([2.0 - 3.0]), 1.0)
    assert found.item() == pytest.approx(math.log(1 + math.exp(-1)))


def test_the_loss_of_outputs_by_hand():
    """Two values a picture: the chosen is off by (1, 1) and (2, 0) for policy and reference, the rejected by (0, 2), (1, 1).
    Means of 1 against 2 and of 2 against 1 give gains of 1 and -1; with β = 2 the loss is log(1 + exp(-2))."""
    model, algorithm = tiny(), DiffusionDPO(beta=2.0)
    units = pairs(model, algorithm, 1)
    (batch,) = DiffusionPolicy(model).lay_out(units, 10**6)
    outputs = {
        "prediction": torch.tensor([[1.0, 1.0], [0.0, 2.0]]), "prediction/reference": torch.tensor([[2.0, 0.0], [1.0, 1.0]]),
        "prediction/wanted": torch.zeros(2, 2),
    }  # fmt: skip
    fields = {name: torch.from_numpy(array) for name, array in batch.fields.items()}
    loss, metrics = algorithm.compute_loss(outputs, fields, batch, Denominator.of(units))
    assert loss.item() == pytest.approx(math.log(1 + math.exp(-2)))
    assert metrics["preference/accuracy"].item() == 1
    assert metrics["denoising_error/rejected"].item() == 2


@PREDICTIONS
def test_before_the_first_step_a_pair_costs_log_2(denoising):
    learner, algorithm = learner_of(denoising), DiffusionDPO()
    units = pairs(learner.policy.model, algorithm)
    assert steps(learner, algorithm, units, 1)[0]["loss"] == pytest.approx(math.log(2), abs=1e-5)


def test_both_pictures_of_a_pair_have_the_same_noise_at_the_same_time():
    learner, algorithm = learner_of(DDIM), DiffusionDPO(draws=3)
    units = pairs(learner.policy.model, algorithm, 2)
    (batch,) = learner.policy.lay_out(units, 10**6)
    found = learner.policy.outputs(batch, frozenset({"prediction"}))
    noise, time = found["prediction/wanted"].unflatten(0, (2, 2, 3)), found["prediction/time"].unflatten(0, (2, 2, 3))
    assert torch.equal(noise[:, 0], noise[:, 1])
    assert torch.equal(time[:, 0], time[:, 1])
    assert not torch.equal(noise[0, 0], noise[1, 0]), "each pair has its own"


@PREDICTIONS
def test_steps_lower_the_error_of_the_chosen_picture_against_that_of_the_rejected(denoising):
    learner, algorithm = learner_of(denoising), DiffusionDPO(beta=50.0, draws=8)
    units = pairs(learner.policy.model, algorithm)
    found = steps(learner, algorithm, units, 30)
    assert found[-1]["loss"] < 0.9 * math.log(2)
    assert found[-1]["preference/accuracy"] > 0.8
    assert found[-1]["denoising_error/chosen"] < found[-1]["denoising_error/rejected"]


@pytest.mark.parametrize("budget", [1, 9, 17])
def test_a_gradient_does_not_depend_on_how_pairs_are_split(budget):
    algorithm, gradients = DiffusionDPO(draws=4), []
    for size in (10**6, budget):
        learner = learner_of(DDIM)
        gradients.append(accumulated(learner, algorithm, pairs(learner.policy.model, algorithm), size))
    assert gradients[0].abs().max() > 1e-3
    assert torch.allclose(*gradients, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("rejected", "message"),
    [
        ({}, 'no column "rejected"'),
        ({"rejected": np.zeros((8, 4), np.uint8)}, r"chosen picture is \[1, 4, 4\] and the rejected one \[1, 8, 4\]"),
    ],
    ids=["missing", "of another size"],
)
def test_a_pair_whose_rejected_picture_is_none_to_compare_is_refused(rejected, message):
    with pytest.raises(DataError, match=message):
        DiffusionDPO().rows({"prompt": "cat", "chosen": np.zeros((4, 4), np.uint8), **rejected}, tiny().text)


@pytest.mark.learning(*LANGUAGE)
def test_pairs_of_right_and_wrong_digits_raise_the_share_of_right_ones(tmp_path):
    from penstock.runtime import launch

    launch(digits_run("dpo", 300, every=100, steps=100), tmp_path / "run")
    gold = metric(tmp_path / "run", "evaluation/gold")
    assert gold[-1] > gold[0] + 0.1

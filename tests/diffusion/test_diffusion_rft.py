"""Fine-tuning on the best pictures: which are kept, the loss by hand, and that it teaches."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from denoiser_examples import DDIM, KINDS, scored, tiny
from training import losses

from penstock.algos import DiffusionRFT
from penstock.config.learner import LearnerSpec
from penstock.core.contracts import Denominator
from penstock.models.diffusion.policy import DiffusionPolicy
from penstock.train.learner import DeviceLearner, LearnerPlan


def test_the_best_picture_of_a_prompt_is_kept_as_often_as_it_is_given_noise():
    algorithm = DiffusionRFT(start=1.0, end=1.0, draws=3)
    group = scored(tiny(), [0.0, 2.0, 1.0])
    ((row,),) = algorithm.label([group], {}, algorithm.initial_coefficients())
    assert row.fields["reward"] == 2.0
    assert row.action_T.tolist() == [True] * 3
    assert np.array_equal(row.columns["state_TD"], np.stack([group.samples[1].columns["state_TD"][-1]] * 3))


def test_a_prompt_whose_pictures_are_rewarded_alike_teaches_nothing():
    algorithm = DiffusionRFT()
    assert algorithm.label([scored(tiny(), [1.0, 1.0])], {}, algorithm.initial_coefficients()) == []


def test_the_loss_by_hand():
    """Errors of (1, 3) and (0, 2) over two values: means of squares 5 and 2, and their mean."""
    outputs = {"prediction": torch.tensor([[1.0, 3.0], [0.0, 2.0]]), "prediction/wanted": torch.zeros(2, 2)}
    loss, _ = DiffusionRFT().compute_loss(outputs, {}, None, Denominator(2.0, 1.0, 1.0))
    assert loss.item() == pytest.approx(3.5)


@pytest.mark.parametrize("kind", [KINDS["flow"], replace(DDIM, clip=True)], ids=["velocity", "noise"])
def test_steps_lower_the_error_of_the_kept_picture(kind):
    model, algorithm = tiny(kind), DiffusionRFT(start=1.0, end=1.0, draws=16)
    units = algorithm.label([scored(model, [0.0, 1.0])], {}, algorithm.initial_coefficients())
    learner = DeviceLearner(DiffusionPolicy(model), LearnerSpec(learning_rate=3e-3), LearnerPlan(60))
    found = losses(learner, algorithm, units, 60)
    assert np.mean(found[-10:]) < 0.9 * np.mean(found[:10])

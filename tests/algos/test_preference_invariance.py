"""What must not change the loss of a preference algorithm on a real model: packing and shared prefixes."""

import numpy as np
import pytest
import torch

import tiny_models
from penstock.algos import DPO, KTO, BradleyTerry, SimPO
from penstock.algos.dpo import MPO
from penstock.config.run import LearnerSpec
from penstock.core.types import Row
from penstock.loops.columns import labelled
from penstock.loops.learn import Trainer
from penstock.models.language_policy import LanguagePolicy
from penstock.train.learner import DeviceLearner, LearnerPlan

REAL = {"dpo": DPO(), "dpo mix": DPO(objective=MPO), "kto": KTO(weights=(1.0, 1.0), data="pairs"), "simpo": SimPO()}


def real_units(algorithm, tokens_of):
    """Pairs of random tokens in the fields of an algorithm."""
    rng = np.random.default_rng(0)
    units = []
    for _ in range(4):
        prompt = tokens_of(rng, int(rng.integers(1, 6)))
        unit = []
        for preferred in (1.0, 0.0):
            name = "desirable" if isinstance(algorithm, KTO) else "preferred"
            unit.append(tiny_models.row(prompt, tokens_of(rng, int(rng.integers(1, 6))), **{name: preferred}))
        units.append(tuple(unit))
    return units


def step(algorithm, text, noise=0.0, share=True, **learner):
    """The metrics of one step of a model that was moved from its reference by ``noise``."""
    model, frozen = tiny_models.build("qwen2", text), tiny_models.build("qwen2", text)
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.add_(noise * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    spec = LearnerSpec(share_prefix=share, **learner)
    trained, reference = (
        DeviceLearner(LanguagePolicy(one, share_prefix=share), spec, LearnerPlan(total_steps=1)) for one in (model, frozen)
    )
    units = labelled(algorithm, real_units(algorithm, tiny_models.tokens), trained, reference)
    return Trainer(trained, algorithm.loss()).step(units)


@pytest.mark.parametrize("name", REAL)
def test_token_budget_and_shared_prefix_change_neither_loss_nor_gradient(name, text):
    found = []
    for budget, share in ((4096, True), (4096, False), (16, True)):
        metrics = step(REAL[name], text, 0.01, share, learning_rate=1e-3, token_budget=budget, clip_norm=0)
        found.append((metrics["loss"], metrics["gradient_norm"]))
    assert found[1] == pytest.approx(found[0], rel=1e-4, abs=1e-6)
    assert found[2] == pytest.approx(found[0], rel=1e-4, abs=1e-6)


def test_at_the_reference_the_loss_of_dpo_is_log_two_and_half_the_pairs_are_right(text):
    metrics = step(DPO(), text)
    assert metrics["loss"] == pytest.approx(float(np.log(2)), abs=1e-6)
    assert metrics["pair/margin"] == pytest.approx(0.0, abs=1e-4)


def test_rows_that_need_nothing_are_left_as_they_are():
    units = [(Row({"tokens_T": np.array([1, 2], np.int32)}, np.array([False, True])),)]
    assert labelled(BradleyTerry(), units, None) is units

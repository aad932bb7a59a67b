"""What must not change the loss or gradient of a preference algorithm: micro-batches, ranks, row order, packing, context."""

import numpy as np
import pytest
import torch
from algo_examples import (
    Letters,
    Table,
    assert_a_step_descends,
    assert_order_changes_nothing,
    assert_split_changes_nothing,
    count,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import tiny_models
from penstock.algos import CPO, DPO, KTO, ORPO, BradleyTerry, SimPO
from penstock.algos.dpo import MPO
from penstock.algos.pair_losses import PAIR_LOSSES
from penstock.config.run import LearnerSpec
from penstock.core.types import Row
from penstock.loops.columns import labelled
from penstock.loops.learn import Trainer
from penstock.models.language_policy import LanguagePolicy
from penstock.train.learner import DeviceLearner, LearnerPlan

SMOOTHING = {"robust": 0.1, "exo": 0.01}
ALL = {
    **{f"dpo {name}": DPO(beta=0.5, objective=name, smoothing=SMOOTHING.get(name, 0.0)) for name in PAIR_LOSSES},
    "dpo conservative": DPO(smoothing=0.1),
    "dpo length": DPO(length_normalised=True),
    "dpo mix": DPO(objective=MPO),
    "simpo": SimPO(),
    "orpo": ORPO(),
    "cpo": CPO(),
    "kto": KTO(weights=(1.5, 1.0)),
    "kto pairs": KTO(weights=(1.0, 1.0), data="pairs"),
}


class Noise:
    """A scorer whose log-probs depend on a row's tokens alone."""

    def __init__(self, seed):
        self.table = np.random.default_rng(seed).normal(-1.5, 0.5, (8, 8))

    def score(self, units, needs):
        rows = [row for unit in units for row in unit]
        logp = [self.table[row.tokens_T[:-1], row.tokens_T[1:]][row.action_T[1:]] for row in rows]
        return {"logp": logp}


def units_of(algorithm, seed, units=5):
    rng = np.random.default_rng(seed)

    def text(least=1):
        return "".join(rng.choice(list("abcde"), rng.integers(least, 5)))

    names = ("prompt", "completion", "chosen", "rejected")
    rows = [algorithm.rows({name: text() for name in names} | {"label": bool(i % 2)}, Letters()) for i in range(units)]
    return list(labelled(algorithm, rows, Noise(seed + 1), Noise(seed + 2)))


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000), cuts=st.sets(st.integers(1, 4)))
def test_any_split_into_micro_batches_gives_the_same_loss_metrics_and_gradient(name, seed, cuts):
    assert_split_changes_nothing(ALL[name].loss(), units_of(ALL[name], seed), cuts, seed)


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000), ranks=st.integers(2, 4))
def test_ranks_that_add_up_their_gradients_see_the_gradient_of_one(name, seed, ranks):
    units, loss, model = units_of(ALL[name], seed), ALL[name].loss(), Table(seed)
    whole, _, whole_grad = model.accumulate(loss, [units], count(units))
    parts = [model.accumulate(loss, [units[rank::ranks]], count(units)) for rank in range(ranks)]
    assert sum(part[0] for part in parts) == pytest.approx(whole, abs=1e-6)
    torch.testing.assert_close(sum(part[2] for part in parts), whole_grad, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_the_order_of_rows_does_not_matter(name, data):
    assert_order_changes_nothing(ALL[name].loss(), units_of(ALL[name], 0), data)


@pytest.mark.parametrize("name", ALL)
def test_a_step_against_the_gradient_lowers_the_loss(name):
    assert_a_step_descends(ALL[name].loss(), units_of(ALL[name], 0), 1e-4)


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


@pytest.mark.parametrize("name", REAL)
def test_token_budget_and_shared_prefix_change_neither_loss_nor_gradient(name, text):
    algorithm, found = REAL[name], []
    for budget, share in ((4096, True), (4096, False), (16, True)):
        model, frozen = tiny_models.build("qwen2", text), tiny_models.build("qwen2", text)
        with torch.no_grad():
            for parameter in model.network.parameters():
                parameter.add_(0.01 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
        spec = LearnerSpec(learning_rate=1e-3, token_budget=budget, share_prefix=share, clip_norm=0)
        learner = DeviceLearner(LanguagePolicy(model, share_prefix=share), spec, LearnerPlan(total_steps=1))
        reference = DeviceLearner(LanguagePolicy(frozen, share_prefix=share), spec, LearnerPlan(total_steps=1))
        units = labelled(algorithm, real_units(algorithm, tiny_models.tokens), learner, reference)
        metrics = Trainer(learner, algorithm.loss()).step(units)
        found.append((metrics["loss"], metrics["gradient_norm"]))
    assert found[1] == pytest.approx(found[0], rel=1e-4, abs=1e-6)
    assert found[2] == pytest.approx(found[0], rel=1e-4, abs=1e-6)


def test_at_the_reference_the_loss_of_dpo_is_log_two_and_half_the_pairs_are_right(text):
    model, frozen, algorithm = tiny_models.build("qwen2", text), tiny_models.build("qwen2", text), DPO()
    learner = DeviceLearner(LanguagePolicy(model), LearnerSpec(), LearnerPlan(total_steps=1))
    reference = DeviceLearner(LanguagePolicy(frozen), LearnerSpec(), LearnerPlan(total_steps=1))
    units = labelled(algorithm, real_units(algorithm, tiny_models.tokens), learner, reference)
    metrics = Trainer(learner, algorithm.loss()).step(units)
    assert metrics["loss"] == pytest.approx(float(np.log(2)), abs=1e-6)
    assert metrics["pair/margin"] == pytest.approx(0.0, abs=1e-4)


def test_rows_that_need_nothing_are_left_as_they_are():
    units = [(Row({"tokens_T": np.array([1, 2], np.int32)}, np.array([False, True])),)]
    assert labelled(BradleyTerry(), units, Noise(0)) is units

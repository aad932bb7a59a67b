"""DPO, SimPO, ORPO and CPO as algorithms: rows, losses on a table model, the closed-form gradient, assessment."""

import math

import numpy as np
import pytest
import torch
from algo_examples import Letters, Table, count, evaluated, lay_out

from penstock.algos import CPO, DPO, ORPO, SimPO
from penstock.algos.dpo import MPO
from penstock.core.errors import DataError, TrainingError
from penstock.core.types import Row

TOKENIZER = Letters()
PAIR = {"prompt": "ab", "chosen": "cd", "rejected": "e"}


def with_reference(units, value):
    """The units with a constant reference log-prob."""

    def filled(row):
        return Row(row.columns, row.action_T, {**row.fields, "reference_logp": np.full(int(row.action_T.sum()), value)})

    return [tuple(filled(row) for row in unit) for unit in units]


LOGP = (-0.5, -1.0, -0.5, -2.0, -1.0)
"""Of the chosen and the rejected tokens: against a reference of -1 log-ratios 0.5 0 0.5 and -1 0, so h = 1 + 1."""
LIKES = math.log1p(math.exp(-1))  # the sigmoid loss of a margin of 1


def pairs(algorithm, *columns, reference=-1.0):
    """A pair for each of the columns beside its texts."""
    return with_reference([algorithm.rows(PAIR | column, TOKENIZER) for column in columns or ({},)], reference)


def loss_of(algorithm, logp=LOGP, units=None):
    loss, _ = evaluated(algorithm, units or pairs(algorithm), logp=logp)
    return loss.item()


def test_a_pair_has_the_completion_and_its_end_as_actions_and_never_the_prompt():
    chosen, rejected = DPO().rows(PAIR, TOKENIZER)
    assert (chosen.tokens_T.tolist(), rejected.tokens_T.tolist()) == ([1, 2, 3, 4, 6], [1, 2, 5, 6])
    assert chosen.action_T.tolist() == [False, False, True, True, True]
    assert rejected.action_T.tolist() == [False, False, True, True]
    assert (chosen.fields, rejected.fields) == ({"preferred": 1.0}, {"preferred": 0.0})


def test_a_missing_text_is_named():
    with pytest.raises(DataError, match='needs the text "rejected"'):
        DPO().rows({"prompt": "a", "chosen": "b"}, TOKENIZER)


def test_the_dpo_loss_by_hand():
    loss, metrics = evaluated(DPO(beta=0.5), pairs(DPO()), logp=LOGP)
    assert loss.item() == pytest.approx(LIKES)
    assert metrics["pair/accuracy"].item() == 1.0
    assert metrics["pair/margin"].item() == pytest.approx(1.0)
    assert metrics["pair/chosen"].item() == pytest.approx(0.5)
    assert metrics["pair/rejected"].item() == pytest.approx(-0.5)
    assert metrics["nll/chosen"].item() == pytest.approx(2 / 3)


def test_each_pair_counts_what_its_column_says():
    algorithm = DPO(beta=0.5, weight="w")
    logp = (*LOGP, -1.0, -1.0, -1.0, -1.0, -1.0)  # β h = 1, then 0
    loss, metrics = evaluated(algorithm, pairs(algorithm, {"w": 1}, {"w": 0.25}), logp=logp)
    assert loss.item() == pytest.approx((LIKES + 0.25 * math.log(2)) / 2)
    assert metrics["pair/accuracy"].item() == 0.75


def test_a_weight_that_is_no_number_is_refused():
    with pytest.raises(DataError, match='"w" gives the weight'):
        DPO(weight="w").rows(PAIR | {"w": -1}, TOKENIZER)


def test_each_pair_has_the_soft_label_that_its_column_says():
    algorithm = DPO(beta=0.5, probability="p")
    found = loss_of(algorithm, LOGP * 2, pairs(algorithm, {"p": 1.0}, {"p": 0.75}))  # β h = 1 in both pairs
    assert found == pytest.approx((LIKES + 0.75 * LIKES + 0.25 * math.log1p(math.exp(1))) / 2)


def test_equal_soft_labels_are_conservative_dpo():
    algorithm = DPO(probability="p")
    assert loss_of(algorithm, units=pairs(algorithm, {"p": 0.9})) == pytest.approx(loss_of(DPO(smoothing=0.1)))


def test_a_soft_label_of_one_half_does_not_tell_the_two_apart():
    algorithm = DPO(probability="p")
    liked, disliked = (loss_of(algorithm, logp, pairs(algorithm, {"p": 0.5})) for logp in (LOGP, (-1.5, -1.0, -1.5, 0.0, -1.0)))
    assert liked == pytest.approx(disliked)


@pytest.mark.parametrize("p", [1.5, -0.1, None, True])
def test_a_soft_label_that_is_no_probability_is_refused(p):
    with pytest.raises(DataError, match='"p" gives the probability'):
        DPO(probability="p").rows(PAIR | {"p": p}, TOKENIZER)


A, B = math.log(0.75), math.log(0.5)
SHARE = 1 / (1 + math.exp(-1 / 2))  # DiscoPOP's share of the exponential where ρ = 1 and its temperature is 2


@pytest.mark.parametrize(
    ("algorithm", "logp", "loss"),
    [
        (DPO(beta=0.6, length_normalised=True), LOGP, math.log1p(math.exp(-0.6 * (1 / 3 + 1 / 2)))),
        (DPO(objective="ipo", beta=0.1), LOGP, (5 / 6 - 5) ** 2),
        (DPO(objective="ipo", beta=0.1, length_normalised=False), LOGP, (2 - 5) ** 2),
        (DPO(objective="discopop", beta=0.5, discopop_tau=2.0), LOGP, (1 - SHARE) * LIKES + SHARE * math.exp(-1)),
        (SimPO(beta=2.0, margin=0.5), (-1.0, -1.0, -1.0, -2.0, -1.0), math.log1p(math.exp(-(2 * (-1 + 1.5) - 0.5)))),
        (ORPO(weight=0.2), (A, A, A, B, B), -A + 0.2 * math.log(4 / 3)),
        (CPO(beta=0.5, nll_weight=0.3), (-1.0, -2.0, -0.0, -1.0, -1.0), math.log1p(math.exp(0.5 * (3 - 2))) + 0.3 * 1.0),
    ],
    ids=[
        "length-normalised DPO compares means of log-ratios",
        "IPO reads means a token",
        "IPO reads sums where they are asked for",
        "the temperature of DiscoPOP is a field",
        "SimPO",
        "ORPO",
        "CPO",
    ],
)
def test_a_loss_by_hand(algorithm, logp, loss):
    assert loss_of(algorithm, logp) == pytest.approx(loss)


def test_a_mix_is_the_weighted_sum_of_its_losses():
    units = DPO(objective=MPO).with_baseline(pairs(DPO()), lambda units: [np.full(3, -0.9), np.full(2, -1.1)], None)
    mixed, metrics = evaluated(DPO(objective=MPO, beta=0.5), units, logp=LOGP)
    baseline = (0.3 - 0.2) / 2
    bco = math.log1p(math.exp(-0.5 * (1 - baseline))) + math.log1p(math.exp(0.5 * (-1 - baseline)))
    assert mixed.item() == pytest.approx(0.8 * LIKES + 0.2 * bco + 2 / 3)
    assert {name for name in metrics if name.startswith("loss/")} == {"loss/sigmoid", "loss/bco", "loss/sft"}


def test_the_gradient_of_dpo_is_its_closed_form():
    """``-β σ(-β h) (∇ log π(chosen) - ∇ log π(rejected))`` (arXiv 2305.18290, eq. 8)."""
    model, beta = Table(3), 0.7
    units = pairs(DPO(), reference=-1.5)
    batch, _ = lay_out(units)
    logp_A = model.outputs(batch)["logp"]
    chosen, rejected = logp_A[:3].sum(), logp_A[3:].sum()
    h = (chosen + 3 * 1.5 - rejected - 2 * 1.5).item()
    (towards,) = torch.autograd.grad(chosen - rejected, model.logits)
    expected = -beta / (1 + math.exp(beta * h)) * towards
    model.accumulate(DPO(beta=beta).loss(), [units], count(units))
    torch.testing.assert_close(model.logits.grad, expected)


@pytest.mark.parametrize("algorithm", [DPO(), SimPO(), ORPO(), CPO()], ids=lambda algorithm: type(algorithm).__name__)
def test_the_end_token_gets_a_gradient_and_the_prompt_none(algorithm):
    model = Table()
    units = pairs(algorithm)
    model.accumulate(algorithm.loss(), [units], count(units))
    # After "d" the chosen completion ends, after "e" the rejected one; "a" predicts only the prompt's "b".
    assert model.logits.grad[4, TOKENIZER.end] < 0 < model.logits.grad[5, TOKENIZER.end]
    assert model.logits.grad[1].abs().max() == 0


SCORES = {"logp": [np.array(LOGP[:3]), np.array(LOGP[3:])]}


@pytest.mark.parametrize(
    ("algorithm", "margin"),
    [
        (DPO(beta=0.5), 1.0),
        (DPO(beta=0.6, length_normalised=True), 0.6 * (1 / 3 + 1 / 2)),
        (SimPO(beta=2.0), 2 * (-2 / 3 + 3 / 2)),
        (CPO(beta=0.5), 0.5 * (-2 + 3)),
    ],
)
def test_assessment_is_by_what_the_loss_compares(algorithm, margin):
    found = algorithm.assess(pairs(algorithm), SCORES)
    assert found == pytest.approx({"pair/accuracy": 1.0, "pair/margin": margin, "pair/nll": math.log1p(math.exp(-margin))})


def test_a_model_equal_to_its_reference_is_right_half_the_time():
    same = {"logp": [np.full(3, -1.0), np.full(2, -1.0)]}
    assert DPO().assess(pairs(DPO()), same)["pair/accuracy"] == 0.5


def test_an_assessment_without_reference_or_of_other_units_is_refused():
    units = [DPO().rows(PAIR, TOKENIZER)]
    with pytest.raises(TrainingError, match="3 log-probs and 0 of the reference"):
        DPO().assess(units, SCORES)
    with pytest.raises(TrainingError, match="score the same units first"):
        DPO().assess(units * 2, SCORES)


def test_only_what_compares_with_a_reference_needs_one():
    assert DPO().needs == {"reference"}
    assert (DPO(objective=MPO).has_baseline, DPO().has_baseline) == (True, False)
    assert SimPO().needs == ORPO().needs == CPO().needs == frozenset()


def test_earlier_tokens_count_more_by_hand():
    # with decay 1/2: 0.5 + 0.5/4 and -1; β h = 0.5 · 1.625
    algorithm = DPO(beta=0.5, decay=0.5)
    loss, metrics = evaluated(algorithm, pairs(algorithm), logp=LOGP)
    assert loss.item() == pytest.approx(math.log1p(math.exp(-0.5 * 1.625)))
    found = algorithm.assess(pairs(algorithm), SCORES)
    assert found["pair/margin"] == pytest.approx(metrics["pair/margin"].item()) == pytest.approx(0.5 * 1.625)

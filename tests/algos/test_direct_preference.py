"""DPO, SimPO, ORPO and CPO as algorithms: rows, losses on a table model, the closed-form gradient, assessment."""

import math

import numpy as np
import pytest
import torch
from algo_examples import Letters, Table, count, lay_out

from penstock.algos import CPO, DPO, ORPO, SimPO
from penstock.algos.dpo import MPO
from penstock.config.spec import parse, plain
from penstock.core.errors import DataError, SpecError, TrainingError
from penstock.core.types import Row

TOKENIZER = Letters()
PAIR = {"prompt": "ab", "chosen": "cd", "rejected": "e"}


def with_reference(units, value=0.0):
    """The units with a constant reference log-prob."""

    def filled(row):
        return Row(row.columns, row.action_T, {**row.fields, "reference_logp": np.full(int(row.action_T.sum()), value)})

    return [tuple(filled(row) for row in unit) for unit in units]


def outputs_of(*logp):
    return {"logp": torch.tensor(logp, dtype=torch.float64)}


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
    units = with_reference([DPO().rows(PAIR, TOKENIZER)], -1.0)
    batch, fields = lay_out(units)
    # log-ratios: chosen (0.5 + 0 + 0.5) = 1, rejected (-1 + 0) = -1; β h = 0.5 · 2 = 1
    loss, metrics = DPO(beta=0.5).loss()(outputs_of(-0.5, -1.0, -0.5, -2.0, -1.0), fields, batch, count(units))
    assert loss.item() == pytest.approx(math.log1p(math.exp(-1)))
    assert metrics["pair/accuracy"].item() == 1.0
    assert metrics["pair/margin"].item() == pytest.approx(1.0)
    assert metrics["pair/chosen"].item() == pytest.approx(0.5)
    assert metrics["pair/rejected"].item() == pytest.approx(-0.5)
    assert metrics["nll/chosen"].item() == pytest.approx(2 / 3)


def test_each_pair_counts_what_its_column_says():
    units = with_reference([DPO(weight="w").rows(PAIR | {"w": weight}, TOKENIZER) for weight in (1, 0.25)], -1.0)
    batch, fields = lay_out(units)
    logp = (-0.5, -1.0, -0.5, -2.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0)  # β h = 1, then 0
    loss, metrics = DPO(beta=0.5, weight="w").loss()(outputs_of(*logp), fields, batch, count(units))
    assert loss.item() == pytest.approx((math.log1p(math.exp(-1)) + 0.25 * math.log(2)) / 2)
    assert metrics["pair/accuracy"].item() == 0.75


def test_a_weight_that_is_no_number_is_refused():
    with pytest.raises(DataError, match='"w" gives the weight'):
        DPO(weight="w").rows(PAIR | {"w": -1}, TOKENIZER)


def test_each_pair_has_the_soft_label_that_its_column_says():
    units = with_reference([DPO(probability="p").rows(PAIR | {"p": p}, TOKENIZER) for p in (1.0, 0.75)], -1.0)
    batch, fields = lay_out(units)
    logp = (-0.5, -1.0, -0.5, -2.0, -1.0) * 2  # β h = 1 in both pairs
    loss, _ = DPO(beta=0.5, probability="p").loss()(outputs_of(*logp), fields, batch, count(units))
    likes, dislikes = math.log1p(math.exp(-1)), math.log1p(math.exp(1))
    assert loss.item() == pytest.approx((likes + 0.75 * likes + 0.25 * dislikes) / 2)


def test_equal_soft_labels_are_conservative_dpo():
    units = with_reference([DPO(probability="p").rows(PAIR | {"p": 0.9}, TOKENIZER)], -1.0)
    batch, fields = lay_out(units)
    given = outputs_of(-0.5, -1.0, -0.5, -2.0, -1.0), fields, batch, count(units)
    assert DPO(probability="p").loss()(*given)[0].item() == pytest.approx(DPO(smoothing=0.1).loss()(*given)[0].item())


def test_a_soft_label_of_one_half_does_not_tell_the_two_apart():
    units = with_reference([DPO(probability="p").rows(PAIR | {"p": 0.5}, TOKENIZER)], -1.0)
    batch, fields = lay_out(units)
    liked, _ = DPO(probability="p").loss()(outputs_of(-0.5, -1.0, -0.5, -2.0, -1.0), fields, batch, count(units))
    disliked, _ = DPO(probability="p").loss()(outputs_of(-1.5, -1.0, -1.5, 0.0, -1.0), fields, batch, count(units))
    assert liked.item() == pytest.approx(disliked.item())


@pytest.mark.parametrize("p", [1.5, -0.1, None, True])
def test_a_soft_label_that_is_no_probability_is_refused(p):
    with pytest.raises(DataError, match='"p" gives the probability'):
        DPO(probability="p").rows(PAIR | {"p": p}, TOKENIZER)


@pytest.mark.parametrize("more", [{"smoothing": 0.1}, {"objective": "ipo"}, {"objective": {"sigmoid": 1, "bco": 1}}])
def test_soft_labels_go_with_the_sigmoid_alone(more):
    with pytest.raises(SpecError, match="probability="):
        DPO(probability="p", **more)


def test_length_normalised_dpo_compares_means_of_log_ratios():
    units = with_reference([DPO().rows(PAIR, TOKENIZER)], -1.0)
    batch, fields = lay_out(units)
    loss, _ = DPO(beta=0.6, length_normalised=True).loss()(
        outputs_of(-0.5, -1.0, -0.5, -2.0, -1.0), fields, batch, count(units)
    )
    assert loss.item() == pytest.approx(math.log1p(math.exp(-0.6 * (1 / 3 + 1 / 2))))


def test_ipo_reads_means_a_token_unless_sums_are_asked_for():
    units = with_reference([DPO().rows(PAIR, TOKENIZER)], -1.0)
    batch, fields = lay_out(units)
    given = outputs_of(-0.5, -1.0, -0.5, -2.0, -1.0), fields, batch, count(units)
    means, _ = DPO(objective="ipo", beta=0.1).loss()(*given)
    sums, _ = DPO(objective="ipo", beta=0.1, length_normalised=False).loss()(*given)
    assert sums.item() == pytest.approx((2 - 5) ** 2)
    assert means.item() == pytest.approx((5 / 6 - 5) ** 2)


def test_a_mix_is_the_weighted_sum_of_its_losses():
    units = with_reference([DPO().rows(PAIR, TOKENIZER)], -1.0)
    units = DPO(objective=MPO).with_baseline(units, lambda units: [np.full(3, -0.9), np.full(2, -1.1)], None)
    batch, fields = lay_out(units)
    given = outputs_of(-0.5, -1.0, -0.5, -2.0, -1.0), fields, batch, count(units)
    mixed, metrics = DPO(objective=MPO, beta=0.5).loss()(*given)
    baseline = (0.3 - 0.2) / 2
    sigmoid = math.log1p(math.exp(-1))
    bco = math.log1p(math.exp(-0.5 * (1 - baseline))) + math.log1p(math.exp(0.5 * (-1 - baseline)))
    assert mixed.item() == pytest.approx(0.8 * sigmoid + 0.2 * bco + 2 / 3)
    assert {name for name in metrics if name.startswith("loss/")} == {"loss/sigmoid", "loss/bco", "loss/sft"}


def test_the_gradient_of_dpo_is_its_closed_form():
    """``-β σ(-β h) (∇ log π(chosen) - ∇ log π(rejected))`` (arXiv 2305.18290, eq. 8)."""
    model, beta = Table(3), 0.7
    units = with_reference([DPO().rows(PAIR, TOKENIZER)], -1.5)
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
    units = with_reference([algorithm.rows(PAIR, TOKENIZER)], -1.0)
    model.accumulate(algorithm.loss(), [units], count(units))
    # After "d" the chosen completion ends, after "e" the rejected one; "a" predicts only the prompt's "b".
    assert model.logits.grad[4, TOKENIZER.end] < 0 < model.logits.grad[5, TOKENIZER.end]
    assert model.logits.grad[1].abs().max() == 0


def test_simpo_by_hand():
    units = [SimPO().rows(PAIR, TOKENIZER)]
    batch, fields = lay_out(units)
    loss, _ = SimPO(beta=2.0, margin=0.5).loss()(outputs_of(-1.0, -1.0, -1.0, -2.0, -1.0), fields, batch, count(units))
    assert loss.item() == pytest.approx(math.log1p(math.exp(-(2 * (-1 + 1.5) - 0.5))))


def test_orpo_by_hand():
    units = [ORPO().rows(PAIR, TOKENIZER)]
    batch, fields = lay_out(units)
    a, b = math.log(0.75), math.log(0.5)
    loss, _ = ORPO(weight=0.2).loss()(outputs_of(a, a, a, b, b), fields, batch, count(units))
    assert loss.item() == pytest.approx(-a + 0.2 * math.log(4 / 3))


def test_cpo_by_hand():
    units = [CPO().rows(PAIR, TOKENIZER)]
    batch, fields = lay_out(units)
    loss, _ = CPO(beta=0.5, nll_weight=0.3).loss()(outputs_of(-1.0, -2.0, -0.0, -1.0, -1.0), fields, batch, count(units))
    assert loss.item() == pytest.approx(math.log1p(math.exp(0.5 * (3 - 2))) + 0.3 * 1.0)


SCORES = {"logp": [np.array([-0.5, -1.0, -0.5]), np.array([-2.0, -1.0])]}


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
    found = algorithm.assess(with_reference([algorithm.rows(PAIR, TOKENIZER)], -1.0), SCORES)
    assert found == pytest.approx({"pair/accuracy": 1.0, "pair/margin": margin, "pair/nll": math.log1p(math.exp(-margin))})


def test_a_model_equal_to_its_reference_is_right_half_the_time():
    units = with_reference([DPO().rows(PAIR, TOKENIZER)], -1.0)
    same = {"logp": [np.full(3, -1.0), np.full(2, -1.0)]}
    assert DPO().assess(units, same)["pair/accuracy"] == 0.5


def test_an_assessment_without_reference_or_of_other_units_is_refused():
    units = [DPO().rows(PAIR, TOKENIZER)]
    with pytest.raises(TrainingError, match="3 log-probs and 0 of the reference"):
        DPO().assess(units, SCORES)
    with pytest.raises(TrainingError, match="score the same units first"):
        DPO().assess(units * 2, SCORES)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta": 0.0}, r"DPO\.beta=0\.0 must be above 0; 0\.1 is usual"),
        ({"objective": "exo"}, "infinite without smoothing"),
        ({"objective": "robust"}, 'without smoothing is "sigmoid"'),
        ({"objective": "hinge", "smoothing": 0.1}, "no effect on hinge"),
        ({"smoothing": 0.5}, "below 0.5"),
        ({"objective": {"sigmoid": 1.0, "hing": 1.0}}, '"hing" is unknown'),
        ({"objective": {"sigmoid": 0.0}}, "positive one or leave it out"),
        ({"objective": {}}, "objective is empty"),
        ({"objective": "sft"}, "prefers nothing; use SFT"),
    ],
)
def test_an_impossible_dpo_is_refused_with_the_fix(options, message):
    with pytest.raises(SpecError, match=message):
        DPO(**options)


@pytest.mark.parametrize(
    "make", [lambda: SimPO(beta=-1.0), lambda: SimPO(margin=-1.0), lambda: ORPO(weight=0.0), lambda: CPO(nll_weight=-1.0)]
)
def test_impossible_options_of_the_others_are_refused(make):
    with pytest.raises(SpecError):
        make()


@pytest.mark.parametrize("algorithm", [DPO(objective=MPO), DPO(objective="exo", smoothing=1e-3), SimPO(), ORPO(), CPO()])
def test_a_spec_survives_the_journey_as_plain_values(algorithm):
    assert parse(type(algorithm), plain(algorithm)) == algorithm


def test_only_what_compares_with_a_reference_needs_one():
    assert DPO().needs == {"reference"}
    assert (DPO(objective=MPO).has_baseline, DPO().has_baseline) == (True, False)
    assert SimPO().needs == ORPO().needs == CPO().needs == frozenset()


def test_earlier_tokens_count_more_by_hand():
    units = with_reference([DPO().rows(PAIR, TOKENIZER)], -1.0)
    batch, fields = lay_out(units)
    # log-ratios 0.5 0 0.5 and -1 0; with decay 1/2: 0.5 + 0.5/4 and -1; β h = 0.5 · 1.625
    algorithm = DPO(beta=0.5, decay=0.5)
    logp = outputs_of(-0.5, -1.0, -0.5, -2.0, -1.0)
    loss, metrics = algorithm.loss()(logp, fields, batch, count(units))
    assert loss.item() == pytest.approx(math.log1p(math.exp(-0.5 * 1.625)))
    found = algorithm.assess(units, {"logp": [np.array([-0.5, -1.0, -0.5]), np.array([-2.0, -1.0])]})
    assert found["pair/margin"] == pytest.approx(metrics["pair/margin"].item()) == pytest.approx(0.5 * 1.625)


def test_discopop_s_temperature_is_a_field():
    units = with_reference([DPO().rows(PAIR, TOKENIZER)], -1.0)
    batch, fields = lay_out(units)
    given = outputs_of(-0.5, -1.0, -0.5, -2.0, -1.0), fields, batch, count(units)
    loss, _ = DPO(objective="discopop", beta=0.5, discopop_tau=2.0).loss()(*given)
    share = 1 / (1 + math.exp(-1 / 2))  # ρ = 1
    assert loss.item() == pytest.approx((1 - share) * math.log1p(math.exp(-1)) + share * math.exp(-1))


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"discopop_tau": 1.0}, "discopop_tau has no effect on sigmoid"),
        ({"objective": {"ipo": 1.0, "sft": 1.0}}, "a mix needs one of them"),
        ({"decay": 0.9, "length_normalised": True}, "choose one"),
        ({"decay": 0.0}, "decay"),
    ],
)
def test_options_that_do_not_go_together_are_refused(fields, problem):
    with pytest.raises(SpecError, match=problem):
        DPO(**fields)

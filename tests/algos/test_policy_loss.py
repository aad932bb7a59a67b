"""How the inputs of an online loss are put together, by hand: two rows of two tokens and one, at ratio 1."""

from types import SimpleNamespace

import pytest
import torch
from algo_examples import tensor

from penstock.algos import GRPO, PPO, EntropyBonus, KLPenalty
from penstock.core.contracts import Denominator
from penstock.ui.metrics import KNOWN

COUNTS = Denominator(tokens=6, rows=4, units=2)  # of a batch twice the size of this micro-batch
BATCH = SimpleNamespace(row_A=torch.tensor([0, 0, 1]))
IN_LOSS = KLPenalty(place="loss", estimator="k2", coefficient=0.1)


def fields(*, weight=(1.0, 1.0, 1.0)):
    return {
        "advantage": tensor(1.0, 1.0, -2.0),
        "old_logp": tensor(-1.0, -1.0, -1.0),
        "weight": tensor(*weight),
        "reference_logp": tensor(-2.0, -1.0, -3.0),
        "kl_coefficient": tensor(0.1, 0.3),
        "entropy_coefficient": tensor(0.2, 0.2),
        "old_value": tensor(0.0, 0.0, 0.0),
        "return": tensor(1.0, 2.0, -1.0),
    }


def outputs():
    return {"logp": tensor(-1.0, -1.0, -1.0), "entropy": tensor(0.5, 1.0, 1.5), "value": tensor(0.1, 0.0, 0.0)}


def test_the_policy_term_is_divided_by_the_batch_count_of_its_aggregate():
    token, _ = GRPO(aggregate="token").loss()(outputs(), fields(), BATCH, COUNTS)
    assert token.item() == pytest.approx((-1 - 1 + 2) / 6)
    sequence, _ = GRPO(aggregate="sequence").loss()(outputs(), fields(weight=(0.5, 0.5, 1.0)), BATCH, COUNTS)
    assert sequence.item() == pytest.approx((-0.5 - 0.5 + 2) / 4)


def test_a_penalty_in_the_loss_is_added_with_the_coefficient_of_its_row():
    # k2: (-1 - -2)²/2 = 0.5, 0, (-1 - -3)²/2 = 2; rows weigh them by 0.1 and 0.3
    loss, metrics = GRPO(kl=IN_LOSS).loss()(outputs(), fields(), BATCH, COUNTS)
    assert metrics["kl/loss"].item() == pytest.approx((0.1 * 0.5 + 0.3 * 2) / 6)
    assert loss.item() == pytest.approx((0 + 0.65) / 6)


def test_entropy_is_rewarded():
    algorithm = PPO(entropy=EntropyBonus(coefficient=0.2), value_coefficient=0.0)
    loss, metrics = algorithm.loss()(outputs(), fields(), BATCH, COUNTS)
    assert metrics["policy/entropy"].item() == pytest.approx(3 / 6)
    assert loss.item() == pytest.approx(-0.2 * 3 / 6)


def test_the_value_term_is_added_with_its_coefficient():
    # errors (0.1 - 1)², 2², 1²; half their sum over 6 tokens, times 0.5
    loss, metrics = PPO().loss()(outputs(), fields(), BATCH, COUNTS)
    assert metrics["value/loss"].item() == pytest.approx(0.5 * (0.81 + 4 + 1) / 6)
    assert loss.item() == pytest.approx(0.25 * 5.81 / 6)
    assert metrics["loss"].item() == pytest.approx(loss.item())


def test_fractions_are_of_tokens_whatever_the_aggregate():
    found = {"logp": tensor(0.0, -1.0, -1.0)}  # ratio e where the advantage wants more: cut
    _, metrics = GRPO(aggregate="sequence").loss()(found, fields(weight=(0.5, 0.5, 1.0)), BATCH, COUNTS)
    assert metrics["policy/clip_fraction"].item() == pytest.approx(1 / 6)


def test_no_metric_holds_on_to_the_graph():
    logp_A, value_A = tensor(-1.0, -1.0, -1.0).requires_grad_(), tensor(0.1, 0.0, 0.0).requires_grad_()
    found = {"logp": logp_A, "entropy": logp_A.exp(), "value": value_A}
    _, metrics = PPO(entropy=EntropyBonus(coefficient=0.1), kl=IN_LOSS).loss()(found, fields(), BATCH, COUNTS)
    assert not any(value.requires_grad for value in metrics.values())


def test_the_terms_of_a_loss_are_logged_under_the_names_that_have_labels():
    algorithm = PPO(entropy=EntropyBonus(coefficient=0.1), kl=IN_LOSS)
    _, metrics = algorithm.loss()(outputs(), fields(), BATCH, COUNTS)
    logged = {name for name in KNOWN if name.split("/")[0] in ("policy", "value", "loss")}
    logged -= {"policy/effective_sample_size"}  # the sentinels measure it
    assert logged == {"policy/loss", "policy/clip_fraction", "policy/entropy", "value/loss", "value/clip_fraction", "loss"}
    assert logged <= set(metrics)


def test_a_correction_weighs_the_objective_and_neither_penalty_nor_entropy():
    plain_loss, plain = GRPO(kl=IN_LOSS).loss()(outputs(), fields(), BATCH, COUNTS)
    given = {**fields(), "importance_weight": tensor(2.0, 0.0, 1.0), "proximal_logp": tensor(-1.0, -1.0, -1.0)}
    loss, metrics = GRPO(kl=IN_LOSS).loss()(outputs(), given, BATCH, COUNTS)
    assert metrics["kl/loss"] == plain["kl/loss"]
    assert loss.item() == pytest.approx((-2 * 1 - 0 + 2) / 6 + plain["kl/loss"].item())
    assert plain_loss.item() == pytest.approx((-1 - 1 + 2) / 6 + plain["kl/loss"].item())

"""Supervised fine-tuning and reward models: rows from texts, losses, and held-out assessment."""

import math

import numpy as np
import pytest
from algo_examples import Letters, Table, count, evaluated

from penstock.algos import SFT, BradleyTerry
from penstock.core.errors import DataError, TrainingError

TOKENIZER = Letters()
PAIR = {"prompt": "a", "chosen": "bc", "rejected": "d"}


def scores(logp=(), score=()):
    return {"logp": [np.array(row) for row in logp], "score": list(score)}


@pytest.mark.parametrize(
    ("prompt", "completion", "tokens", "action"),
    [
        ("ab", "cd", [1, 2, 3, 4, 6], [False, False, True, True, True]),
        ("ab", "", [1, 2, 6], [False, False, True]),  # an empty answer still has to end
        ("", "cd", [3, 4, 6], [False, True, True]),  # nothing predicts the first token
    ],
)
def test_completion_and_end_token_are_learned_and_the_prompt_is_not(prompt, completion, tokens, action):
    (row,) = SFT().rows({"prompt": prompt, "completion": completion}, TOKENIZER)
    assert row.tokens_T.tolist() == tokens
    assert row.action_T.tolist() == action


def test_a_completion_that_brings_its_own_end_is_not_ended_twice():
    class Closing(Letters):
        def encode(self, text):
            return [*super().encode(text), self.end]

    class Open(Letters):
        def encode(self, text):
            return Closing().encode(text) if text == "c" else super().encode(text)

    (row,) = SFT().rows({"prompt": "a", "completion": "c"}, Open())
    assert row.tokens_T.tolist() == [1, 3, 6]


def test_nothing_to_learn_is_refused():
    with pytest.raises(DataError, match="nothing to learn"):
        SFT().rows({"prompt": "", "completion": ""}, TOKENIZER)


@pytest.mark.parametrize("example", [{"prompt": "a"}, {"prompt": "a", "completion": None, "answer": "b"}])
def test_a_missing_text_is_named(example):
    with pytest.raises(DataError, match='needs the text "completion"'):
        SFT().rows(example, TOKENIZER)


@pytest.mark.parametrize(("aggregate", "weights"), [("token", [1, 1, 1]), ("sequence", [1 / 3] * 3)])
def test_the_weight_of_a_token_follows_the_aggregate(aggregate, weights):
    (row,) = SFT(aggregate=aggregate).rows({"prompt": "a", "completion": "bc"}, TOKENIZER)
    assert row.fields["weight"].tolist() == pytest.approx(weights)


@pytest.mark.parametrize(("aggregate", "loss"), [("token", (1 + 2 + 6) / 3), ("sequence", (1.5 + 6) / 2)])
def test_the_likelihood_loss_by_hand(aggregate, loss):
    algorithm = SFT(aggregate=aggregate)
    units = [algorithm.rows({"prompt": "a", "completion": text}, TOKENIZER) for text in ("b", "")]
    found, metrics = evaluated(algorithm, units, logp=[-1.0, -2.0, -6.0])
    assert found.item() == pytest.approx(loss)
    assert metrics["nll"].item() == pytest.approx(3.0)


def test_the_end_token_gets_a_gradient_and_the_prompt_none():
    model, algorithm = Table(), SFT()
    units = [algorithm.rows({"prompt": "abc", "completion": "d"}, TOKENIZER)]
    model.accumulate(algorithm.loss(), [units], count(units))
    # Row 4 of the table (after "d") predicts the end; rows 1 and 2 predict prompt tokens.
    assert model.logits.grad[4, TOKENIZER.end] < 0
    assert model.logits.grad[[1, 2]].abs().max() == 0


def test_assessment_is_nats_per_token_over_all_rows():
    units = [SFT().rows({"prompt": "a", "completion": text}, TOKENIZER) for text in ("b", "")]
    found = SFT().assess(units, scores(logp=[[-1.0, -2.0], [-6.0]]))
    assert found == pytest.approx({"nll": 3.0, "perplexity": math.exp(3.0)})


def test_an_assessment_of_other_units_is_refused():
    with pytest.raises(TrainingError, match="1 log-probs for 2 action tokens"):
        SFT().assess([SFT().rows({"prompt": "a", "completion": "b"}, TOKENIZER)], scores(logp=[[-1.0]]))


def test_a_pair_has_its_preferred_row_first_and_no_actions():
    chosen, rejected = BradleyTerry().rows(PAIR, TOKENIZER)
    assert chosen.tokens_T.tolist() == [1, 2, 3, 6]
    assert rejected.tokens_T.tolist() == [1, 4, 6]
    assert (chosen.fields["preferred"], rejected.fields["preferred"]) == (1.0, 0.0)
    assert not chosen.action_T.any()
    assert not rejected.action_T.any()


def evaluated_pairs(algorithm, order):
    """Two pairs with scores 3|1 and 0|0 in a given row order."""
    units = [BradleyTerry().rows(PAIR, TOKENIZER) for _ in range(2)]
    return evaluated(algorithm, units, order, score=np.array([3.0, 1.0, 0.0, 0.0])[order])


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 0, 2, 1], [1, 0, 3, 2]])
def test_the_pair_loss_by_hand_in_any_row_order(order):
    loss, metrics = evaluated_pairs(BradleyTerry(), order)
    assert loss.item() == pytest.approx((math.log1p(math.exp(-2)) + math.log(2)) / 2)
    assert metrics["pair/accuracy"].item() == pytest.approx((1 + 0.5) / 2)
    assert metrics["pair/margin"].item() == pytest.approx(1.0)
    assert metrics["score/mean"].item() == pytest.approx(1.0)


def test_margin_and_centring_reach_the_loss():
    loss, _ = evaluated_pairs(BradleyTerry(margin=2.0, centring=0.5), [0, 1, 2, 3])
    # pair 1: log 2 + 0.5 * 4²; pair 2: log(1 + e²) + 0
    assert loss.item() == pytest.approx((math.log(2) + 8 + math.log1p(math.exp(2))) / 2)


def test_pair_assessment_by_hand():
    units = [BradleyTerry().rows(PAIR, TOKENIZER) for _ in range(3)]
    found = BradleyTerry().assess(units, scores(score=[3, 1, 0, 1, 2, 2]))
    assert found["pair/accuracy"] == pytest.approx((1 + 0 + 0.5) / 3)
    assert found["pair/margin"] == pytest.approx((2 - 1 + 0) / 3)
    nll = (math.log1p(math.exp(-2)) + math.log1p(math.exp(1)) + math.log(2)) / 3
    assert found["pair/nll"] == pytest.approx(nll)


@pytest.mark.parametrize("given", [[], [1.0]])
def test_pair_assessment_of_other_units_is_refused(given):
    with pytest.raises(TrainingError, match="score the same units"):
        BradleyTerry().assess([BradleyTerry().rows(PAIR, TOKENIZER)], scores(score=given))

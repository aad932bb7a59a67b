"""Process reward models: where a step is read, the loss of its labels, assessment."""

import math

import numpy as np
import pytest
import torch
from algo_examples import Letters, evaluated

import tiny_models
from penstock.algos import ProcessReward
from penstock.config.run import LearnerSpec
from penstock.core.errors import DataError, TrainingError
from penstock.loops.learn import Trainer
from penstock.models.language_model import LanguageModel
from penstock.models.language_policy import LanguagePolicy
from penstock.train.learner import DeviceLearner, LearnerPlan

TOKENIZER = Letters()
PRM = ProcessReward(separator="e")
SOLUTION = {"prompt": "a", "steps": ["bc", "d", "b"], "labels": [1, None, False]}


def test_a_step_is_read_before_its_separator_and_only_if_it_has_a_label():
    (row,) = PRM.rows(SOLUTION, TOKENIZER)
    assert row.tokens_T.tolist() == [1, 2, 3, 5, 4, 5, 2, 5]
    assert np.flatnonzero(row.action_T).tolist() == [3, 7]  # the score is that of the token before
    assert row.fields["label"].tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": None}, "column steps"),
        ({"steps": "bc"}, "column steps"),
        ({"steps": ["b", ""], "labels": [1, 1]}, "not empty"),
        ({"labels": [1]}, "one for each of its 3 steps"),
        ({"labels": [1, 2, 0]}, "from 0 to 1, or null"),
        ({"labels": [None] * 3}, "no step of the example has a label"),
    ],
)
def test_a_solution_that_cannot_be_judged_is_refused(change, message):
    with pytest.raises(DataError, match=message):
        PRM.rows(SOLUTION | change, TOKENIZER)


def test_the_loss_by_hand_is_a_mean_over_labelled_steps():
    units = [PRM.rows(SOLUTION, TOKENIZER), PRM.rows(SOLUTION | {"labels": [0.5, None, None]}, TOKENIZER)]
    loss, metrics = evaluated(PRM, units, step=[math.log(3), math.log(3), 0.0])
    assert loss.item() == pytest.approx((math.log(4 / 3) + math.log(4) + math.log(2)) / 3)
    assert metrics["step/accuracy"].item() == pytest.approx((1 + 0 + 0.5) / 3)


def test_assessment_by_hand():
    units = [PRM.rows(SOLUTION, TOKENIZER)]
    scores = {"step": [np.array([math.log(3), math.log(3)])]}
    expected = {"step/accuracy": 0.5, "step/nll": (math.log(4 / 3) + math.log(4)) / 2}
    assert PRM.assess(units, scores) == pytest.approx(expected)
    with pytest.raises(TrainingError, match="score the same units first"):
        PRM.assess(units * 2, scores)


def score_model(text):
    from transformers import AutoModelForSequenceClassification

    torch.manual_seed(0)
    config = tiny_models.config_of("qwen2", len(text), num_labels=1)
    network = AutoModelForSequenceClassification.from_config(config, dtype=torch.float32)
    tiny_models.randomise(network)
    return LanguageModel(network.eval(), text, "score")


def test_a_steps_score_reads_the_text_up_to_its_end_and_nothing_after(text):
    learner = DeviceLearner(LanguagePolicy(score_model(text)), LearnerSpec(), LearnerPlan(total_steps=1))
    steps = ["2 + 2 = 4", "4 + 3 = 7"]
    rows = ProcessReward().rows({"prompt": "sum", "steps": steps, "labels": [1, 1]}, text)
    found = learner.score([rows], frozenset({"step"}))["step"][0]
    for number, place in enumerate(np.flatnonzero(rows[0].action_T)):
        alone = tiny_models.row(rows[0].tokens_T[:place], np.zeros(0, np.int32))
        assert found[number] == pytest.approx(learner.score([(alone,)], frozenset({"score"}))["score"][0], abs=1e-5)


def test_right_and_wrong_steps_are_told_apart_after_some_training(text):
    learner = DeviceLearner(LanguagePolicy(score_model(text)), LearnerSpec(learning_rate=3e-3), LearnerPlan(total_steps=15))
    algorithm = ProcessReward()
    trainer = Trainer(learner, algorithm.loss())
    units = [
        algorithm.rows({"prompt": "sum", "steps": ["the lazy dog", f"{i} = {i + wrong}"], "labels": [1, 1 - wrong]}, text)
        for i in range(4)
        for wrong in (0, 1)
    ]
    before = algorithm.assess(units, learner.score(units, frozenset({"step"})))
    for _ in range(15):
        trainer.step(units)
    after = algorithm.assess(units, learner.score(units, frozenset({"step"})))
    assert after["step/nll"] < 0.5 * before["step/nll"]

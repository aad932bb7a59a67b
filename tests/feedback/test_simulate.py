"""Simulated annotators: what they are known to do, and that weights found from their votes make a better reward model."""

import random

import numpy as np
import pytest
from feedback_examples import SIMULATED, pair

from penstock.config.ask import Simulated
from penstock.feedback.exchange.snapshot import Labels, annotator_weights, preference_pairs, snapshot
from penstock.feedback.judgements import Comparison, Unit, comparisons
from penstock.feedback.quality.reliability import assess, preference_probability
from penstock.feedback.records import Event, Item, Lease, Response, Task
from penstock.feedback.simulate import answer_all, judge, question_of, utilities

CROWD = [Simulated(name=f"sim{number}") for number in range(5)] + [Simulated(name="foe", noise=0, adversary=True)]
"""Five with 30% noise, and one adversary."""


def rng(seed):
    return np.random.Generator(np.random.Philox(seed))


def vote_on(people, utility_U2, overlap, seed=0):
    """Votes on pairs without a store: each pair is judged by ``overlap`` people chosen at random.

    Args:
        people: who may be chosen.
        utility_U2: how good both responses of each pair really are.
        overlap: judgements a pair.
        seed: of everything random.
    """
    draw = random.Random(seed)
    found, task = [], pair()
    for index, values in enumerate(np.asarray(utility_U2, np.float64)):
        for person in draw.sample(list(people), overlap):
            order = (0, 1) if draw.random() < 0.5 else (1, 0)
            seen = utilities(person, values.tolist(), order, draw)
            found.append(
                Comparison(
                    Event(len(found) + 1, "", 0.0, "vote", "", person.name, 0, {}, order, 30.0, "1"),
                    task,
                    Unit(f"pair {index}", "first", "second"),
                    (0, 1),
                    float(np.sign(seen[0] - seen[1])),
                    1 if order == (0, 1) else -1,
                )
            )
    return found


def test_noise_bias_and_malice_are_as_stated():
    utility_U2 = rng(0).normal(size=(2000, 2))
    better_U = np.sign(utility_U2[:, 0] - utility_U2[:, 1])
    people = [
        Simulated(name="noisy", noise=0.3),
        Simulated(name="lefty", noise=0.0, left_bias=1.0),
        Simulated(name="foe", noise=0.0, adversary=True),
    ]
    found = vote_on(people, utility_U2, overlap=3)
    said = {person.name: np.array([c.sign for c in found if c.annotator == person.name]) for person in people}
    assert (said["noisy"] == better_U).mean() == pytest.approx(0.7, abs=0.03)
    assert (said["foe"] == better_U).mean() == 0
    assert all(c.sign == c.side for c in found if c.annotator == "lefty")


def test_the_adversary_is_found_in_a_store(store):
    store.ask([pair(str(number), overlap=3) for number in range(80)])
    good = {task: float(value) for task, value in zip(store.tasks(), rng(1).normal(size=80), strict=True)}
    assert answer_all(store, CROWD, lambda task: (good[task.id], -good[task.id])) == 240
    taken = snapshot(store)
    report = {quality.annotator: quality for quality in assess(comparisons(taken.events, taken.tasks), {})}
    assert [name for name, quality in report.items() if "against the others" in quality.concerns] == ["foe"]
    assert report["foe"].weight == 0
    assert set(taken.natures.values()) == {"simulated"}
    assert preference_pairs(taken) == []
    assert (
        len(preference_pairs(taken, SIMULATED)) > 53
    )  # of the pairs that the adversary judged, those are left out on which the two others differ


def asked_by(run, text="answer", stage="ppo"):
    responses = (Response(text, run=run, stage=stage, version=3, logp=(), sampling={}), Response("other", run=run))
    return Task(Item("prompt", responses, "key/0/1"), round=f"{run}/ask-1")


def test_what_somebody_says_depends_on_the_question_and_not_on_the_name_of_the_run():
    person, draws = Simulated(name="ann", noise=0.5), []
    for task in (asked_by("one"), asked_by("two")):
        lease = Lease(task.id, "ann", (0, 1), 0.0, 900.0)
        draws.append([judge(person, task, lease, (1.0, 0.0), seed) for seed in range(40)])
    assert [(said.body, said.latency) for said in draws[0]] == [(said.body, said.latency) for said in draws[1]]
    assert not {said.key for said in draws[0]} & {said.key for said in draws[1]}  # each is an act of its own


@pytest.mark.parametrize("other", [{"text": "another answer"}, {"stage": "sft"}])
def test_other_texts_or_weights_are_another_question(other):
    assert question_of(asked_by("one")) != question_of(asked_by("one", **other))


def fit(feature_UF, probability_U, ridge=1.0):
    """Weights of a logistic reward model, by Newton steps."""
    weight_F = np.zeros(feature_UF.shape[1])
    for _ in range(12):
        chance_U = 1 / (1 + np.exp(-feature_UF @ weight_F))
        slope_F = feature_UF.T @ (probability_U - chance_U) - ridge * weight_F
        curve_FF = (feature_UF.T * (chance_U * (1 - chance_U))) @ feature_UF + ridge * np.eye(len(weight_F))
        weight_F = weight_F + np.linalg.solve(curve_FF, slope_F)
    return weight_F


def held_out_accuracy(weights, seed, people=CROWD, pairs=300, features=12):
    """Of a reward model trained on simulated votes, on pairs whose truth is known."""
    draw = rng(seed)
    true_F, feature_U2F = draw.normal(size=features), draw.normal(size=(pairs, 2, features))
    found = vote_on(people, feature_U2F @ true_F, overlap=3, seed=seed)
    worth = annotator_weights(found, {}, Labels(weights=weights))
    votes = {}
    for comparison in found:
        votes.setdefault(comparison.unit, []).append((comparison.sign, worth[comparison.annotator]))
    probability_U = np.array([preference_probability(votes[unit]) for unit in votes])
    learnt_F = fit(feature_U2F[:, 0] - feature_U2F[:, 1], probability_U)
    test_UF = draw.normal(size=(4000, features))
    return float((np.sign(test_UF @ learnt_F) == np.sign(test_UF @ true_F)).mean())


def test_a_reward_model_of_weighted_votes_beats_one_of_equal_votes():
    weighted = np.array([held_out_accuracy("dawid_skene", seed) for seed in range(10)])
    equal = np.array([held_out_accuracy("equal", seed) for seed in range(10)])
    assert weighted.mean() > equal.mean() + 0.02
    assert (weighted > equal).sum() >= 9

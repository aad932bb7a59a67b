"""What is filled in before a batch is labelled: own log-probs, values after a cut, scaled rewards, greedy answers."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch
from loop_examples import ByToken, environment, half_flat, online, prompt_of, sample_of, small_tokens
from test_training import FAST, rewards, train

from penstock import algos
from penstock.algos import GRPO, PPO, ImportanceWeight, ReMax
from penstock.config.run import LearnerSpec
from penstock.core.errors import StreamError
from penstock.core.types import Group, Row, Sampling
from penstock.engine.generator import EmbeddedGenerator
from penstock.loops.learn import Plan, sample_metrics
from penstock.loops.rollout import Rollout

CRITIC = LearnerSpec(learning_rate=0.02, critic="shared")


def cut_and_ended():
    samples = (sample_of([30, 31], 1.0, finish="length"), sample_of([32], 0.0, place=1))
    return [Group(prompt_of(0), samples)]


def judging(model):
    """Parts whose critic has weights by chance."""
    parts = online(model, PPO(bootstrap=True), CRITIC)
    parts.learner.policy.model.value_head.linear.weight.data.normal_(generator=torch.Generator().manual_seed(0))
    return parts


def test_own_log_probs_are_the_learner_s_before_the_update(tiny):
    parts = online(tiny(), GRPO(importance_weights=(ImportanceWeight(),)), FAST)
    found = parts.labeller.columns(cut_and_ended())["proximal"]
    rows = [(Row(s.columns, s.action_T),) for s in cut_and_ended()[0].samples]
    expected = parts.learner.score(rows, frozenset({"logp"}))["logp"]
    for one, other in zip(found[0], expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_without_a_correction_nothing_is_scored(tiny):
    assert online(tiny(), GRPO(), FAST).labeller.columns(cut_and_ended()) == {}


def test_a_cut_sample_gets_the_value_of_the_state_after_its_last_action(tiny):
    parts = judging(tiny())
    groups = cut_and_ended()
    (found,) = parts.labeller.columns(groups)["bootstrap"]
    longer = np.append(groups[0].samples[0].tokens_T, 99)  # whatever comes next, the state before it is the same
    row = Row({"tokens_T": longer}, np.array([False, True, True, True]))
    expected = parts.learner.score([(row,)], frozenset({"value"}))["value"][0][-1]
    assert found[0] == pytest.approx(float(expected), rel=1e-5)
    assert found[0] != 0
    assert found[1] == 0


def test_weights_are_1_while_generator_and_learner_agree(tiny):
    parts = online(tiny(), GRPO(importance_weights=(ImportanceWeight(high=5.0),)), FAST)
    for step in train(parts, Plan(steps=3)):
        assert step.metrics["importance/mean"] == pytest.approx(1.0, abs=1e-4)
        assert step.metrics["kl/behaviour"] < 1e-6


def test_the_ratio_starts_at_1_for_stale_samples_under_a_correction(tiny):
    parts = online(tiny(), GRPO(importance_weights=(ImportanceWeight(),)), FAST, max_lag=2, batch=2)
    steps = train(parts, Plan(steps=5))
    assert max(step.metrics["max/ratio_deviation"] for step in steps) < 1e-4
    assert max(step.metrics["kl/behaviour"] for step in steps) > 1e-6


def test_the_greedy_sample_is_the_last_of_its_group_and_greedy(tiny):
    roll = Rollout(EmbeddedGenerator(tiny()), environment, ByToken(small_tokens), Sampling(max_new_tokens=6), 3, greedy=True)
    first, again = (asyncio.run(roll.group(prompt_of(0))) for _ in range(2))
    other_seed = asyncio.run(replace(roll, sampling=Sampling(max_new_tokens=6, seed=7)).group(prompt_of(0)))
    assert [bool(sample.extras.get("greedy")) for sample in first.samples] == [False, False, False, True]
    assert first.samples[3].valid
    assert first.samples[3].tokens_T.tolist() == other_seed.samples[3].tokens_T.tolist() == again.samples[3].tokens_T.tolist()
    assert first.samples[0].tokens_T.tolist() != other_seed.samples[0].tokens_T.tolist()


def test_the_greedy_sample_is_never_trained_on(tiny):
    parts = online(tiny(), ReMax(), FAST, samples=3)
    (step,) = train(parts, Plan(steps=1))
    assert step.metrics["batch/rows"] == 4 * 3
    assert len(step.groups[0].samples) == 4


def test_the_greedy_sample_is_in_no_mean_of_the_samples():
    drawn, greedy = sample_of([1, 2], 1.0), sample_of([1, 2, 3, 4], 0.5, place=1, extras={"greedy": True})
    metrics = sample_metrics([Group(prompt_of(0), (drawn, greedy))])
    assert (metrics["length/mean"], metrics["tokens/generated"], metrics["reward/greedy"]) == (2.0, 2.0, 0.5)


def test_dynamic_sampling_trains_on_groups_with_signal_alone(tiny):
    parts = online(tiny(), GRPO(), FAST, score=half_flat, dynamic_sampling=5, batch=3)
    steps = train(parts, Plan(steps=3))
    for step in steps:
        assert not {group.key.ordinal for group in step.groups} & {0, 2}
        assert step.metrics["batch/flat"] == 0.0
        assert step.metrics["batch/replaced"] > 0


def test_prompts_that_never_tell_anything_end_the_run_with_the_fix(tiny):
    parts = online(tiny(), GRPO(), FAST, score=lambda sample: 0.0, dynamic_sampling=2)
    with pytest.raises(StreamError, match=r"more than dynamic_sampling=2 .*all rewards were 0.*raise dynamic_sampling"):
        train(parts, Plan(steps=1))


@pytest.mark.parametrize(
    "algorithm",
    [
        algos.REINFORCE(baseline="batch"),
        algos.ReinforcePlusPlus(),
        algos.ReinforcePlusPlus(baseline="group"),
        algos.ReMax(),
        algos.OPO(),
        algos.GPG(),
        algos.PassAtK(k=2, right=0.7),
        algos.GDPO(),
        algos.dapo(),
        algos.gspo(),
        algos.cispo(),
        algos.gmpo(),
        algos.sapo(),
        algos.topr(),
        algos.dppo(),
        algos.clip_cov(),
        algos.kl_cov(),
        algos.pipeline_rl(),
        algos.icepop(),
        algos.PPO(estimator="vtrace", bootstrap=True),
    ],
    ids=lambda algorithm: f"{type(algorithm).__name__}-{type(algorithm.objective).__name__}",
)
def test_every_algorithm_raises_a_reward_that_any_model_can_learn(algorithm, tiny):
    parts = online(tiny(), algorithm, CRITIC if isinstance(algorithm, PPO) else FAST)
    found = rewards(train(parts, Plan(steps=10)))
    assert np.mean(found[-3:]) > found[0] + 0.1


@pytest.mark.parametrize("architecture", ["qwen2", "gpt2"])
def test_a_sample_that_filled_the_context_gets_the_value_of_its_end(tiny, architecture):
    """There is no room for one token more, neither for learned positions nor for others."""
    model = tiny(architecture)
    parts = judging(model)
    full = sample_of([30] * (model.context - 1), 1.0, finish="length")
    assert len(full.tokens_T) == model.context
    ((found,),) = parts.labeller.columns([Group(prompt_of(0), (full,))])["bootstrap"]
    assert np.isfinite(found)
    assert found != 0

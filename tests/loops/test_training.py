"""The whole loop on a tiny model: it learns, it is synchronous or late exactly as told, and a resume repeats it."""

import asyncio
import copy

import numpy as np
import pytest
from loop_examples import (
    PROMPTS,
    Interview,
    assert_same_weights,
    half_flat,
    online,
    prompt_of,
    resumed_halfway,
    rewards,
    small_tokens,
    train,
    weights_of,
)

from penstock.algos.grpo import GRPO
from penstock.algos.ppo import PPO
from penstock.algos.sft import SFT
from penstock.config.run import LearnerSpec, RewardScaling
from penstock.core.types import Row, Sampling
from penstock.loops.learn import Plan, Trainer, offline
from penstock.models.language_policy import LanguagePolicy
from penstock.observe.sentinels import Sentinels
from penstock.train.learner import DeviceLearner, LearnerPlan

FAST = LearnerSpec(learning_rate=0.02)


@pytest.mark.parametrize(("architecture", "reached"), [("qwen2", 0.95), ("gpt2", 0.95), ("t5", 0.0)])
def test_grpo_raises_a_reward_that_any_model_can_learn(architecture, reached, tiny):
    found = rewards(train(online(tiny(architecture), GRPO(), FAST), Plan(steps=12)))
    assert found[0] < 0.75
    assert np.mean(found[-3:]) > max(reached, found[0] + 0.2)


@pytest.mark.parametrize(("architecture", "critic"), [("qwen2", "shared"), ("t5", "shared"), ("t5", "separate")])
def test_ppo_with_a_critic_raises_the_reward(architecture, critic, tiny):
    parts = online(tiny(architecture), PPO(), LearnerSpec(learning_rate=0.02, critic=critic))
    found = rewards(train(parts, Plan(steps=15, minibatches=2)))
    assert np.mean(found[-3:]) > found[0] + 0.2


def test_a_reward_that_never_differs_trains_nothing(tiny):
    model = tiny()
    before = weights_of(model)
    train(online(model, GRPO(), FAST, score=lambda sample: 1.0), Plan(steps=2))
    assert_same_weights(model, before)


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.5])
@pytest.mark.parametrize("architecture", ["qwen2", "t5"])
def test_the_ratio_is_one_before_the_first_update(architecture, temperature, tiny):
    """The generator's log-probs are the learner's, at any temperature; every synchronous step begins with ratio 1."""
    parts = online(tiny(architecture), GRPO(), FAST, sampling=Sampling(max_new_tokens=10, temperature=temperature))
    for step in train(parts, Plan(steps=3)):
        assert step.metrics["max/ratio_deviation"] < 1e-4
        assert step.metrics["policy/clip_fraction"] == 0.0


def test_without_lag_every_batch_is_drawn_by_the_weights_it_trains(tiny):
    parts = online(tiny(), GRPO(), FAST)
    for step in train(parts, Plan(steps=4)):
        assert {int(v) for group in step.groups for s in group.samples for v in s.version_T[s.action_T]} == {step.index}
    assert parts.stream.source.stats.largest_lag == 0


@pytest.mark.parametrize(
    ("architecture", "max_lag", "kv"),
    [
        ("qwen2", 1, "keep"),
        ("qwen2", 3, "recompute"),
        ("qwen2", 1, "abort"),
        ("t5", 3, "keep"),
        ("t5", 1, "recompute"),
        ("t5", 3, "abort"),
    ],
)
def test_with_lag_no_batch_is_older_than_its_bound(architecture, max_lag, kv, tiny):
    """Each two of architecture, lag and kv occur together."""
    ragged = Sampling(max_new_tokens=24, stop_tokens=tuple(range(100, 140)))
    slow, more = LearnerSpec(learning_rate=1e-3), {"batch": 2, "samples": 4, "sampling": ragged}
    steps = train(online(tiny(architecture), GRPO(), slow, max_lag=max_lag, kv=kv, **more), Plan(steps=8))
    lags = [step.index - group.oldest_version for step in steps for group in step.groups]
    assert 0 < max(lags) <= max_lag
    assert not any(sample.finish == "abort" for step in steps for group in step.groups for sample in group.samples)


def test_every_prompt_is_trained_exactly_once(tiny):
    parts = online(tiny(), GRPO(), FAST, max_lag=2, batch=3)
    keys = [group.key for step in train(parts, Plan(steps=5)) for group in step.groups]
    assert sorted(keys) == sorted(prompt_of(ordinal).key for ordinal in range(15))


@pytest.mark.parametrize(
    ("architecture", "more"),
    [
        ("qwen2", {}),
        ("t5", {}),
        ("qwen2", {"scaling": RewardScaling(by="running", clip=4.0)}),
        ("qwen2", {"score": half_flat, "dynamic_sampling": 5, "batch": 2}),
    ],
    ids=["decoder", "encoder-decoder", "running scaling", "dynamic sampling"],
)
def test_a_resumed_run_equals_an_uninterrupted_one_bit_by_bit(architecture, more, tiny):
    whole, fresh = (online(tiny(architecture), GRPO(), FAST, **more) for _ in range(2))
    steps, again = resumed_halfway(whole, fresh, Plan(steps=5, minibatches=2))
    assert [step.index for step in again] == [2, 3, 4]
    assert rewards(again) == rewards(steps)[2:]
    assert [[group.key for group in step.groups] for step in again] == [[g.key for g in step.groups] for step in steps[2:]]
    assert_same_weights(fresh.model, weights_of(whole.model))


def test_failed_samples_never_reach_the_learner(tiny):
    """Half of the samples fail: the other half still learns, and the failures are counted."""
    parts = online(tiny(), GRPO(), FAST, score=lambda s: small_tokens(s) if s.key.sample % 2 else None)
    steps = train(parts, Plan(steps=8))
    assert [step.metrics["samples/failed"] for step in steps] == [16.0] * 8
    assert [step.metrics["batch/rows"] for step in steps] == [16.0] * 8
    assert rewards(steps)[-1] > rewards(steps)[0] + 0.1


def test_several_turns_are_trained_on_with_ratio_one(tiny):
    parts = online(tiny(), GRPO(), FAST, make_env=Interview)
    steps = train(parts, Plan(steps=10))
    assert max(step.metrics["max/ratio_deviation"] for step in steps) < 1e-4
    assert np.mean(rewards(steps)[-3:]) > rewards(steps)[0] + 0.2


def supervised(model, seed=0):
    """Unit of an ordinal: the prompt's first token, five times."""

    def unit_of(ordinal):
        prompt = PROMPTS[ordinal % len(PROMPTS)]
        tokens_T = np.concatenate([prompt, np.full(5, prompt[0], np.int32)])
        return (Row({"tokens_T": tokens_T}, np.arange(8) >= 3, {"weight": np.ones(5, np.float32)}),)

    learner = DeviceLearner(
        LanguagePolicy(model), LearnerSpec(learning_rate=0.01, dropout=0.05), LearnerPlan(total_steps=30, seed=seed)
    )
    return unit_of, learner, Trainer(learner, SFT().loss(), watcher=Sentinels())


def fine_tune(parts, steps, start=0):
    unit_of, _, trainer = parts

    async def run():
        return [step async for step in offline(unit_of, trainer, batch=5, steps=steps, start=start)]

    return asyncio.run(run())


def test_supervised_fine_tuning_lowers_the_loss(tiny):
    steps = fine_tune(supervised(tiny()), 30)
    assert steps[0].metrics["nll"] > 3
    assert steps[-1].metrics["nll"] < 0.5


def test_a_resumed_offline_run_equals_an_uninterrupted_one_bit_by_bit(tiny):
    whole, resumed = tiny(), tiny()
    parts = supervised(whole)
    fine_tune(parts, 3)
    state = copy.deepcopy(parts[1].state())
    fine_tune(parts, 6, start=3)
    again = supervised(resumed, seed=1)
    again[1].load_state(state)
    fine_tune(again, 6, start=3)
    assert_same_weights(resumed, weights_of(whole))

"""The loops over encoder-decoders: every kind of algorithm learns with them. See also test_training.py."""

import asyncio

import numpy as np
import pytest
import torch
from loop_examples import (
    PROMPTS,
    Interview,
    assert_same_weights,
    online,
    rewards,
    small_tokens,
    train,
    weights_of,
)

import tiny_models
from penstock.algos.grpo import GRPO
from penstock.algos.ilql import ILQL
from penstock.algos.ppo import PPO
from penstock.algos.sft import SFT
from penstock.config.learner import LearnerSpec, LoRA
from penstock.config.run import ModelSpec
from penstock.core.errors import TrainingError
from penstock.core.types import Row
from penstock.engine.encoder_decoder import embedded_generator
from penstock.loops.learn import Plan, Trainer, offline
from penstock.models.language_policy import LanguagePolicy
from penstock.models.scratch import build_model
from penstock.train.learner import DeviceLearner, LearnerPlan
from tiers import LANGUAGE

FAST = LearnerSpec(learning_rate=0.02)


def test_adapters_are_trained_with_ratio_one_and_the_rest_stays(tiny):
    pytest.importorskip("peft")
    model = tiny("t5")
    shared = model.network.shared.weight.clone()
    parts = online(model, GRPO(), LearnerSpec(learning_rate=0.02, lora=LoRA(rank=4)))
    for step in train(parts, Plan(steps=3)):
        assert step.metrics["max/ratio_deviation"] < 1e-4
    assert torch.equal(model.network.shared.weight, shared)
    assert any("lora" in name for name, parameter in model.named_parameters() if parameter.requires_grad)


def test_several_turns_are_refused_before_anything_is_trained_on(tiny):
    model = tiny("t5")
    before = weights_of(model)
    with pytest.raises(TrainingError, match="an encoder-decoder answers once"):
        train(online(model, GRPO(), FAST, make_env=Interview), Plan(steps=1))
    assert_same_weights(model, before)


def fit(model, algorithm, unit_of, steps, **spec):
    """Train offline; gives the learner and the steps' metrics."""
    learner = DeviceLearner(LanguagePolicy(model), LearnerSpec(**spec), LearnerPlan(total_steps=steps))
    trainer = Trainer(learner, algorithm.loss())

    async def run():
        return [step.metrics async for step in offline(unit_of, trainer, batch=32, steps=steps)]

    return learner, asyncio.run(run())


def greedy(model, prompts, **sampling):
    """The model's most probable answers."""

    async def everything():
        generator = embedded_generator(model)
        wanted = [tiny_models.request(p, i, temperature=0.0, **sampling) for i, p in enumerate(prompts)]
        return await asyncio.gather(*(generator.generate(one) for one in wanted))

    return [sample.tokens_T[sample.action_T].tolist() for sample in asyncio.run(everything())]


@pytest.mark.learning(*LANGUAGE)
def test_supervised_fine_tuning_learns_to_copy_the_prompt(text):
    """Words of three from eight letters, copied by cross-attention: held-out words too."""
    model = build_model(ModelSpec(architecture="encoder-decoder", context=32), (), 0, text=text)

    def word(seed):
        return np.random.default_rng(seed).integers(20, 28, 3).astype(np.int32)

    def unit_of(ordinal):
        answer = np.append(word(ordinal), model.text.end)
        return (tiny_models.row(word(ordinal), answer, weight=np.ones(4, np.float32)),)

    _, metrics = fit(model, SFT(), unit_of, 120, learning_rate=3e-3, schedule="linear", warmup=10)
    assert metrics[-1]["nll"] < 0.2
    held_out = [word(10_000 + i) for i in range(50)]
    found = greedy(model, held_out, max_new_tokens=6)
    assert np.mean([answer[:3] == one.tolist() for answer, one in zip(found, held_out, strict=True)]) > 0.9


def test_ilql_finds_the_better_of_two_answers(text):
    """The data answers at random with one of two tokens; only the one that the prompt names is rewarded."""
    spec = ModelSpec(architecture="encoder-decoder", layers=1, context=32)
    model = build_model(spec, (), 0, text=text)
    algorithm = ILQL(target_every=1)
    model.add_heads(algorithm.heads)

    def unit_of(ordinal):
        draw = np.random.default_rng(ordinal)
        asked, given = draw.integers(20, 22, 2)
        tokens_T = np.array([asked, given, model.text.end], np.int32)
        fields = {"step_reward": np.array([float(asked == given), 0.0], np.float32), "weight": np.ones(2, np.float32)}
        return (Row({"tokens_T": tokens_T}, np.array([False, True, True]), fields),)

    fit(model, algorithm, unit_of, 60, learning_rate=2e-3)
    prompts = [np.array([20]), np.array([21])]
    assert [answer[0] for answer in greedy(model, prompts, max_new_tokens=1, beta=16.0)] == [20, 21]


@pytest.mark.learning(*LANGUAGE)
@pytest.mark.parametrize("algorithm", [GRPO(), PPO()])
def test_a_model_from_scratch_learns_online(algorithm, text):
    model = build_model(ModelSpec(architecture="encoder-decoder", context=64), (), 0, text=text)
    critic = "shared" if isinstance(algorithm, PPO) else "none"
    parts = online(model, algorithm, LearnerSpec(learning_rate=3e-3, critic=critic), batch=len(PROMPTS), score=small_tokens)
    found = rewards(train(parts, Plan(steps=30)))
    assert np.mean(found[-3:]) > max(0.9, found[0] + 0.2)

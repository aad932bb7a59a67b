"""A policy whose steps are vectors goes through the gate, the stream, both loops, the learner and PPO as language does."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from penstock.algos import PPO
from penstock.config.learner import LearnerSpec, LoRA
from penstock.core.contracts import Batch, Policy
from penstock.core.errors import SpecError
from penstock.core.types import Group, Prompt, PromptKey, Row, Sample, SampleKey
from penstock.loops.learn import Labeller, Plan, Trainer, learn
from penstock.loops.rollout import Rollout, rollout
from penstock.models.draws import uniform_stream
from penstock.observe.sentinels import Sentinels
from penstock.runtime.local import alongside
from penstock.stream.rules import Rules
from penstock.stream.stream import LearnerClient, Stream, Worker
from penstock.train.learner import DeviceLearner, LearnerPlan, Scoring

OBSERVED, MOVED, STEPS = 3, 2, 4
TARGET = np.array([[0.8, -0.4, 0.2], [-0.3, 0.6, 0.5]], np.float32)
"""The best action at an observation ``o`` is ``TARGET @ o``."""


@dataclass(frozen=True, kw_only=True)
class VectorBatch(Batch):
    """Steps one after the other: what was seen and what was done."""

    seen_AO: np.ndarray
    done_AD: np.ndarray


class Gaussian(nn.Module):
    """A linear mean, a spread and a linear value."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.value = nn.Linear(OBSERVED, MOVED), nn.Linear(OBSERVED, 1)
        self.log_spread = nn.Parameter(torch.full((MOVED,), -0.5))
        for layer in (self.mean, self.value):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, seen_AO: torch.Tensor) -> torch.distributions.Distribution:
        normal = torch.distributions.Normal(self.mean(seen_AO), self.log_spread.exp())
        return torch.distributions.Independent(normal, 1)


class VectorPolicy(Policy):
    """Continuous control: a step is an observation and an action, both vectors; every step is an action."""

    def __init__(self) -> None:
        self.net = Gaussian()

    @property
    def module(self) -> Gaussian:
        return self.net

    def lay_out(self, units, budget, coupled=True):
        batches, waiting, first = [], [], 0
        for unit in units:
            if waiting and sum(len(row.action_T) for _, one in waiting for row in one) + len(unit) * STEPS > budget:
                batches.append(self._batch(waiting))
                waiting = []
            waiting.append((first, unit))
            first += len(unit)
        return [*batches, self._batch(waiting)] if waiting else batches

    def _batch(self, held):
        rows = [row for _, unit in held for row in unit]
        column = {name: np.concatenate([row.columns[name][row.action_T] for row in rows]) for name in ("seen_TO", "done_TD")}
        return VectorBatch(
            row_A=np.repeat(np.arange(len(rows)), [int(row.action_T.sum()) for row in rows]),
            unit_B=np.repeat(np.arange(len(held)), [len(unit) for _, unit in held]),
            fields={name: np.concatenate([np.atleast_1d(row.fields[name]) for row in rows]) for name in rows[0].fields},
            row_ids=tuple(first + place for first, unit in held for place in range(len(unit))),
            seen_AO=column["seen_TO"],
            done_AD=column["done_TD"],
        )

    def outputs(self, batch, needs):
        seen_AO = torch.from_numpy(batch.seen_AO)
        there = self.net(seen_AO)
        known = {"logp": there.log_prob(torch.from_numpy(batch.done_AD)), "entropy": there.entropy()}
        return {name: value for name, value in (known | {"value": self.net.value(seen_AO)[:, 0]}).items() if name in needs}


class Actor:
    """What plays a generator's part: it acts with the learner's own weights, whose version it is told."""

    def __init__(self, net: Gaussian) -> None:
        self.net, self.version = net, 0

    @torch.no_grad()
    def episode(self, key: SampleKey, seed: int) -> Sample:
        draws = np.asarray(uniform_stream(seed, key, STEPS * (OBSERVED + 2 * MOVED)), np.float32).reshape(STEPS, -1)
        seen_TO = 2 * draws[:, :OBSERVED] - 1
        there = self.net(torch.from_numpy(seen_TO))
        radius, angle = np.sqrt(-2 * np.log(1 - draws[:, OBSERVED : OBSERVED + MOVED])), 2 * np.pi * draws[:, -MOVED:]
        noise = torch.from_numpy((radius * np.cos(angle)).astype(np.float32))
        done_TD = there.base_dist.loc + there.base_dist.scale * noise
        return Sample(
            key,
            {"seen_TO": seen_TO, "done_TD": done_TD.numpy()},
            np.ones(STEPS, bool),
            there.log_prob(done_TD).numpy(),
            np.full(STEPS, self.version, np.int32),
            "stop",
        )


class Episodes(Rollout):
    """Groups of episodes."""

    async def _sample(self, prompt: Prompt, key: SampleKey, sampling: Any) -> Sample:
        await asyncio.sleep(0)
        return self.generator.episode(key, seed=5)


class Distance:
    """The reward of every step: minus the squared distance from the best action."""

    async def __call__(self, group: Group) -> Group:
        def scored(sample: Sample) -> Sample:
            gap_TD = sample.columns["done_TD"] - sample.columns["seen_TO"] @ TARGET.T
            return sample.scored((-(gap_TD**2).sum(-1)).tolist())

        return replace(group, samples=tuple(scored(sample) for sample in group.samples))

    async def close(self) -> None:
        return None


class Publishing:
    def __init__(self, actor: Actor) -> None:
        self.actor = actor

    async def publish(self, version: int) -> None:
        self.actor.version = version


def trained(max_lag: int, steps: int, budget: int = 64, rate: float = 0.03):
    policy = VectorPolicy()
    actor = Actor(policy.net)
    algorithm = PPO(clip=(0.2, 0.2), discount=0.0, lam=0.0)
    learner = DeviceLearner(policy, LearnerSpec(learning_rate=rate, token_budget=budget), LearnerPlan(total_steps=steps))
    labeller, rules = Labeller(algorithm, learner, None), Rules(8, max_lag)
    stream = Stream(rules)
    roll = Episodes(actor, lambda prompt: None, Distance(), None, 4)
    found = []

    def prompt(ordinal: int) -> Prompt:
        return Prompt(PromptKey("plane", 0, ordinal), f"episode {ordinal}")

    async def main() -> None:
        trainer = Trainer(learner, algorithm.loss(), watcher=Sentinels())
        plan, client = Plan(steps, epochs=2, minibatches=2), LearnerClient(rules, stream)
        async with alongside(rollout(Worker(stream, "actor"), prompt, roll)):
            async for step in learn(client, labeller, trainer, Publishing(actor), plan):
                found.append(step)

    asyncio.run(main())
    return policy, found


@pytest.mark.parametrize("max_lag", [0, 1])
def test_ppo_learns_continuous_actions_through_the_real_loops(max_lag):
    policy, steps = trained(max_lag, 20, rate=0.08)
    rewards = [step.metrics["reward/mean"] for step in steps]
    assert np.mean(rewards[-5:]) > 0.4 * np.mean(rewards[:5])  # rewards are negative: six tenths of the loss are gone
    assert float((policy.net.mean.weight.detach() - torch.from_numpy(TARGET)).abs().max()) < 0.3
    assert all(step.metrics["lag/max"] <= max_lag for step in steps)


def test_micro_batches_do_not_change_what_is_learned():
    one, other = (trained(0, 3, budget)[0].module for budget in (16, 4096))
    for ours, theirs in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


def test_scores_of_rows_are_those_of_the_distribution():
    policy = VectorPolicy()
    row = Row({"seen_TO": np.ones((1, 3), np.float32), "done_TD": np.zeros((1, 2), np.float32)}, np.ones(1, bool))
    (logp_A,) = Scoring(policy).score([(row,)], frozenset({"logp"}))["logp"]
    assert logp_A.tolist() == pytest.approx([-np.log(2 * np.pi) + 1.0])  # two axes, log spread -1/2 each, at the mean


def test_settings_that_only_language_knows_are_refused():
    with pytest.raises(SpecError, match=r"learner\.lora is known to language policies, not to VectorPolicy"):
        DeviceLearner(VectorPolicy(), LearnerSpec(lora=LoRA(rank=2)), LearnerPlan(total_steps=1))

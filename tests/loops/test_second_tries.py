"""An episode whose environment was lost is tried once more in a fresh one; not where something outside was changed."""

import asyncio
from typing import ClassVar

import numpy as np
import pytest
from episode_examples import group_of_episodes

import tiny_models
from penstock.core.types import Prompt, PromptKey, Sampling
from penstock.data.resolve import register
from penstock.envs.env import Env, Turn
from penstock.envs.spec import EnvironmentSpec
from penstock.loops.learn import sample_metrics

PROMPT = Prompt(PromptKey("test", 0, 0), "what is the sum", columns={})


class Flaky(Env):
    """Three turns; those that ``lost`` names are lost in their second turn. Counts what it is made and closed."""

    lost: ClassVar[dict[int, int]] = {}
    made = closed = 0
    world = False

    def __init__(self, columns):
        super().__init__(columns)
        type(self).made += 1

    async def step(self, said):
        sample = said.sample.key.sample
        if said.turn == 1 and self.lost.get(sample, 0) > 0:
            self.lost[sample] -= 1
            self.repeatable = not self.world
            raise ConnectionError("the sandbox is gone")
        return Turn(" on", reward=1.0, terminated=said.turn == 2)

    async def close(self):
        type(self).closed += 1


@pytest.fixture(scope="module")
def model(text):
    return tiny_models.build("qwen2", text)


def rolled(model, lost, env=Flaky, **members):
    class Mine(env):
        pass

    Mine.lost, Mine.made, Mine.closed = dict(lost), 0, 0
    for name, value in members.items():
        setattr(Mine, name, value)
    spec = EnvironmentSpec(function=register(Mine), deadline=members.get("deadline", 30.0))
    group, generator = group_of_episodes(model, spec, PROMPT, 4, Sampling(max_new_tokens=5, temperature=2.0))
    return group, Mine, generator


def test_a_sample_whose_environment_was_lost_is_what_it_would_have_been(model):
    healthy, _, _ = rolled(model, {})
    group, env, generator = rolled(model, {1: 1, 3: 1})
    for sample, other in zip(group.samples, healthy.samples, strict=True):
        assert sample.error is None
        assert sample.tokens_T.tolist() == other.tokens_T.tolist()
        np.testing.assert_allclose(sample.logp_T, other.logp_T, atol=1e-5)
        assert sample.reward == other.reward == 3.0
    assert (env.made, env.closed) == (6, 6)
    metrics = sample_metrics([group])
    assert metrics["episode/tried_again"] == 0.5
    assert metrics["episode/crashed"] == 0.0
    assert generator.memory.bytes == generator.prefix_cache.bytes + generator.own_cache.bytes  # nothing is kept of first tries


def test_it_is_tried_once_and_then_fails(model):
    group, env, _ = rolled(model, {2: 5})
    assert [sample.error is None for sample in group.samples] == [True, True, False, True]
    assert "the sandbox is gone" in group.samples[2].error
    assert group.samples[2].extras["episode"] == {"turns": 2.0, "tried_again": 1.0, "crashed": 1.0, "truncated": 0.0}
    assert env.made == 5


def test_an_episode_that_changed_something_outside_is_not_repeated(model):
    group, env, _ = rolled(model, {0: 1}, world=True)
    assert group.samples[0].error is not None
    assert "tried_again" not in group.samples[0].extras["episode"]
    assert env.made == 4


def test_an_environment_that_hangs_is_not_tried_again(model):
    class Hangs(Flaky):
        async def step(self, said):
            if said.sample.key.sample == 0:
                await asyncio.Event().wait()
            return await super().step(said)

    group, env, _ = rolled(model, {}, Hangs, deadline=0.3)
    assert "took longer than 0.3 s" in group.samples[0].error
    assert env.made == 4

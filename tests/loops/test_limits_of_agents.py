"""Limits mean the same for a program's episode as for an environment's: what is cut has earned nothing."""

import pytest
from agent_examples import PROMPT, Scripted, client, played
from episode_examples import FLAT, group_of_episodes, model_of

from penstock.core.errors import ContextFull
from penstock.data.resolve import register
from penstock.envs.env import Env, Turn
from penstock.envs.spec import EnvironmentSpec


@pytest.fixture(scope="module")
def model():
    return model_of("chatml")


WANTED = 2
"""Turns after which the task is done; half of the samples take one more than they are given."""


def short(key):
    return key.sample % 2 == 0


class Task(Env):
    """Worth 1 once it was answered so often; the odd samples never are."""

    async def step(self, said):
        done = short(said.sample.key) and said.turn + 1 == WANTED
        return Turn("go on", reward=1.0 if done else None, terminated=done)


async def as_a_program(row, base_url, api_key):
    async with client(base_url, api_key) as agent:
        messages, number = [{"role": "user", "content": "what is"}], NUMBERS.pop(0)
        for turn in range(100):
            answer = (await agent.chat.completions.create(model="any", messages=messages)).choices[0].message.content
            if number % 2 == 0 and turn + 1 == WANTED:
                return 1.0
            messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "go on"}]
    return None


NUMBERS = []


class Bounded(Scripted):
    """Has the context of its model."""

    async def generate(self, request, on_token=None):
        if len(request.tokens_T) >= self.model.context:
            raise ContextFull("it does not fit")
        return await super().generate(request, on_token)


@pytest.mark.parametrize(
    "limits", [{"turns": 2}, {"turns": 100, "tokens": 40}, {"turns": 100}], ids=["turns", "tokens", "context"]
)
def test_what_is_cut_earns_the_same_whatever_kind_of_episode_it_is(model, limits):
    NUMBERS[:] = range(4)
    agents, _ = played(model, as_a_program, samples=4, script=("one",) * 100, writes=Bounded, **limits)
    spec = EnvironmentSpec(function=register(Task), **{"turns": 8, **limits})

    def scripted(model):
        made = Bounded(model)
        made.script = ("one",) * 100
        return made

    group, _ = group_of_episodes(model, spec, PROMPT, 4, FLAT, scripted)
    for samples in (agents, group.samples):
        assert [sample.error for sample in samples] == [None] * 4
        assert sorted(sample.reward for sample in samples) == [0.0, 0.0, 1.0, 1.0]
        assert sorted(sample.extras["truncated"] for sample in samples) == [False, False, True, True]

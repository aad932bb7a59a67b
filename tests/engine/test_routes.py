"""A generator notes which experts each token went through when it was generated, whatever interrupts that."""

import asyncio

import numpy as np
import pytest
from in_flight import finished, updated

import tiny_models
import tiny_t5
from engine_examples import drawn, ragged, run, started
from penstock.core.errors import ModelError
from penstock.core.types import Prompt, Sampling, WeightUpdate
from penstock.engine.encoder_decoder import embedded_generator
from penstock.engine.generator import EmbeddedGenerator
from penstock.envs.episode import Episode
from penstock.loops.rollout import Rollout
from penstock.models.experts import ROUTES
from route_examples import assert_routes_are_those_of, chosen, mixture, sets
from tiny_models import request

LONG = [request(np.arange(20, 26), sample=g, max_new_tokens=30) for g in range(3)]


@pytest.mark.parametrize("model_type", ["mixtral", "deepseek_v3", "gpt_oss"])
def test_noted_routes_are_those_that_the_model_chooses(model_type, text):
    model = mixture(text, model_type)
    requests = [*ragged(4), *(request(np.arange(30, 50), 9, sample) for sample in range(3))]
    for sample in run(EmbeddedGenerator(model, chunk=8, max_running=5, routes=True), requests):
        assert_routes_are_those_of(model, sample)


def test_samples_are_the_same_with_routes_and_without(text):
    model = mixture(text)
    plain, noting = (run(EmbeddedGenerator(model, routes=routes), LONG) for routes in (False, True))
    assert [drawn(sample) for sample in plain] == [drawn(sample) for sample in noting]
    assert all(ROUTES not in sample.columns for sample in plain)


async def test_preempted_samples_keep_their_routes(text):
    model = mixture(text)
    generator = EmbeddedGenerator(model, routes=True)
    tasks = await started(generator, LONG, tokens=20)
    preempted = generator.running[:2]
    generator._release([0, 1])
    generator._wait_again(preempted)
    generator._drop_unused()
    for sample in await asyncio.gather(*tasks):
        assert_routes_are_those_of(model, sample)


def test_resumed_samples_keep_their_routes(text):
    model = mixture(text)
    generator = EmbeddedGenerator(model, max_running=2, routes=True)
    partial = updated(generator, LONG, 20, WeightUpdate(1, None, "abort"))
    assert any(sample.finish == "abort" and ROUTES in sample.columns for sample in partial)
    for sample in finished(generator, LONG, partial):
        assert_routes_are_those_of(model, sample)


@pytest.mark.parametrize("kv", ["recompute", "abort"])
def test_routes_are_those_of_the_version_that_drew_the_next_token(kv, text):
    old, new, model = mixture(text), mixture(text), mixture(text)
    tiny_models.randomise(new.network, seed=9)
    generator = EmbeddedGenerator(model, max_running=3, routes=True)
    found = updated(generator, LONG, 30, WeightUpdate(1, new.policy_weights(), kv))
    mixed = 0
    for sample in finished(generator, LONG, found) if kv == "abort" else found:
        own, after_T = [sets(chosen(one, sample.tokens_T)) for one in (old, new)], sample.version_T[1:].clip(0)
        assert sets(sample.columns[ROUTES])[:-1] == [own[version][t] for t, version in enumerate(after_T)]
        mixed += len(set(after_T)) == 2 and own[0] != own[1]
    assert mixed


class Interview(Episode):
    """Asks for three answers in all."""

    def __init__(self, prompt):
        super().__init__(np.arange(20, 27, dtype=np.int32))
        self.turns = 0

    @property
    def more(self):
        return self.turns < 2

    async def step(self, sample):
        self.turns += 1
        return np.append(sample.tokens_T, np.array([50, 51], np.int32)) if self.turns < 3 else None


class Unscored:
    async def __call__(self, group):
        return group


@pytest.mark.parametrize("kept", [True, False])
def test_a_conversation_keeps_the_routes_of_its_turns(kept, text):
    model = mixture(text)
    generator = EmbeddedGenerator(model, routes=True)
    if not kept:
        generator.memory.keep = lambda *_: None
    roll = Rollout(generator, Interview, Unscored(), Sampling(max_new_tokens=6), 2)
    prompt = Prompt(tiny_models.key().prompt, "")
    for sample in asyncio.run(roll.group(prompt)).samples:
        assert np.flatnonzero(np.diff(sample.action_T.astype(int)) > 0).size == 3
        assert_routes_are_those_of(model, sample)


@pytest.mark.parametrize(
    ("model_type", "why"),
    [
        ("llama", "ForCausalLM has no experts"),
        ("jetmoe", "ForCausalLM has routers that do not give"),
        ("t5", "has no experts, so there are no routes to replay"),
    ],
)
def test_a_model_whose_routes_cannot_be_noted_is_refused(model_type, why, text):
    model = tiny_t5.build(text) if model_type == "t5" else mixture(text, model_type)
    with pytest.raises(ModelError, match=rf"{why}.*set learner\.replay_routes=false"):
        embedded_generator(model, routes=True)

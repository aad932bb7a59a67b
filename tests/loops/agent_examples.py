"""Episodes of programs that speak an API, with a generator that generates or one that writes what it is told."""

import numpy as np
import pytest
from episode_examples import FLAT, group_of_episodes, prompt_with

from penstock.core.types import Sample
from penstock.data.resolve import register
from penstock.engine.generator import EmbeddedGenerator
from penstock.envs.spec import EnvironmentSpec

openai = pytest.importorskip("openai")

PROMPT = prompt_with(word="quick")


class Scripted(EmbeddedGenerator):
    """Writes these texts, turn by turn of an episode, and generates nothing."""

    script: tuple[str, ...] = ()

    async def generate(self, request, on_token=None):
        said = self.script[request.sampling.seed - FLAT.seed]
        tokens_T = np.array([*request.tokens_T, *self.text.encode(said), min(self.text.ends)], np.int32)
        action_T = np.arange(len(tokens_T)) >= len(request.tokens_T)
        logp_T, version_T = np.where(action_T, -1.0, 0).astype(np.float32), np.where(action_T, 0, -1).astype(np.int32)
        return Sample(request.key, {"tokens_T": tokens_T}, action_T, logp_T, version_T, "stop", said)


def played(model, options, samples=1, script=(), sampling=FLAT, then=None, writes=Scripted, **fields):
    """The samples of a group whose episodes are a program's runs, and the generator; ``writes`` a script, if there is one."""
    if callable(options):
        options = {"function": register(options)}
    spec = EnvironmentSpec(function="agent", options=options, **{"turns": 8, "deadline": 30.0, **fields})

    def generator(model):
        made = writes(model) if script else EmbeddedGenerator(model)
        made.script = script
        return made

    group, made = group_of_episodes(model, spec, PROMPT, samples, sampling, generator, then)
    return group.samples, made


def client(base_url, api_key, **given):
    return openai.AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0, **given)

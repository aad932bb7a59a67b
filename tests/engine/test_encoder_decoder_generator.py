"""The embedded generator over encoder-decoders: what a prompt's encoding needs beyond what the tests of both kinds show."""

import asyncio
import copy

import numpy as np
import pytest
from in_flight import LONG, engine

import tiny_models
import tiny_t5
from engine_examples import drawn, learner_logp, started
from penstock.core.errors import GenerationError
from penstock.core.types import WeightUpdate
from penstock.engine.encoder_decoder import EncoderDecoderGenerator, embedded_generator
from penstock.engine.generator import EmbeddedGenerator
from tiny_models import request


@pytest.fixture(scope="module")
def t5(text):
    """Shared, so never to be changed."""
    return tiny_t5.build(text)


def test_the_engine_is_chosen_by_the_kind_of_model(t5, tiny):
    assert type(embedded_generator(t5, max_running=3)) is EncoderDecoderGenerator
    assert type(embedded_generator(tiny(), max_running=3)) is EmbeddedGenerator


async def test_a_finished_row_frees_its_place_at_once(t5):
    generator = engine(t5, max_running=2)
    wanted = [request(np.array([20 + i]), i, max_new_tokens=n) for i, n in enumerate([3, 30, 30])]
    tasks = await started(generator, wanted, tokens=9)
    stats = generator.stats()
    assert (stats.running, stats.waiting) == (2, 0)
    assert len(drawn((await asyncio.gather(*tasks))[0])) == 3


async def test_a_request_that_comes_after_an_update_shares_no_old_encoding(t5):
    """While samples of its prompt still run on the kept encoding, a new one is wholly the new weights'."""
    generator, new = engine(copy.deepcopy(t5)), copy.deepcopy(t5)
    tiny_models.randomise(new.network, seed=9)
    tasks = await started(generator, LONG[:2], tokens=5)
    await generator.load(WeightUpdate(1, new.policy_weights(), "keep"))
    late = await generator.generate(request(np.arange(20, 26), sample=7))
    await asyncio.gather(*tasks)
    assert set(late.version_T[late.action_T]) == {1}
    np.testing.assert_allclose(late.logp_T[late.action_T], learner_logp(new, late), atol=1e-4)


@pytest.mark.parametrize("prompt", [None, 0, 6])
async def test_scoring_without_knowing_the_prompt_is_refused(prompt, t5):
    with pytest.raises(GenerationError, match="give the number of tokens that are the prompt"):
        await engine(t5).score(np.arange(20, 25, dtype=np.int32), prompt=prompt)


async def test_the_same_tokens_score_differently_with_another_prompt(t5):
    generator, tokens_T = engine(t5), np.arange(20, 28, dtype=np.int32)
    one, other = [await generator.score(tokens_T, prompt=prompt) for prompt in (2, 4)]
    assert (one[:2] == 0).all()
    assert (other[:4] == 0).all()
    assert np.abs(one[4:] - other[4:]).max() > 1e-3

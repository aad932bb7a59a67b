"""The embedded generator over encoder-decoders: its numbers are the learner's, and no interruption changes a sample."""

import asyncio
import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import naive
import tiny_models
import tiny_t5
from engine_examples import (
    assert_each_token_is_its_versions,
    assert_same_draws,
    drawn,
    learner_logp,
    ragged,
    resumed,
    run,
    started,
)
from penstock.core.errors import GenerationError
from penstock.core.types import WeightUpdate
from penstock.engine.encoder_decoder import EncoderDecoderGenerator, embedded_generator
from penstock.engine.generator import EmbeddedGenerator
from tiny_models import CONTEXT, request

LONG = [request(np.arange(20, 26), sample=g, max_new_tokens=40) for g in range(3)] + [
    request(np.arange(40, 43), 1, max_new_tokens=40)
]
each_architecture = pytest.mark.parametrize("architecture", tiny_t5.ARCHITECTURES)
each_policy = pytest.mark.parametrize("kv", ["keep", "recompute"])


@pytest.fixture(scope="module")
def t5(text):
    """Shared, so never to be changed."""
    return tiny_t5.build(text)


def unrecorded(model, **options):
    """An engine that runs its steps as they are: recording one costs more than the short runs here."""
    generator = EncoderDecoderGenerator(model, **options)
    generator.decode._traceable = False
    return generator


def other_weights(model, seed=9):
    other = copy.deepcopy(model)
    tiny_models.randomise(other.network, seed=seed)
    return other


def test_the_engine_is_chosen_by_the_kind_of_model(t5, tiny):
    assert type(embedded_generator(t5, max_running=3)) is EncoderDecoderGenerator
    assert type(embedded_generator(tiny(), max_running=3)) is EmbeddedGenerator


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@each_architecture
def test_log_probs_are_the_learners(architecture, temperature, text):
    model = tiny_t5.build(text, architecture)
    requests = ragged(8, temperature=temperature, max_new_tokens=30)
    for sample in run(EncoderDecoderGenerator(model, max_running=4, chunk=16), requests):
        np.testing.assert_allclose(sample.logp_T[sample.action_T], learner_logp(model, sample, temperature), atol=1e-4)


@each_architecture
def test_greedy_equals_generate_of_transformers(architecture, text):
    model = tiny_t5.build(text, architecture)
    for sample in run(EncoderDecoderGenerator(model, max_running=3), ragged(4, temperature=0.0, max_new_tokens=20)):
        # The cache of theirs has as many layers as the encoder, fewer than this decoder.
        assert drawn(sample) == naive.greedy(model, sample, 20, use_cache=False, decoder_start_token_id=model.start)


@pytest.fixture(scope="module")
def alone(t5):
    """Samples that were each drawn alone, by an engine of their own."""
    requests = ragged(7, temperature=0.9) + [request(np.array([30, 31, 32]), 50, sample) for sample in range(3)]
    return requests, [run(unrecorded(t5), [one])[0] for one in requests]


@pytest.mark.slow
@settings(max_examples=10)
@given(order=st.permutations(range(10)), slots=st.integers(1, 11), chunk=st.integers(1, 60), count=st.integers(1, 10))
def test_neither_batch_mates_nor_slots_nor_chunks_nor_order_change_a_sample(t5, alone, order, slots, chunk, count):
    requests, expected = alone
    chosen = order[:count]
    found = run(unrecorded(t5, max_running=slots, chunk=chunk), [requests[place] for place in chosen])
    assert_same_draws(found, [expected[place] for place in chosen])


def test_requests_that_come_while_others_are_decoded_change_nothing(t5, alone):
    requests, expected = alone

    async def in_two_waves():
        generator = unrecorded(t5, max_running=4)
        first = await started(generator, requests[:5], tokens=12)
        second = [asyncio.create_task(generator.generate(one)) for one in requests[5:]]
        return await asyncio.gather(*first, *second)

    assert_same_draws(asyncio.run(in_two_waves()), expected)


def test_limits_are_obeyed_per_request(t5):
    """One row is greedy, one is held to its two best tokens; the third is free and must not notice."""
    prompt = np.array([20, 21, 22])
    requests = [request(prompt, 0, temperature=0.0), request(prompt, 1, top_k=2), request(prompt, 2)]
    generator = unrecorded(t5)
    assert_same_draws(run(generator, requests), [run(generator, [one])[0] for one in requests])


@pytest.mark.parametrize("slots", [16, 3])
def test_a_prompt_is_encoded_once_for_all_its_samples(slots, t5):
    generator = unrecorded(t5, max_running=slots)
    run(generator, [request(np.arange(20, 45), sample=g) for g in range(12)])
    assert generator.prefilled_tokens == 25


def test_a_finished_row_frees_its_place_at_once(t5):
    async def midway():
        generator = unrecorded(t5, max_running=2)
        lengths = [3, 30, 30]
        wanted = [request(np.array([20 + i]), i, max_new_tokens=n) for i, n in enumerate(lengths)]
        tasks = await started(generator, wanted, tokens=9)
        stats = generator.stats()
        samples = await asyncio.gather(*tasks)
        return stats, samples

    stats, samples = asyncio.run(midway())
    assert (stats.running, stats.waiting) == (2, 0)
    assert len(drawn(samples[0])) == 3


@each_policy
def test_loading_the_same_weights_in_flight_changes_no_token(kv, t5):
    async def interrupted():
        generator = unrecorded(copy.deepcopy(t5), max_running=3)
        tasks = await started(generator, LONG, tokens=30)
        await generator.load(WeightUpdate(1, None, kv))
        return await asyncio.gather(*tasks)

    found = asyncio.run(interrupted())
    assert_same_draws(found, run(unrecorded(t5, max_running=3), LONG))
    assert {version for sample in found for version in sample.version_T[sample.action_T]} == {0, 1}


def test_samples_aborted_by_an_update_go_on_where_they_were(t5):
    async def interrupted():
        generator = unrecorded(copy.deepcopy(t5), max_running=3)
        tasks = await started(generator, LONG, tokens=30)
        await generator.load(WeightUpdate(1, None, "abort"))
        partial = await asyncio.gather(*tasks)
        return partial, await resumed(generator, LONG, partial)

    partial, found = asyncio.run(interrupted())
    assert sum(len(drawn(sample)) for sample in partial) < sum(len(drawn(sample)) for sample in found)
    assert_same_draws(found, run(unrecorded(t5, max_running=3), LONG))


def test_after_recompute_every_token_has_the_log_prob_of_its_version(t5):
    old, new, model = t5, other_weights(t5), copy.deepcopy(t5)

    async def replaced():
        generator = unrecorded(model, max_running=3)
        tasks = await started(generator, LONG, tokens=30)
        await generator.load(WeightUpdate(1, new.policy_weights(), "recompute"))
        return await asyncio.gather(*tasks)

    assert_each_token_is_its_versions(asyncio.run(replaced()), (old, new))


def test_kept_caches_go_on_under_the_new_weights(t5):
    """The caches are the old weights', the step the new ones': neither version alone explains the tokens that follow."""
    model, new = copy.deepcopy(t5), other_weights(t5)

    async def replaced():
        generator = unrecorded(model)
        (task,) = await started(generator, LONG[:1], tokens=5)
        await generator.load(WeightUpdate(1, new.policy_weights(), "keep"))
        return await task

    sample = asyncio.run(replaced())
    late = sample.version_T[sample.action_T] == 1
    for weights in (t5, new):
        assert np.abs(sample.logp_T[sample.action_T] - learner_logp(weights, sample))[late].max() > 1e-3


def test_a_request_that_comes_after_an_update_shares_no_old_encoding(t5):
    """While samples of its prompt still run on the kept encoding, a new one is wholly the new weights'."""
    model, new = copy.deepcopy(t5), other_weights(t5)

    async def replaced():
        generator = unrecorded(model)
        tasks = await started(generator, LONG[:2], tokens=5)
        await generator.load(WeightUpdate(1, new.policy_weights(), "keep"))
        late = await generator.generate(request(np.arange(20, 26), sample=7))
        await asyncio.gather(*tasks)
        return late

    late = asyncio.run(replaced())
    assert set(late.version_T[late.action_T]) == {1}
    np.testing.assert_allclose(late.logp_T[late.action_T], learner_logp(new, late), atol=1e-4)


def test_the_context_ends_a_sample(t5):
    (sample,) = run(unrecorded(t5), [request(np.full(CONTEXT - 6, 20), max_new_tokens=50)])
    assert (len(sample.tokens_T), len(drawn(sample)), sample.finish) == (CONTEXT, 6, "length")
    np.testing.assert_allclose(sample.logp_T[sample.action_T], learner_logp(t5, sample), atol=1e-4)


@pytest.mark.parametrize("prompt", [None, 0, 6])
def test_scoring_without_knowing_the_prompt_is_refused(prompt, t5):
    with pytest.raises(GenerationError, match="give the number of tokens that are the prompt"):
        asyncio.run(unrecorded(t5).score(np.arange(20, 25, dtype=np.int32), prompt=prompt))


def test_the_same_tokens_score_differently_with_another_prompt(t5):
    generator, tokens_T = unrecorded(t5), np.arange(20, 28, dtype=np.int32)
    one, other = (asyncio.run(generator.score(tokens_T, prompt=prompt)) for prompt in (2, 4))
    assert (one[:2] == 0).all()
    assert (other[:4] == 0).all()
    assert np.abs(one[4:] - other[4:]).max() > 1e-3

"""Generation with pictures: the learner's numbers, one prefill and one encoding, positions that belong to the sequence."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch

import seeing
from engine_examples import assert_same_draws, learner_logp, run, started
from penstock.core.errors import GenerationError
from penstock.core.types import WeightUpdate
from penstock.engine.encoder_decoder import embedded_generator
from penstock.engine.media import MediaGenerator
from penstock.models.media import MEDIA


@pytest.fixture(scope="module")
def model():
    """Shared, so never to be changed."""
    return seeing.built()


def assert_log_probs_agree(model, sample):
    """With the learner's and with those of transformers."""
    at = np.flatnonzero(sample.action_T)
    np.testing.assert_allclose(sample.logp_T[at], learner_logp(model, sample), atol=1e-4)
    logits_TV = seeing.transformers_logits(model, sample.tokens_T, sample.blobs)
    logits_TV[:, sorted(model.text.media)] = -torch.inf
    wanted = logits_TV.log_softmax(-1)[at - 1, sample.tokens_T[at].astype(np.int64)]
    np.testing.assert_allclose(sample.logp_T[at], wanted, atol=1e-4)


@pytest.mark.parametrize("chunk", [5, 2048])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probs_are_the_learners_with_and_without_pictures(model, temperature, chunk):
    generator = embedded_generator(model, max_running=4, chunk=chunk)
    assert isinstance(generator, MediaGenerator)
    for sample in run(generator, seeing.ragged(model, temperature=temperature)):
        np.testing.assert_allclose(sample.logp_T[sample.action_T], learner_logp(model, sample, temperature), atol=1e-4)


def test_who_shares_the_batch_changes_nothing(model):
    """Text that is decoded next to a picture, or after one, has positions of its own."""
    together = run(embedded_generator(model, max_running=3), seeing.ragged(model, max_new_tokens=20))
    for one, sample in zip(seeing.ragged(model, max_new_tokens=20), together, strict=True):
        (alone,) = run(embedded_generator(model), [one])
        np.testing.assert_array_equal(alone.tokens_T, sample.tokens_T)
        np.testing.assert_allclose(alone.logp_T, sample.logp_T, atol=5e-5)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_tokens_of_media_are_never_sampled(temperature):
    """Even where the head wants nothing else."""
    model = seeing.built()
    (blob,) = seeing.shown(model, seeing.picture())
    with torch.no_grad():
        head = model.network.get_output_embeddings().weight
        head[sorted(model.text.media)] = 10 * model.network.model.language_model.norm.weight
    requests = [seeing.request(model, "<image>", (blob,), sample=n, temperature=temperature) for n in range(8)]
    for sample in run(embedded_generator(model), requests):
        assert not np.isin(sample.tokens_T[sample.action_T], sorted(model.text.media)).any()


def assert_two_turns(model, one, other, **fields):
    """The samples of two turns of a conversation, about a picture each, and how many tokens were prefilled for the second."""
    first, generator = seeing.request(model, "<image>what?", (one,)), embedded_generator(model)
    (sample,) = run(generator, [replace(first, **fields)])
    before = generator.prefilled_tokens
    more = np.concatenate([sample.tokens_T, model.text.encode(" and 3 + 4?")]).astype(np.int32)
    (second,) = run(generator, [replace(first, tokens_T=more, blobs=(other,))])
    np.testing.assert_allclose(second.logp_T[second.action_T], learner_logp(model, second), atol=1e-4)
    return sample, second, generator.prefilled_tokens - before


def test_a_later_turn_has_the_same_picture_tokens(model):
    (blob,) = seeing.shown(model, seeing.picture(seed=6))
    first, second, _ = assert_two_turns(model, blob, blob)
    np.testing.assert_array_equal(second.tokens_T[: len(first.tokens_T)], first.tokens_T)
    assert (second.columns[MEDIA] == blob.number).sum() == 9


def test_a_kept_conversation_goes_on_at_its_own_positions(model):
    (blob,) = seeing.shown(model, seeing.picture(seed=7))
    _, second, prefilled = assert_two_turns(model, blob, blob, keep=True)
    assert prefilled < int((~second.action_T).sum()) - 9


def test_a_kept_conversation_about_another_picture_is_read_again(model):
    """The key and the tokens are the same, and so nothing else tells that the cache is another picture's."""
    assert_two_turns(model, *seeing.shown(model, seeing.picture(seed=8), seeing.picture(seed=9)), keep=True)


@pytest.mark.parametrize("frozen", [True, False])
def test_new_weights_of_the_tower_are_seen_by_the_next_request(frozen):
    """vllm#44910: features that are kept by the picture alone are those of older weights."""
    model = seeing.built(frozen=False)
    (blob,) = seeing.shown(model, seeing.picture())
    generator = embedded_generator(model)
    one = seeing.request(model, "<image>what?", (blob,), temperature=0.0)
    run(generator, [one])
    weights = {name: tensor.detach().clone() for name, tensor in model.policy_weights()}
    weights["model.visual.patch_embed.proj.weight"] += 0.5
    asyncio.run(generator.load(WeightUpdate(1, weights.items(), owned=frozen)))
    (sample,) = run(generator, [one])
    assert_log_probs_agree(model, sample)


async def test_sequences_go_on_after_their_cache_was_computed_again(model):
    one = seeing.ragged(model, max_new_tokens=16)[1:3]
    generator = embedded_generator(model)
    tasks = await started(generator, one, 8)
    generator._renew_cache("recompute")
    again = embedded_generator(model)
    assert_same_draws([await task for task in tasks], [await again.generate(asked) for asked in one])


def test_a_model_that_reads_text_alone_refuses_pictures(tiny, model):
    one = seeing.ragged(model)[1]
    with pytest.raises(GenerationError, match="the model reads text alone"):
        run(embedded_generator(tiny()), [one])


def test_picture_tokens_without_their_picture_are_refused(model):
    one = seeing.ragged(model)[1]
    with pytest.raises(GenerationError, match="9 tokens show pictures, and the pictures have 0"):
        run(embedded_generator(model), [replace(one, blobs=())])

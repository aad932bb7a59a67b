"""Generation shifted by Q heads: the shift is β times the advantage, and β = 0 is the policy bit for bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import tiny_models
from engine_examples import drawn, ragged, run
from penstock.core.errors import GenerationError, SpecError
from penstock.core.types import Sampling
from penstock.engine.generator import EmbeddedGenerator
from penstock.models.attention import single_row_plan

each_architecture = pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)


@torch.no_grad()
def with_heads(model, seed=0):
    generator = torch.Generator().manual_seed(seed)
    model.add_heads({"q": {}})
    for parameter in model.q_heads.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * parameter.shape[-1] ** -0.5)
    return model


@torch.no_grad()
def shifted_logp(model, sample, beta, temperature):
    """Log-probs of the action tokens under the shifted distribution, from one forward pass over the whole sample."""
    tokens = torch.from_numpy(sample.tokens_T.astype(np.int64))
    hidden = model.hidden(tokens[None], torch.arange(len(tokens))[None], single_row_plan(len(tokens)))[0][:-1]
    logits = model.logits(hidden) + beta * model.q_heads.advantage(hidden)
    logp = (logits / temperature).log_softmax(-1).gather(-1, tokens[1:, None])[:, 0]
    return logp.numpy()[sample.action_T[1:]]


def shifted(requests, beta):
    return [replace(request, sampling=replace(request.sampling, beta=beta)) for request in requests]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@each_architecture
def test_log_probs_are_those_of_the_shifted_distribution(architecture, temperature, tiny):
    model = with_heads(tiny(architecture))
    for sample in run(EmbeddedGenerator(model, max_running=4, chunk=16), shifted(ragged(6, temperature=temperature), 2.0)):
        expected = shifted_logp(model, sample, 2.0, temperature)
        np.testing.assert_allclose(sample.logp_T[sample.action_T], expected, atol=1e-4)


@each_architecture
def test_beta_0_is_the_policy_bit_for_bit(architecture, tiny):
    plain = run(EmbeddedGenerator(tiny(architecture), max_running=4), ragged(6))
    headed = run(EmbeddedGenerator(with_heads(tiny(architecture)), max_running=4), shifted(ragged(6), 0.0))
    for one, other in zip(plain, headed, strict=True):
        assert drawn(one) == drawn(other)
        assert np.array_equal(one.logp_T, other.logp_T)


def test_requests_of_several_betas_share_a_batch_and_a_prompt(tiny):
    model, betas = with_heads(tiny()), [0.0, 1.0, 8.0, 0.0]
    prompt = tiny_models.tokens(np.random.default_rng(0), 5)
    requests = [tiny_models.request(prompt, sample=place, beta=beta) for place, beta in enumerate(betas)]
    for sample, beta in zip(run(EmbeddedGenerator(model, max_running=4), requests), betas, strict=True):
        np.testing.assert_allclose(sample.logp_T[sample.action_T], shifted_logp(model, sample, beta, 1.0), atol=1e-4)


def test_new_heads_shift_nothing(tiny):
    model = tiny()
    model.add_heads({"q": {}})
    plain, headed = run(EmbeddedGenerator(tiny()), ragged(4)), run(EmbeddedGenerator(model), shifted(ragged(4), 5.0))
    assert [drawn(sample) for sample in plain] == [drawn(sample) for sample in headed]


def test_a_large_beta_takes_the_token_of_the_greatest_advantage(tiny):
    model = with_heads(tiny())
    for sample in run(EmbeddedGenerator(model), shifted(ragged(3), 1e6)):
        tokens = torch.from_numpy(sample.tokens_T.astype(np.int64))
        with torch.no_grad():
            hidden = model.hidden(tokens[None], torch.arange(len(tokens))[None], single_row_plan(len(tokens)))[0]
        best = model.q_heads.advantage(hidden[:-1]).argmax(-1).numpy()
        assert best[sample.action_T[1:]].tolist() == drawn(sample)


def test_heads_that_are_trained_on_change_what_is_generated(tiny):
    # The step is recorded once; it must read the heads as they are now.
    model = with_heads(tiny())
    generator = EmbeddedGenerator(model, max_running=4)
    run(generator, shifted(ragged(3), 2.0))
    with_heads(model, seed=5)
    for sample in run(generator, shifted(ragged(3, seed=1), 2.0)):
        np.testing.assert_allclose(sample.logp_T[sample.action_T], shifted_logp(model, sample, 2.0, 1.0), atol=1e-4)


def test_a_shift_without_heads_is_refused(tiny):
    with pytest.raises(GenerationError, match="needs Q heads"):
        run(EmbeddedGenerator(tiny()), shifted(ragged(1), 1.0))


def test_a_negative_beta_is_refused():
    with pytest.raises(SpecError, match="beta"):
        Sampling(beta=-1.0)

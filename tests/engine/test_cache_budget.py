"""The cache stays under its budget: who came last is preempted and loses nothing; a conversation is prefilled once."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch

import tiny_models
import tiny_t5
from engine_examples import assert_each_token_is_its_versions, assert_same_draws, drawn, learner_logp, ragged, run, started
from penstock.core.errors import GenerationError
from penstock.core.types import WeightUpdate
from penstock.engine.cache import CachePool
from penstock.engine.encoder_decoder import embedded_generator
from penstock.engine.generator import EmbeddedGenerator
from penstock.engine.memory import Memory, budget_of
from tiny_models import request

CELL = 2 * 2 * 2 * 8 * 4
"""Bytes of a token in a tiny Qwen2: keys and values, 2 layers, 2 heads of 8 float32."""


def watched(generator):
    """A generator whose cache is measured after every turn; gives the list of bytes too."""
    seen, step = [], generator.step

    def measured():
        step()
        seen.append(generator.memory.bytes)

    generator.step = measured
    return generator, seen


def bounded(model, tokens, **options):
    """A generator whose budget is that of ``tokens``."""
    cell = CachePool(model.slots, model.dtype, model.device).cell
    return watched(embedded_generator(model, cache_gb=tokens * cell / 1e9, **options))


MIXED = ragged(7, temperature=0.9, longest=40, max_new_tokens=80) + [
    request(np.array([30, 31, 32]), 50, g, max_new_tokens=80) for g in range(5)
]


@pytest.fixture(scope="module", params=["qwen2", "gpt2"])
def unbounded(request, built):
    """A model and the samples that it draws without a budget."""
    model = built[request.param]
    return model, run(EmbeddedGenerator(model, max_running=12), MIXED)


@pytest.mark.parametrize("tokens", [260, 400, 700, 1500])
def test_samples_under_a_budget_are_those_without_one(tokens, unbounded):
    model, expected = unbounded
    generator, seen = bounded(model, tokens, max_running=12, chunk=64)
    found = run(generator, MIXED)
    assert max(seen) <= generator.memory.budget
    assert (generator.preemptions > 0) or tokens == 1500
    assert_same_draws(found, expected)
    for sample in found:
        logp_A = learner_logp(model, sample, 1.0 if sample.key.prompt.ordinal == 50 else 0.9)
        np.testing.assert_allclose(sample.logp_T[sample.action_T], logp_A, atol=1e-4)


@pytest.mark.parametrize("tokens", [300, 700])
def test_encoder_decoders_keep_to_a_budget_too(tokens, text):
    model = tiny_t5.build(text)
    requests = ragged(6, longest=40, max_new_tokens=80)
    generator, seen = bounded(model, tokens, max_running=6)
    found = run(generator, requests)
    assert max(seen) <= generator.memory.budget
    assert generator.preemptions > 0
    assert_same_draws(found, run(embedded_generator(model, max_running=6), requests))


async def test_a_preempted_sample_keeps_its_tokens_log_probs_and_versions(tiny):
    """Weights change while it waits: what it had drawn stays the old version's, what follows is the new one's."""
    model, old, new = tiny(), tiny(), tiny()
    tiny_models.randomise(new.network, seed=9)
    requests = [request(np.arange(20, 26), sample=g, max_new_tokens=90) for g in range(4)]

    generator, _ = bounded(model, 420, max_running=4)
    tasks = [asyncio.create_task(generator.generate(one)) for one in requests]
    while not generator.preemptions:
        await asyncio.sleep(0)
    before = {s.request.key: (list(s.tokens), list(s.logps)) for s in generator.waiting}
    await generator.load(WeightUpdate(1, new.policy_weights(), "recompute"))
    samples = await asyncio.gather(*tasks)
    assert any(tokens for tokens, _ in before.values())
    for sample in samples:
        tokens, logps = before.get(sample.key, ([], []))
        assert drawn(sample)[: len(tokens)] == tokens
        np.testing.assert_array_equal(sample.logp_T[sample.action_T][: len(logps)], np.float32(logps))
        assert (sample.version_T[sample.action_T][: len(tokens)] == 0).all()
    assert_each_token_is_its_versions(samples, (old, new))


async def test_who_came_last_is_preempted_and_who_came_first_never(tiny):
    preempted = []
    generator, _ = bounded(tiny(), 450, max_running=5)
    wait_again = generator._wait_again

    def noted(sequences):
        sequences = list(sequences)
        last = max((sequence.number for sequence in generator.running), default=0)
        assert all(sequence.number > last for sequence in sequences if sequence.tokens)
        preempted.extend(sequence.request.key.prompt.ordinal for sequence in sequences if sequence.tokens)
        wait_again(sequences)

    generator._wait_again = noted
    await asyncio.gather(*(generator.generate(request(np.array([20 + p]), p, max_new_tokens=100)) for p in range(5)))
    assert preempted
    assert 0 not in preempted


def test_a_request_that_could_never_fit_is_refused_with_the_way_out(tiny):
    generator, _ = bounded(tiny(), 200)
    with pytest.raises(GenerationError, match=r"20 prompt tokens and 100 new ones need up to .* GB of cache.*raise cache_gb"):
        run(generator, [request(np.full(20, 20), max_new_tokens=100)])
    assert len(drawn(run(generator, [request(np.full(20, 20), max_new_tokens=40)])[0])) == 40


async def test_an_aborted_or_cancelled_sample_leaves_the_budget(tiny):
    generator, seen = bounded(tiny(), 420, max_running=4)
    tasks = await started(generator, [request(np.array([20]), g, max_new_tokens=100) for g in range(6)], tokens=60)
    await generator.abort([tiny_models.key(0)])
    tasks[1].cancel()
    await asyncio.gather(*(tasks[place] for place in (2, 3, 4, 5)))
    assert max(seen) <= generator.memory.budget
    assert (generator.running, generator.prefixes, len(generator.waiting)) == ([], [], 0)


@pytest.mark.parametrize(
    ("device", "given", "expected"),
    [("cpu", 0.0, 4_000_000_000), ("cpu", 1.5, 1_500_000_000), ("cuda", 0.0, 30_000), ("cuda", 1.0, 1_000_000_000)],
)
def test_the_usual_budget_is_4_gb_and_on_a_gpu_half_of_what_is_free(device, given, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (60_000, 80_000))
    assert budget_of(given, torch.device(device)) == expected


def test_a_roomy_budget_gives_rows_their_whole_length_at_once(tiny):
    """As without one: nothing is copied while samples grow."""
    generator, seen = watched(EmbeddedGenerator(tiny(), max_running=8))
    run(generator, [request(np.array([20]), g, max_new_tokens=100) for g in range(8)])
    assert generator.own_cache.size == (8, 128)
    assert len(set(seen)) == 1


# ---- conversations


async def converse(generator, turns, key_of=tiny_models.key, said=(50, 51, 52)):
    """The samples of a conversation's turns, and how many tokens each turn prefilled."""
    tokens, samples, prefilled = np.arange(20, 60, dtype=np.int32), [], []
    for turn in range(turns):
        before = generator.prefilled_tokens
        wanted = replace(request(tokens, max_new_tokens=10, seed=turn), key=key_of(), keep=turn + 1 < turns)
        samples.append(await generator.generate(wanted))
        prefilled.append(generator.prefilled_tokens - before)
        tokens = np.concatenate([samples[-1].tokens_T, said]).astype(np.int32)
    return samples, prefilled


async def test_a_turn_prefills_only_what_is_new(tiny):
    samples, prefilled = await converse(EmbeddedGenerator(tiny()), 5)
    assert prefilled == [40, 4, 4, 4, 4]  # what was said, and the token before it, which had not been read
    for sample in samples:
        np.testing.assert_allclose(sample.logp_T[sample.action_T], learner_logp(tiny(), sample), atol=1e-4)


@pytest.mark.parametrize("architecture", ["qwen3", "gpt2"])
async def test_a_conversation_that_was_kept_is_the_one_that_was_not(architecture, tiny, monkeypatch):
    kept, _ = await converse(EmbeddedGenerator(tiny(architecture)), 4)
    monkeypatch.setattr(Memory, "keep", lambda *arguments: None)
    anew, prefilled = await converse(EmbeddedGenerator(tiny(architecture)), 4)
    assert prefilled == [40, 53, 66, 79]
    assert_same_draws(kept, anew)


async def test_conversations_side_by_side_keep_apart(tiny):
    def talk(generator, g):
        return converse(generator, 3, lambda: tiny_models.key(0, g), said=(60 + g,))

    generator = EmbeddedGenerator(tiny(), max_running=3)
    together = await asyncio.gather(*(talk(generator, g) for g in range(4)))
    for g, (samples, _) in enumerate(together):
        assert_same_draws(samples, (await talk(EmbeddedGenerator(tiny()), g))[0])
    assert generator.prefilled_tokens == 40 + 4 * 2 * 2


@pytest.mark.parametrize(("kv", "expected"), [("keep", 4), ("recompute", 53), ("abort", 53), ("drain", 53)])
async def test_a_weight_update_between_turns_follows_its_cache_policy(kv, expected, tiny):
    generator = EmbeddedGenerator(tiny())
    first = await generator.generate(replace(request(np.arange(20, 60), max_new_tokens=10), keep=True))
    await generator.load(WeightUpdate(1, None, kv))
    before = generator.prefilled_tokens
    await generator.generate(request(np.append(first.tokens_T, [50, 51, 52])))
    assert generator.prefilled_tokens - before == expected


async def test_conversations_make_room_for_rows(tiny):
    generator, seen = bounded(tiny(), 500, max_running=2)
    for g in range(8):
        _, prefilled = await converse(generator, 2, lambda g=g: tiny_models.key(g))
        assert prefilled == [40, 4]
    assert max(seen) <= generator.memory.budget


async def test_of_conversations_that_crowd_each_other_the_oldest_goes_first(tiny):
    generator, seen = bounded(tiny(), 500, max_running=2)
    firsts = [await generator.generate(replace(request(np.arange(20, 60) + g, g), keep=True)) for g in range(8)]
    counts = []
    for first in reversed(firsts):
        before = generator.prefilled_tokens
        await generator.generate(replace(request(np.append(first.tokens_T, 50)), key=first.key))
        counts.append(generator.prefilled_tokens - before)
    assert max(seen) <= generator.memory.budget
    assert counts[0] == 2  # kept last
    assert counts[-1] == 53  # gone


def test_an_aborted_key_and_a_released_generator_keep_nothing(tiny):
    generator = EmbeddedGenerator(tiny())
    wanted = [replace(request(np.arange(20, 30), g), keep=True) for g in range(2)]
    run(generator, wanted)
    alone = generator.memory.bytes
    asyncio.run(generator.abort([wanted[0].key]))
    assert generator.memory.bytes == alone - (10 + 12 - 1) * CELL
    generator.release()
    assert generator.memory.bytes == 0


async def test_an_encoder_reads_a_longer_prompt_anew(text):
    samples, prefilled = await converse(embedded_generator(tiny_t5.build(text)), 2, said=(50,))
    assert prefilled == [40, len(samples[0].tokens_T) + 1]

"""The embedded generator over both kinds of model: its numbers are the learner's, and who shares the batch changes nothing."""

import asyncio
import copy
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from in_flight import EITHER, EVERY, engine

import naive
import tiny_models
import tiny_t5
from engine_examples import assert_same_draws, drawn, learner_logp, ragged, run, started
from penstock.core.errors import GenerationError
from penstock.engine.encoder_decoder import embedded_generator
from penstock.engine.generator import EmbeddedGenerator
from tiny_models import CONTEXT, request, tokens

each_architecture = pytest.mark.parametrize("architecture", EVERY)
each_kind = pytest.mark.parametrize("architecture", EITHER)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@each_architecture
def test_log_probs_are_the_learners_and_those_of_its_own_score(architecture, temperature, made):
    model = made(architecture)
    generator = embedded_generator(model, max_running=4, chunk=16)
    for sample in run(generator, ragged(8, temperature=temperature, max_new_tokens=20)):
        logp_A = sample.logp_T[sample.action_T]
        np.testing.assert_allclose(logp_A, learner_logp(model, sample, temperature), atol=1e-4)
        scored = asyncio.run(generator.score(sample.tokens_T, temperature, int((~sample.action_T).sum())))
        np.testing.assert_allclose(logp_A, scored[sample.action_T], atol=1e-4)


async def test_score_gives_one_number_a_token_and_zero_for_the_first(tiny):
    scored = await EmbeddedGenerator(tiny()).score(np.arange(20, 25, dtype=np.int32))
    assert scored.shape == (5,)
    assert scored[0] == 0.0
    assert (scored[1:] < 0).all()


def test_greedy_log_probs_are_those_of_score_at_temperature_zero(tiny):
    generator = EmbeddedGenerator(tiny())
    (sample,) = run(generator, [request(np.array([20, 21]), temperature=0.0)])
    scored = asyncio.run(generator.score(sample.tokens_T, 0.0))
    np.testing.assert_allclose(sample.logp_T[sample.action_T], scored[sample.action_T], atol=1e-4)


@each_architecture
def test_greedy_equals_generate_of_transformers(architecture, made):
    model, more = made(architecture), {}
    if architecture in tiny_t5.ARCHITECTURES:  # the cache of theirs has as many layers as the encoder, fewer than this decoder
        more = {"use_cache": False, "decoder_start_token_id": model.start}
    for sample in run(embedded_generator(model, max_running=3), ragged(4, temperature=0.0, max_new_tokens=20)):
        assert drawn(sample) == naive.greedy(model, sample, 20, **more)


@pytest.fixture(scope="module")
def alone(request, built, text):
    """A model, requests, and their samples, each drawn alone by an engine of its own."""
    model = tiny_t5.build(text) if request.param == "t5" else built[request.param]
    requests = ragged(7, temperature=0.9) + [tiny_models.request(np.array([30, 31, 32]), 50, sample) for sample in range(3)]
    return model, requests, [run(engine(model), [one])[0] for one in requests]


@pytest.mark.parametrize("alone", ["qwen2", "t5"], indirect=True)
@settings(max_examples=10)
@given(order=st.permutations(range(10)), slots=st.integers(1, 11), chunk=st.integers(1, 60), count=st.integers(1, 10))
def test_neither_batch_mates_nor_slots_nor_chunks_nor_order_change_a_sample(alone, order, slots, chunk, count):
    model, requests, expected = alone
    chosen = order[:count]
    found = run(engine(model, max_running=slots, chunk=chunk), [requests[place] for place in chosen])
    assert_same_draws(found, [expected[place] for place in chosen])


@pytest.mark.parametrize("alone", EITHER, indirect=True)
async def test_requests_that_come_while_others_are_decoded_change_nothing(alone):
    model, requests, expected = alone
    generator = engine(model, max_running=4)
    first = await started(generator, requests[:5], tokens=12)
    second = [asyncio.create_task(generator.generate(one)) for one in requests[5:]]
    assert_same_draws(await asyncio.gather(*first, *second), expected)


def test_another_seed_gives_another_sample(tiny):
    one, other = (run(EmbeddedGenerator(tiny()), [request(np.array([20]), seed=seed)])[0] for seed in (0, 1))
    assert drawn(one) != drawn(other)


@each_kind
def test_limits_are_obeyed_per_request(architecture, made):
    """One row is greedy, one is held to its two best tokens; the third is free and must not notice."""
    prompt = np.array([20, 21, 22])
    requests = [request(prompt, 0, temperature=0.0), request(prompt, 1, top_k=2), request(prompt, 2)]
    generator = engine(made(architecture))
    assert_same_draws(run(generator, requests), [run(generator, [one])[0] for one in requests])


@pytest.mark.parametrize(
    ("architecture", "slots"), [*((one, 16) for one in (*tiny_models.ARCHITECTURES, "t5")), ("qwen2", 3), ("t5", 3)]
)
def test_a_prompt_is_read_once_for_all_its_samples_even_where_they_wait_for_slots(architecture, slots, made):
    generator = engine(made(architecture), max_running=slots)
    run(generator, [request(np.arange(20, 45), sample=g) for g in range(12)])
    assert generator.prefilled_tokens == 25


def test_columns_are_aligned_with_the_tokens(tiny):
    (sample,) = run(EmbeddedGenerator(tiny()), [request(np.arange(20, 25), max_new_tokens=4)])
    assert sample.tokens_T[:5].tolist() == [20, 21, 22, 23, 24]
    assert sample.action_T.tolist() == [False] * 5 + [True] * 4
    assert sample.logp_T[:5].tolist() == [0.0] * 5
    assert (sample.logp_T[5:] < 0).all()
    assert sample.version_T.tolist() == [-1] * 5 + [0] * 4
    assert {name: getattr(sample, name).dtype for name in ("tokens_T", "action_T", "logp_T", "version_T")} == {
        "tokens_T": np.dtype("int32"),
        "action_T": np.dtype("bool"),
        "logp_T": np.dtype("float32"),
        "version_T": np.dtype("int32"),
    }


def test_a_stop_token_ends_a_sample_and_stays_in_its_tokens(tiny):
    generator = EmbeddedGenerator(tiny())
    (free,) = run(generator, [request(np.array([20]))])
    stop = next(token for place, token in enumerate(drawn(free)) if place >= 3 and token not in drawn(free)[:place])
    (sample,) = run(generator, [request(np.array([20]), stop_tokens=(stop,))])
    assert drawn(sample) == drawn(free)[: drawn(free).index(stop) + 1]
    assert sample.finish == "stop"
    assert sample.text == generator.text.decode(drawn(sample)[:-1])


def test_the_end_token_ends_a_sample_unasked(tiny):
    model = tiny()
    (free,) = run(EmbeddedGenerator(model), [request(np.array([20]))])
    model.text = copy.copy(model.text)
    model.text.ends = frozenset({drawn(free)[0]})
    (sample,) = run(EmbeddedGenerator(model), [request(np.array([20]))])
    assert (drawn(sample), sample.finish, sample.text) == (drawn(free)[:1], "stop", "")


def test_a_stop_string_ends_a_sample_and_is_cut_from_its_text_only(tiny):
    generator = EmbeddedGenerator(tiny())
    (free,) = run(generator, [request(np.array([20]), max_new_tokens=40)])
    at = next(i for i, letter in enumerate(free.text) if i >= 4 and letter.isascii() and letter not in free.text[:i])
    stop = free.text[at]
    (sample,) = run(generator, [request(np.array([20]), max_new_tokens=40, stop=("never in a text", stop))])
    needed = next(n for n in range(1, 41) if stop in generator.text.decode(drawn(free)[:n]))
    assert drawn(sample) == drawn(free)[:needed]
    assert sample.finish == "stop"
    assert sample.text == free.text[:at]


def test_the_first_of_several_stop_strings_cuts_the_text(tiny):
    generator = EmbeddedGenerator(tiny())
    (free,) = run(generator, [request(np.array([20]), max_new_tokens=40)])
    letters = [letter for letter in dict.fromkeys(free.text[2:]) if letter.isascii() and letter not in free.text[:2]]
    (sample,) = run(generator, [request(np.array([20]), max_new_tokens=40, stop=(letters[1], letters[0]))])
    assert sample.text == free.text[: free.text.index(letters[0])]


@each_kind
def test_the_context_ends_a_sample(architecture, made):
    model = made(architecture)
    (sample,) = run(engine(model), [request(np.full(CONTEXT - 6, 20), max_new_tokens=50)])
    assert (len(sample.tokens_T), len(drawn(sample)), sample.finish) == (CONTEXT, 6, "length")
    np.testing.assert_allclose(sample.logp_T[sample.action_T], learner_logp(model, sample), atol=1e-4)


def test_a_sliding_window_does_not_end_a_sample(text):
    model = tiny_models.build("qwen2", text, use_sliding_window=True, sliding_window=64, max_window_layers=0)
    (sample,) = run(EmbeddedGenerator(model), [request(np.full(60, 20), 0, max_new_tokens=50)])
    assert len(sample.tokens_T) > 64
    np.testing.assert_allclose(sample.logp_T[sample.action_T], learner_logp(model, sample), atol=1e-4)


def test_the_longest_prompt_leaves_room_for_one_token(tiny):
    (sample,) = run(EmbeddedGenerator(tiny()), [request(np.full(CONTEXT - 1, 20))])
    assert len(drawn(sample)) == 1


@pytest.mark.parametrize(
    ("length", "message"),
    [
        (CONTEXT, f"the prompt has {CONTEXT} tokens and the model's context is {CONTEXT}"),
        (0, "the prompt has no tokens; give at least one"),
    ],
    ids=["full", "empty"],
)
def test_a_prompt_that_cannot_be_answered_is_refused_by_its_length(length, message, tiny):
    with pytest.raises(GenerationError, match=message):
        run(EmbeddedGenerator(tiny()), [request(np.full(length, 20))])


async def test_too_long_a_sequence_is_not_scored(tiny):
    with pytest.raises(GenerationError, match=f"do not fit the context of {CONTEXT}"):
        await EmbeddedGenerator(tiny()).score(np.full(CONTEXT + 1, 20, np.int32))


async def test_more_requests_than_the_queue_holds_are_refused(tiny):
    generator = EmbeddedGenerator(tiny(), max_running=1, queue=3)
    requests = [request(np.array([20]), ordinal, max_new_tokens=2) for ordinal in range(5)]
    found = await asyncio.gather(*(generator.generate(one) for one in requests), return_exceptions=True)
    assert [type(one) for one in found[3:]] == [GenerationError, GenerationError]
    assert "3 requests are waiting already" in str(found[3])
    assert [len(drawn(sample)) for sample in found[:3]] == [2, 2, 2]


async def test_a_cancelled_request_frees_its_row(tiny):
    generator = EmbeddedGenerator(tiny(), max_running=1)
    (first,) = await started(generator, [request(np.array([20]), max_new_tokens=100)], tokens=2)
    second = asyncio.create_task(generator.generate(request(np.array([21]), 1, max_new_tokens=4)))
    first.cancel()
    assert len(drawn(await asyncio.wait_for(second, 10))) == 4
    assert generator.stats().generated_tokens < 50


async def test_a_cancelled_request_leaves_its_siblings_alone(tiny):
    requests = [request(np.array([20, 21]), sample=g, max_new_tokens=30) for g in range(4)]
    tasks = await started(EmbeddedGenerator(tiny()), requests, tokens=20)
    tasks[1].cancel()
    others = (0, 2, 3)
    expected = await asyncio.gather(*(EmbeddedGenerator(tiny()).generate(requests[place]) for place in others))
    assert_same_draws([await tasks[place] for place in others], expected)


async def test_a_failure_of_the_engine_reaches_everyone_who_waits(tiny, monkeypatch):
    model = tiny()
    generator = EmbeddedGenerator(model, max_running=1)

    def broken(*arguments, **named):
        raise RuntimeError("out of memory")

    async def both():
        wanted = [request(np.array([20]), 0), request(np.array([21]), 1)]
        return await asyncio.gather(*(generator.generate(one) for one in wanted), return_exceptions=True)

    with monkeypatch.context() as patch:
        patch.setattr(model, "hidden", broken)
        failed = await both()
    assert all(isinstance(one, GenerationError) and "out of memory" in str(one) for one in failed)
    assert all(len(drawn(sample)) > 0 for sample in await both())


async def test_stats_show_who_runs_and_who_waits(tiny):
    generator = EmbeddedGenerator(tiny(), max_running=2)
    requests = [request(np.array([20 + i]), i, max_new_tokens=30) for i in range(5)]
    tasks = await started(generator, requests, tokens=10)
    stats = generator.stats()
    assert (stats.running, stats.waiting) == (2, 3)
    assert 0 < stats.cache_use <= 1
    await asyncio.gather(*tasks)
    assert generator.stats().cache_use == 0.0


async def test_other_tasks_run_between_two_steps(tiny):
    task = asyncio.create_task(EmbeddedGenerator(tiny()).generate(request(np.array([20]), max_new_tokens=30)))
    turns = 0
    while not task.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns >= 20


def test_tokens_of_a_prompt_may_be_any_integer_type(tiny):
    wanted = request(tokens(np.random.default_rng(0), 5))
    kinds = [replace(wanted, tokens_T=wanted.tokens_T.astype(kind)) for kind in ("int32", "int64")]
    one, other = (run(EmbeddedGenerator(tiny()), [asked])[0] for asked in kinds)
    assert one.tokens_T.tolist() == other.tokens_T.tolist()


@pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)
def test_a_cache_given_back_holds_nothing_and_changes_no_draw(architecture, tiny):
    generator = EmbeddedGenerator(tiny(architecture), max_running=4)
    before = run(generator, ragged(4))
    generator.release()
    assert generator.memory.bytes == 0
    assert_same_draws(run(generator, ragged(4)), before)

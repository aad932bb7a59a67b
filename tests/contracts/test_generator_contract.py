"""What every generator must do, whatever engine stands behind it.

An implementation joins by one entry in ``GENERATORS``: an async context manager from a model to a running generator at
version 0, and which tiny model it runs. The tests use the verbs of the contract alone, and several requests at once
wherever an engine would batch them.
"""

import asyncio
import copy
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

import tiny_models
import tiny_t5
from penstock.core.contracts import Generator
from penstock.core.errors import GenerationError, WeightError
from penstock.core.types import Request, WeightUpdate
from penstock.engine.encoder_decoder import embedded_generator
from penstock.models.language_policy import LanguagePolicy
from penstock.train.learner import Scoring
from tiny_models import CONTEXT, request, row
from vllm_engine import WIDE, vllm


@asynccontextmanager
async def embedded(model) -> AsyncIterator[Generator]:
    yield embedded_generator(model, max_running=4)


@asynccontextmanager
async def served(model) -> AsyncIterator[Generator]:
    """Our HTTP server on loopback, and the generator that drives it."""
    pytest.importorskip("uvicorn")
    from penstock.serve.http import ServedGenerator
    from penstock.serve.http_client import HttpClient
    from penstock.weights.snapshot import pack
    from serving import TOKEN, service_of, serving

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_TOKEN", TOKEN)
        async with serving(service_of(model)) as url:
            client = HttpClient(url, "PENSTOCK_TOKEN", 30.0)
            yield ServedGenerator(client, model.text, pack, version=0)
            await client.close()


@asynccontextmanager
async def recorded_sglang(model) -> AsyncIterator[Generator]:
    """SGLang's adapter against a server that answers as SGLang's documentation says."""
    pytest.importorskip("uvicorn")
    from sglang_answers import Answers, sglang_over

    with tempfile.TemporaryDirectory() as folder:
        async with sglang_over(Answers(copy.deepcopy(model)), model, Path(folder)) as generator:
            yield generator


GENERATORS = {
    "embedded": (embedded, "qwen2"),
    "embedded encoder-decoder": (embedded, "t5"),
    "served": (served, "qwen2"),
    "served encoder-decoder": (served, "t5"),
    "SGLang (recorded)": (recorded_sglang, "qwen2"),
    "vLLM": (vllm, "wide qwen2"),
}
MARKS = {"vLLM": pytest.mark.vllm}

CLOSE = 1e-4
"""Largest gap in nats between two computations of one float32 log-prob."""


@pytest.fixture(params=[pytest.param(name, marks=MARKS.get(name, ())) for name in GENERATORS])
def kind(request):
    return GENERATORS[request.param]


@pytest.fixture
def tiny(kind, tiny, text):
    """``tiny()``: a model of the kind that the generator runs."""
    if kind[1] in tiny_t5.ARCHITECTURES:
        return lambda: tiny_t5.build(text, kind[1])
    return lambda: tiny_models.build("qwen2", text, **WIDE) if kind[1] == "wide qwen2" else tiny(kind[1])


@pytest.fixture
def using(kind, tiny):
    """``using(scenario, model=None)``: the result of an async scenario over a fresh generator."""

    def run(scenario, model=None):
        async def opened():
            async with kind[0](model or tiny()) as generator:
                return await asyncio.wait_for(scenario(generator), 60)

        return asyncio.run(opened())

    return run


def requests(count=6, **sampling):
    rng = np.random.default_rng(0)
    prompts = [tiny_models.tokens(rng, int(n)) for n in rng.integers(1, 20, count)]
    return [request(prompt, ordinal, **({"max_new_tokens": 16} | sampling)) for ordinal, prompt in enumerate(prompts)]


async def generate(generator, wanted):
    return await asyncio.gather(*(generator.generate(one) for one in wanted))


async def pause(generator, wanted, tokens=20):
    """Tasks in the middle of their generation."""
    tasks = [asyncio.create_task(generator.generate(one)) for one in wanted]
    while generator.stats().generated_tokens < tokens:
        assert not all(task.done() for task in tasks)
        await asyncio.sleep(0)
    return tasks


def other_weights(tiny):
    model = tiny()
    tiny_models.randomise(model.network, seed=5)
    return model


def test_it_fulfils_the_protocol(using):
    async def scenario(generator):
        assert isinstance(generator, Generator)

    using(scenario)


def test_samples_come_under_the_keys_of_their_requests(using):
    wanted = requests()
    assert [sample.key for sample in using(lambda g: generate(g, wanted))] == [one.key for one in wanted]


def test_columns_are_aligned_and_empty_before_the_first_action(using):
    wanted = requests()
    for one, sample in zip(wanted, using(lambda g: generate(g, wanted)), strict=True):
        prompt = len(one.tokens_T)
        assert sample.tokens_T[:prompt].tolist() == one.tokens_T.tolist()
        assert not sample.action_T[:prompt].any()
        assert sample.action_T[prompt:].all()
        assert len(sample.tokens_T) == len(sample.action_T) == len(sample.logp_T) == len(sample.version_T) > prompt
        assert (sample.logp_T[:prompt] == 0).all()
        assert (sample.version_T[:prompt] == -1).all()


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_log_probs_are_those_of_score(using, temperature):
    async def scenario(generator):
        samples = await generate(generator, requests(temperature=temperature))
        prompts = [int((~sample.action_T).sum()) for sample in samples]
        return samples, [await generator.score(s.tokens_T, temperature, p) for s, p in zip(samples, prompts, strict=True)]

    for sample, scored in zip(*using(scenario), strict=True):
        assert (scored[~sample.action_T] == 0).all()
        np.testing.assert_allclose(sample.logp_T[sample.action_T], scored[sample.action_T], atol=CLOSE)


def assert_log_probs_of_the_learner(samples, model):
    units = [(row(s.tokens_T[~s.action_T], s.tokens_T[s.action_T]),) for s in samples]
    expected = Scoring(LanguagePolicy(model)).score(units, frozenset({"logp"}))["logp"]
    for sample, logp_A in zip(samples, expected, strict=True):
        np.testing.assert_allclose(sample.logp_T[sample.action_T], logp_A, atol=CLOSE)


def test_log_probs_are_those_of_the_learner(using, tiny):
    assert_log_probs_of_the_learner(using(lambda g: generate(g, requests())), tiny())


@pytest.mark.parametrize("limits", [{"top_k": 2}, {"top_p": 0.3}, {"min_p": 0.5}])
def test_limits_cut_what_is_sampled_but_not_the_log_probs(using, tiny, limits):
    assert_log_probs_of_the_learner(using(lambda g: generate(g, requests(**limits))), tiny())


def test_greedy_samples_of_a_prompt_are_equal(using):
    wanted = [request(np.arange(20, 25), sample=g, temperature=0.0) for g in range(3)]
    assert len({tuple(sample.tokens_T) for sample in using(lambda g: generate(g, wanted))}) == 1


def test_samples_of_a_prompt_differ(using):
    wanted = [request(np.arange(20, 25), sample=g) for g in range(3)]
    assert len({tuple(sample.tokens_T) for sample in using(lambda g: generate(g, wanted))}) == 3


def test_a_sample_is_a_function_of_its_request(using):
    wanted = requests(4, max_new_tokens=12)
    together, alone = using(lambda g: generate(g, wanted)), [using(lambda g, o=one: generate(g, [o]))[0] for one in wanted]
    assert [s.tokens_T.tolist() for s in together] == [s.tokens_T.tolist() for s in alone]


def test_a_sample_ends_at_its_limit(using):
    (sample,) = using(lambda g: generate(g, [request(np.array([20]), max_new_tokens=3)]))
    assert (int(sample.action_T.sum()), sample.finish) == (3, "length")


def test_a_sample_ends_at_the_context(using):
    (sample,) = using(lambda g: generate(g, [request(np.full(CONTEXT - 2, 20), max_new_tokens=30)]))
    assert len(sample.tokens_T) <= CONTEXT
    assert sample.finish == "length"


def test_a_stop_token_stays_in_the_tokens(using):
    (free,) = using(lambda g: generate(g, [request(np.array([20]))]))
    stop = int(free.tokens_T[4])
    (sample,) = using(lambda g: generate(g, [request(np.array([20]), stop_tokens=(stop,))]))
    assert sample.finish == "stop"
    assert sample.tokens_T[-1] == stop
    assert stop not in sample.tokens_T[1:-1]


def test_a_stop_string_is_cut_from_the_text(using):
    (free,) = using(lambda g: generate(g, [request(np.array([20]), max_new_tokens=40)]))
    stop = next(letter for place, letter in enumerate(free.text) if place >= 4 and letter.isascii())
    (sample,) = using(lambda g: generate(g, [request(np.array([20]), max_new_tokens=40, stop=(stop,))]))
    assert sample.finish == "stop"
    assert sample.text == free.text[: free.text.index(stop)]


@pytest.mark.parametrize("length", [0, CONTEXT, CONTEXT + 5])
def test_a_prompt_that_cannot_be_answered_is_refused_alone(using, length):
    async def scenario(generator):
        wanted = [request(np.full(length, 20), 0), request(np.array([20]), 1)]
        return await asyncio.gather(*(generator.generate(one) for one in wanted), return_exceptions=True)

    refused, sample = using(scenario)
    assert isinstance(refused, GenerationError)
    assert "test/0/0#0" in str(refused)
    assert sample.action_T.any()


@pytest.mark.parametrize("kv", ["keep", "recompute"])
def test_loading_in_flight_gives_each_token_its_version(using, tiny, kv):
    async def scenario(generator):
        # so long that an update comes in the middle, also on a busy machine
        tasks = await pause(generator, requests(max_new_tokens=100))
        assert await generator.load(WeightUpdate(1, list(other_weights(tiny).policy_weights()), kv)) == 1
        return await asyncio.gather(*tasks)

    seen = set()
    for sample in using(scenario):
        versions = sample.version_T[sample.action_T]
        assert (np.diff(versions) >= 0).all()
        seen |= set(versions.tolist())
    assert seen == {0, 1}


def test_new_weights_are_the_ones_that_score(using, tiny):
    new, tokens_T = other_weights(tiny), np.arange(20, 30, dtype=np.int32)

    async def scenario(generator):
        before = await generator.score(tokens_T, prompt=1)
        await generator.load(WeightUpdate(1, list(new.policy_weights())))
        return before, await generator.score(tokens_T, prompt=1)

    before, after = using(scenario)
    expected = Scoring(LanguagePolicy(new)).score([(row(tokens_T[:1], tokens_T[1:]),)], frozenset({"logp"}))["logp"][0]
    np.testing.assert_allclose(after[1:], expected, atol=CLOSE)
    assert np.abs(after - before).max() > 0.1


def spoilt(model, problem):
    tensors = {name: tensor.detach().clone() for name, tensor in model.policy_weights()}
    name = sorted(tensors)[0]
    if problem == "missing":
        del tensors[name]
    elif problem == "unknown":
        tensors["nonsense"] = tensors[name]
    elif problem == "shape":
        tensors[name] = tensors[name][:-1]
    elif problem == "nan":
        tensors[name].view(-1)[-1] = float("nan")
    return tensors.items()


@pytest.mark.parametrize("problem", ["missing", "unknown", "shape", "nan", "version"])
def test_a_refused_update_changes_nothing(using, tiny, problem):
    tokens_T = np.arange(20, 30, dtype=np.int32)

    async def scenario(generator):
        before = await generator.score(tokens_T, prompt=1)
        version = 0 if problem == "version" else 1
        update = WeightUpdate(version, spoilt(other_weights(tiny), problem))
        with pytest.raises(WeightError):
            await generator.load(update)
        return before, await generator.score(tokens_T, prompt=1), generator.stats().version

    before, after, version = using(scenario)
    assert before.tolist() == after.tolist()
    assert version == 0


def test_abort_gives_partial_samples_and_so_does_generate(using):
    wanted = requests(3, max_new_tokens=60)

    async def scenario(generator):
        tasks = await pause(generator, wanted)
        given = await generator.abort([wanted[1].key])
        return given, await asyncio.gather(*tasks)

    (given,), samples = using(scenario)
    assert given.key == wanted[1].key
    assert samples[1].finish == given.finish == "abort"
    assert samples[1].tokens_T.tolist() == given.tokens_T.tolist()
    assert 0 < given.action_T.sum() < 60
    assert "abort" not in (samples[0].finish, samples[2].finish)


def test_a_resumed_sample_equals_an_uninterrupted_one(using):
    wanted = requests(3, max_new_tokens=40)

    async def scenario(generator):
        tasks = await pause(generator, wanted)
        await generator.abort([one.key for one in wanted])
        partial = await asyncio.gather(*tasks)
        again = [Request(one.key, one.tokens_T, one.sampling, resume=s) for one, s in zip(wanted, partial, strict=True)]
        return await generate(generator, again)

    for one, other in zip(using(scenario), using(lambda g: generate(g, wanted)), strict=True):
        assert one.tokens_T.tolist() == other.tokens_T.tolist()
        assert one.finish == other.finish
        np.testing.assert_allclose(one.logp_T, other.logp_T, atol=CLOSE)


def test_aborting_what_is_unknown_gives_nothing(using):
    assert using(lambda g: g.abort([tiny_models.key(9)])) == []


def test_stats_count_tokens_and_show_the_version(using, tiny):
    async def scenario(generator):
        samples = await generate(generator, requests())
        await generator.load(WeightUpdate(2, list(other_weights(tiny).policy_weights())))
        return samples, generator.stats()

    samples, stats = using(scenario)
    assert stats.generated_tokens == sum(int(sample.action_T.sum()) for sample in samples)
    assert (stats.version, stats.running, stats.waiting) == (2, 0, 0)
    assert stats.busy_seconds > 0

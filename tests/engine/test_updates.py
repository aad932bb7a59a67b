"""Weight updates between two decode steps: wholly or not at all, and every token knows its version."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch
from in_flight import EITHER, LONG, aborted, engine, finished, updated

import tiny_models
from engine_examples import assert_each_token_is_its_versions, assert_same_draws, drawn, learner_logp, run, started
from penstock.algos.sft import SFT
from penstock.config.run import LearnerSpec
from penstock.core.contracts import Denominator
from penstock.core.errors import WeightError
from penstock.core.types import Request, Sampling, WeightUpdate
from penstock.engine.generator import EmbeddedGenerator
from penstock.models.language_policy import LanguagePolicy
from penstock.models.packing import lay_out
from penstock.train.learner import DeviceLearner, LearnerPlan
from tiny_models import request

each_policy = pytest.mark.parametrize("kv", ["keep", "recompute"])
QUICK = ("qwen3", "gpt2", "t5")
each_architecture = pytest.mark.parametrize(
    "architecture",
    [*tiny_models.ARCHITECTURES, "t5"],
)


def tensors_of(model, scale=1.0):
    return {name: tensor.detach() * scale for name, tensor in model.policy_weights()}


@each_policy
@each_architecture
def test_loading_the_same_weights_in_flight_changes_no_token(architecture, kv, made):
    model, again = made(architecture), made(architecture)
    found = updated(engine(model, max_running=3), LONG, 30, WeightUpdate(1, tensors_of(model).items(), kv))
    assert_same_draws(found, run(engine(again, max_running=3), LONG))
    assert {version for sample in found for version in sample.version_T[sample.action_T]} == {0, 1}


@each_architecture
def test_samples_aborted_by_an_update_go_on_where_they_were(architecture, made):
    generator = engine(made(architecture), max_running=3)
    partial = updated(generator, LONG, 30, WeightUpdate(1, None, "abort"))
    found = finished(generator, LONG, partial)
    assert {sample.finish for sample in partial} >= {"abort"}
    assert sum(len(drawn(sample)) for sample in partial) < sum(len(drawn(sample)) for sample in found)
    assert_same_draws(found, run(engine(made(architecture), max_running=3), LONG))


@each_policy
async def test_versions_grow_along_a_sample_and_end_at_the_newest(kv, tiny):
    generator = EmbeddedGenerator(tiny())
    tasks = await started(generator, LONG, tokens=20)
    await generator.load(WeightUpdate(1, None, kv))
    while generator.stats().generated_tokens < 60:
        await asyncio.sleep(0)
    await generator.load(WeightUpdate(5, None, kv))
    longest = max(await asyncio.gather(*tasks), key=lambda sample: len(sample.tokens_T))
    versions = longest.version_T[longest.action_T]
    assert (np.diff(versions) >= 0).all()
    assert set(versions) == {0, 1, 5}
    assert longest.oldest_version == 0


def changing(made, architecture):
    """A model whose weights are to change, one as it was and one as it will be."""
    model, old, new = (made(architecture) for _ in range(3))
    tiny_models.randomise(new.network, seed=9)
    return model, old, new


@each_architecture
def test_after_recompute_every_token_has_the_log_prob_of_its_version(architecture, made):
    model, old, new = changing(made, architecture)
    samples = updated(engine(model, max_running=3), LONG, 30, WeightUpdate(1, new.policy_weights(), "recompute"))
    assert_each_token_is_its_versions(samples, (old, new))


@pytest.mark.parametrize("architecture", EITHER)
def test_kept_caches_go_on_under_the_new_weights(architecture, made):
    """The caches are the old weights', the step the new ones': neither version alone explains the tokens that follow."""
    model, old, new = changing(made, architecture)
    (sample,) = updated(engine(model), LONG[:1], 5, WeightUpdate(1, new.policy_weights(), "keep"))
    late = sample.version_T[sample.action_T] == 1
    for weights in (old, new):
        assert np.abs(sample.logp_T[sample.action_T] - learner_logp(weights, sample))[late].max() > 1e-3


def test_a_sample_that_starts_after_an_update_is_wholly_new(made):
    model, _, new = changing(made, "qwen2")
    generator = EmbeddedGenerator(model)
    asyncio.run(generator.load(WeightUpdate(3, new.policy_weights())))
    (sample,) = run(generator, LONG[:1])
    assert set(sample.version_T[sample.action_T]) == {3}
    assert_same_draws([sample], run(EmbeddedGenerator(new), LONG[:1]))


def wrong_shape(tensors):
    return tensors | {"model.norm.weight": torch.zeros(33)}


def not_finite(tensors):
    broken = tensors["model.norm.weight"].clone()
    broken[3] = float("nan")
    return tensors | {"model.norm.weight": broken}


def missing(tensors):
    return {name: tensor for name, tensor in tensors.items() if name != "model.norm.weight"}


def unknown(tensors):
    return tensors | {"model.nonsense": torch.zeros(1)}


REFUSED = {
    "wrong shape": (wrong_shape, {}, r'"model.norm.weight" has shape \(33,\), not \(32,\)'),
    "not finite": (not_finite, {}, '"model.norm.weight" holds a value that is not finite'),
    "missing name": (missing, {}, 'parameter "model.norm.weight" is missing'),
    "unknown name": (unknown, {}, 'parameter "model.nonsense" is unknown'),
    "older version": (dict, {"version": 3}, "version 3 is not newer than 4"),
    "same version": (dict, {"version": 4}, "version 4 is not newer than 4"),
}


@pytest.mark.parametrize("problem", REFUSED)
def test_a_refused_update_leaves_weights_and_version(problem, tiny):
    spoil, changes, message = REFUSED[problem]
    model = tiny()
    before = {name: tensor.clone() for name, tensor in tensors_of(model).items()}
    generator = EmbeddedGenerator(model, version=4)
    fields = {"version": 5, "tensors": spoil(tensors_of(model, scale=0.5)).items()} | changes
    with pytest.raises(WeightError, match=message):
        asyncio.run(generator.load(WeightUpdate(**fields)))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.policy_weights())
    assert generator.stats().version == 4


async def test_a_refused_update_in_flight_changes_no_sample(tiny):
    generator = EmbeddedGenerator(tiny())
    tasks = await started(generator, LONG, tokens=20)
    with pytest.raises(WeightError):
        await generator.load(WeightUpdate(1, not_finite(tensors_of(generator.model, 0.5)).items(), "recompute"))
    found, again = await asyncio.gather(*tasks), EmbeddedGenerator(tiny())
    assert_same_draws(found, await asyncio.gather(*(again.generate(one) for one in LONG)))
    assert {version for sample in found for version in sample.version_T[sample.action_T]} == {0}


def test_the_generator_reads_the_parameters_that_a_learner_trains(tiny):
    """Aliasing: one optimizer step, and the next token's log-prob is that of the new weights, with nothing copied."""
    model = tiny()
    generator = EmbeddedGenerator(model)
    learner = DeviceLearner(LanguagePolicy(model), LearnerSpec(learning_rate=0.05), LearnerPlan(total_steps=1))
    (before,) = run(generator, LONG[:1])
    unit = (tiny_models.row(np.arange(20, 26), np.arange(40, 50), weight=np.ones(10, np.float32)),)
    (batch,) = lay_out([unit], 4096, True)
    learner.accumulate(batch, SFT().loss(), Denominator.of([unit]))
    learner.step()
    asyncio.run(generator.load(WeightUpdate(1)))
    (after,) = run(generator, LONG[:1])
    assert abs(after.logp_T[6] - before.logp_T[6]) > 1e-3
    np.testing.assert_allclose(after.logp_T[after.action_T], learner_logp(model, after), atol=1e-4)


def test_abort_gives_what_was_drawn_and_so_does_generate_and_siblings_are_left_alone(tiny):
    given, samples = aborted(EmbeddedGenerator(tiny(), max_running=4), LONG, 20, [LONG[1].key, LONG[3].key])
    expected = run(EmbeddedGenerator(tiny(), max_running=4), LONG)
    assert {sample.key for sample in given} == {LONG[1].key, LONG[3].key}
    assert [sample.finish for sample in samples[1::2]] == ["abort", "abort"]
    assert_same_draws(samples[::2], expected[::2])
    for partial in given:
        whole = expected[partial.key.sample]
        assert 0 < len(drawn(partial)) < len(drawn(whole))
        assert drawn(partial) == drawn(whole)[: len(drawn(partial))]
        assert drawn(samples[partial.key.sample]) == drawn(partial)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.0}, {"top_k": 3, "temperature": 1.5}])
@each_architecture
def test_a_resumed_sample_equals_an_uninterrupted_one(architecture, sampling, made):
    requests = [Request(r.key, r.tokens_T, Sampling(**({"max_new_tokens": 30} | sampling))) for r in LONG]
    generator = engine(made(architecture), max_running=4)
    _, partial = aborted(generator, requests, 25, [one.key for one in requests])
    whole = run(engine(made(architecture), max_running=4), requests)
    assert_same_draws(finished(generator, requests, partial), whole)


async def test_a_sample_can_be_resumed_by_another_generator_after_every_token(tiny):
    one, sample = LONG[0], None
    while sample is None or sample.finish == "abort":
        generator = EmbeddedGenerator(tiny())
        (task,) = await started(generator, [replace(one, resume=sample)], tokens=1)
        await generator.abort([one.key])
        sample = await task
    assert_same_draws([sample], [await EmbeddedGenerator(tiny()).generate(one)])


def test_resuming_a_finished_sample_gives_it_back(tiny):
    generator = EmbeddedGenerator(tiny())
    (whole,) = run(generator, LONG[:1])
    (again,) = finished(generator, LONG[:1], [whole])
    assert_same_draws([again], [whole])
    assert again.version_T.tolist() == whole.version_T.tolist()


def test_aborting_a_request_that_waits_gives_a_sample_without_actions(tiny):
    wanted = [request(np.array([20 + i]), i, max_new_tokens=20) for i in range(3)]
    (given,), samples = aborted(EmbeddedGenerator(tiny(), max_running=1), wanted, 2, [tiny_models.key(2)])
    assert (given.tokens_T.tolist(), given.action_T.any(), given.finish) == ([22], False, "abort")
    assert not samples[2].scored(1.0).valid
    assert all(len(drawn(sample)) > 0 for sample in samples[:2])

"""A generator that follows a channel: new weights arrive between two decode steps, wrong ones never."""

import asyncio

import numpy as np
import pytest
import torch

import tiny_models
from penstock.core.errors import WeightError
from penstock.core.types import Row, WeightUpdate
from penstock.engine.generator import EmbeddedGenerator
from penstock.models.language_model import LanguageModel
from penstock.models.language_policy import LanguagePolicy
from penstock.train.learner import Scoring
from penstock.weights.shared_memory import SharedMemoryPublisher, SharedMemorySubscriber
from weight_examples import Board, Channel, Source, following, until

LONG = [tiny_models.request(np.arange(20, 26), sample=g, max_new_tokens=60) for g in range(4)]


def weights_of(model: LanguageModel) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.policy_weights()}


def learner_logp(model, sample):
    unit = (Row(sample.columns, sample.action_T, {}),)
    return Scoring(LanguagePolicy(model, 1.0)).score([unit], frozenset({"logp"}))["logp"][0]


@pytest.fixture
def channel(tiny, folder):
    """One that carries the weights of a model; version 1 has half of each, 2 a quarter."""
    first = weights_of(tiny())
    made = Channel(
        folder,
        SharedMemoryPublisher,
        SharedMemorySubscriber,
        lambda version: {name: tensor * 0.5**version for name, tensor in first.items()},
    )
    yield made
    made.close()


@pytest.mark.parametrize("kv", ["keep", "recompute"])
@pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)
def test_tokens_drawn_after_an_update_have_the_log_probs_of_the_new_weights(architecture, kv, tiny, channel):
    """Pointers are swapped under a step that was recorded with the old ones; tied weights included."""
    model, old, new = tiny(architecture), tiny(architecture), tiny(architecture)
    tiny_models.randomise(new.network, seed=9)
    channel.source.now = weights_of(new)

    async def updated():
        generator = EmbeddedGenerator(model, max_running=4)
        async with following(generator, channel.board, channel.subscriber, kv):
            samples = [asyncio.create_task(generator.generate(request)) for request in LONG]
            await until(lambda: generator.generated_tokens > 12)
            await channel.publisher.publish(1)
            found = await asyncio.gather(*samples)
            return found, await generator.generate(tiny_models.request(np.arange(20, 26), 1, max_new_tokens=10))

    found, late = asyncio.run(updated())
    assert {version for sample in found for version in sample.version_T[sample.action_T]} == {0, 1}
    for sample in found:
        first = sample.version_T[sample.action_T] == 0
        np.testing.assert_allclose(sample.logp_T[sample.action_T][first], learner_logp(old, sample)[first], atol=1e-4)
        if kv == "recompute":
            np.testing.assert_allclose(sample.logp_T[sample.action_T][~first], learner_logp(new, sample)[~first], atol=1e-4)
    assert set(late.version_T[late.action_T]) == {1}
    np.testing.assert_allclose(late.logp_T[late.action_T], learner_logp(new, late), atol=1e-4)


def followed_to(version, tiny, channel):
    """A generator that has followed the channel to a version, and what was reported."""

    async def reached():
        generator = EmbeddedGenerator(tiny())
        async with following(generator, channel.board, channel.subscriber) as reports:
            await until(lambda: generator.stats().version == version)
        return generator, reports

    return asyncio.run(reached())


def test_the_parameters_hold_the_published_bytes_and_heads_stay_tied(tiny, channel):
    channel.publish(1)
    generator, _ = followed_to(1, tiny, channel)
    assert all(torch.equal(tensor, channel.source.now[name]) for name, tensor in generator.model.policy_weights())
    network = generator.model.network
    assert network.get_output_embeddings().weight is network.get_input_embeddings().weight


def test_floats_that_travelled_as_bfloat16_are_held_rounded(tiny, folder):
    model = tiny()
    first = weights_of(model)
    channel = Channel(folder, SharedMemoryPublisher, SharedMemorySubscriber, lambda version: first, dtype="bfloat16")
    channel.publish(1)
    asyncio.run(EmbeddedGenerator(model).load(channel.open()))
    channel.close()
    for name, tensor in model.policy_weights():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, first[name].to(torch.bfloat16).float())


def with_nan(weights):
    broken = {name: tensor.clone() for name, tensor in weights.items()}
    broken["model.norm.weight"][3] = float("nan")
    return broken


def with_infinity(weights):
    broken = {name: tensor.clone() for name, tensor in weights.items()}
    broken["model.embed_tokens.weight"][5, 5] = float("-inf")
    return broken


REFUSED = {
    "NaN": (with_nan, '"model.norm.weight" holds a value that is not finite'),
    "infinity": (with_infinity, '"model.embed_tokens.weight" holds a value that is not finite'),
    "wrong shape": (lambda w: w | {"model.norm.weight": torch.ones(33)}, '"model.norm.weight" has shape (33,), not (32,)'),
    "missing": (lambda w: {n: t for n, t in w.items() if n != "model.norm.weight"}, '"model.norm.weight" is missing'),
    "unknown": (lambda w: w | {"model.other": torch.ones(1)}, '"model.other" is unknown'),
}


@pytest.mark.parametrize("problem", REFUSED)
def test_a_refused_version_is_reported_and_the_next_one_is_loaded(problem, tiny, folder):
    spoil, reason = REFUSED[problem]
    model = tiny()
    good = weights_of(model)

    async def updated():
        board = Board()
        generator = EmbeddedGenerator(model)
        async with following(generator, board, SharedMemorySubscriber(folder)) as reports:
            bad_one = SharedMemoryPublisher(Source(spoil(good)), folder, board.post)
            await bad_one.publish(1)
            await until(lambda: len(reports) == 1)
            held = weights_of(model), generator.stats().version
            bad_one.close()
            better = SharedMemoryPublisher(Source({n: t * 0.5 for n, t in good.items()}), folder, board.post)
            await better.publish(2)
            await until(lambda: len(reports) == 2)
        better.close()
        return reports, held

    reports, (held, version) = asyncio.run(updated())
    assert reports.told == [("refused", 1), ("loaded", 2)]
    assert reason in reports[0]["reason"]
    assert version == 0
    assert all(torch.equal(tensor, good[name]) for name, tensor in held.items())
    assert all(torch.equal(tensor, good[name] * 0.5) for name, tensor in model.policy_weights())


def test_an_older_version_is_refused_but_a_new_learner_epoch_may_go_back(tiny):
    model = tiny()
    generator = EmbeddedGenerator(model, version=4)

    def update(version, learner_epoch):
        return WeightUpdate(version, list(weights_of(model).items()), learner_epoch=learner_epoch, owned=True)

    for version in (3, 4):
        with pytest.raises(WeightError, match=f"version {version} is not newer than 4"):
            asyncio.run(generator.load(update(version, 0)))
    assert asyncio.run(generator.load(update(2, 1))) == 2
    with pytest.raises(WeightError, match="version 9 of learner_epoch 0 is not newer than 2"):
        asyncio.run(generator.load(update(9, 0)))
    assert generator.stats().version == 2


def test_of_two_updates_at_once_the_newer_stays(tiny):
    model = tiny()
    generator = EmbeddedGenerator(model)
    old, new = ({name: tensor * scale for name, tensor in weights_of(model).items()} for scale in (0.5, 0.25))

    async def both():
        loads = (generator.load(WeightUpdate(v, list(t.items()), owned=True)) for v, t in ((1, old), (2, new)))
        return await asyncio.gather(*loads, return_exceptions=True)

    results = asyncio.run(both())
    assert results[1] == 2
    assert results[0] == 1 or isinstance(results[0], WeightError)
    assert all(torch.equal(tensor, new[name]) for name, tensor in model.policy_weights())


def test_tensors_that_are_not_owned_are_copied(tiny):
    model = tiny()
    given = {name: tensor * 0.5 for name, tensor in weights_of(model).items()}
    asyncio.run(EmbeddedGenerator(model).load(WeightUpdate(1, given.items())))
    for tensor in given.values():
        tensor.zero_()
    assert all(bool(tensor.any()) for _, tensor in model.policy_weights())


def test_a_superseded_manifest_is_passed_over_in_silence(tiny, channel):
    asked, newest = [], channel.board.newest

    async def outdated(learner_epoch, version):
        asked.append((learner_epoch, version))
        return channel.board.manifests[0] if version < 1 else await newest(learner_epoch, version)

    channel.publish(1, 2, 3, 4)
    channel.board.newest = outdated
    assert followed_to(4, tiny, channel)[1].told == [("loaded", 4)]
    assert asked[:2] == [(-1, -1), (0, 1)]


def test_samples_that_an_update_aborts_come_back_resumable(tiny, channel):
    async def updated():
        generator = EmbeddedGenerator(tiny(), max_running=4)
        async with following(generator, channel.board, channel.subscriber, "abort"):
            samples = [asyncio.create_task(generator.generate(request)) for request in LONG]
            await until(lambda: generator.generated_tokens > 12)
            await channel.publisher.publish(1)
            return await asyncio.gather(*samples)

    assert "abort" in {sample.finish for sample in asyncio.run(updated())}

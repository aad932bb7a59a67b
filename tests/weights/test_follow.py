"""A generator that follows a channel: new weights arrive between two decode steps, wrong ones never."""

import asyncio

import numpy as np
import pytest
import torch
from weight_examples import Board, Reports, Source, following, until

import tiny_models
from penstock.core.errors import WeightError
from penstock.core.types import Row, WeightUpdate
from penstock.engine.generator import EmbeddedGenerator
from penstock.models.language_model import LanguageModel
from penstock.models.language_policy import LanguagePolicy
from penstock.train.learner import Scoring
from penstock.weights.folder import PREFIX
from penstock.weights.follow import follow
from penstock.weights.shared_memory import SharedMemoryPublisher, SharedMemorySubscriber

LONG = [tiny_models.request(np.arange(20, 26), sample=g, max_new_tokens=60) for g in range(4)]


def weights_of(model: LanguageModel) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.policy_weights()}


def learner_logp(model, sample):
    unit = (Row(sample.columns, sample.action_T, {}),)
    return Scoring(LanguagePolicy(model, 1.0)).score([unit], frozenset({"logp"}))["logp"][0]


@pytest.fixture
def channel(tiny, tmp_path):
    """A source of weights, a board, a publisher and a subscriber."""
    folder = tmp_path / f"{PREFIX}run"
    source, board = Source(weights_of(tiny())), Board()
    publisher = SharedMemoryPublisher(source, folder, board.post)
    yield source, board, publisher, SharedMemorySubscriber(folder)
    publisher.close()


@pytest.mark.parametrize("kv", ["keep", "recompute"])
@pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)
def test_tokens_drawn_after_an_update_have_the_log_probs_of_the_new_weights(architecture, kv, tiny, tmp_path):
    """Pointers are swapped under a step that was recorded with the old ones; tied weights included."""
    model, old, new = tiny(architecture), tiny(architecture), tiny(architecture)
    tiny_models.randomise(new.network, seed=9)

    async def updated():
        board = Board()
        publisher = SharedMemoryPublisher(Source(weights_of(new)), tmp_path / f"{PREFIX}run", board.post)
        generator = EmbeddedGenerator(model, max_running=4)
        task, _ = following(generator, board, SharedMemorySubscriber(publisher.folder.path), kv)
        samples = [asyncio.create_task(generator.generate(request)) for request in LONG]
        await until(lambda: generator.generated_tokens > 40)
        await publisher.publish(1)
        found = await asyncio.gather(*samples)
        late = await generator.generate(tiny_models.request(np.arange(20, 26), 1, max_new_tokens=30))
        task.cancel()
        publisher.close()
        return found, late

    found, late = asyncio.run(updated())
    assert {version for sample in found for version in sample.version_T[sample.action_T]} == {0, 1}
    for sample in found:
        first = sample.version_T[sample.action_T] == 0
        np.testing.assert_allclose(sample.logp_T[sample.action_T][first], learner_logp(old, sample)[first], atol=1e-4)
        if kv == "recompute":
            np.testing.assert_allclose(sample.logp_T[sample.action_T][~first], learner_logp(new, sample)[~first], atol=1e-4)
    assert set(late.version_T[late.action_T]) == {1}
    np.testing.assert_allclose(late.logp_T[late.action_T], learner_logp(new, late), atol=1e-4)


def test_the_parameters_hold_the_published_bytes_and_heads_stay_tied(tiny, channel):
    source, board, publisher, subscriber = channel
    source.now = {name: tensor * 0.5 for name, tensor in source.now.items()}

    async def updated():
        generator = EmbeddedGenerator(tiny())
        task, _ = following(generator, board, subscriber)
        await publisher.publish(1)
        await until(lambda: generator.stats().version == 1)
        task.cancel()
        return generator.model

    model = asyncio.run(updated())
    assert all(torch.equal(tensor, source.now[name]) for name, tensor in model.policy_weights())
    network = model.network
    assert network.get_output_embeddings().weight is network.get_input_embeddings().weight


def test_floats_that_travelled_as_bfloat16_are_held_rounded(tiny, tmp_path):
    model, board = tiny(), Board()
    source = Source(weights_of(model))
    publisher = SharedMemoryPublisher(source, tmp_path / f"{PREFIX}run", board.post, dtype="bfloat16")
    asyncio.run(publisher.publish(1))
    update = SharedMemorySubscriber(publisher.folder.path).open(board.manifests[-1])
    asyncio.run(EmbeddedGenerator(model).load(update))
    publisher.close()
    for name, tensor in model.policy_weights():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, source.now[name].to(torch.bfloat16).float())


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
def test_a_refused_version_is_reported_and_the_next_one_is_loaded(problem, tiny, tmp_path):
    spoil, reason = REFUSED[problem]
    model = tiny()
    good = weights_of(model)

    async def updated():
        board, folder = Board(), tmp_path / f"{PREFIX}run"
        generator = EmbeddedGenerator(model)
        task, reports = following(generator, board, SharedMemorySubscriber(folder))
        bad_one = SharedMemoryPublisher(Source(spoil(good)), folder, board.post)
        await bad_one.publish(1)
        await until(lambda: len(reports) == 1)
        held = weights_of(model), generator.stats().version
        bad_one.close()
        better = SharedMemoryPublisher(Source({n: t * 0.5 for n, t in good.items()}), folder, board.post)
        await better.publish(2)
        await until(lambda: len(reports) == 2)
        task.cancel()
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


def test_a_generator_that_was_slow_skips_to_the_newest(tiny, channel):
    _, board, publisher, subscriber = channel

    async def updated():
        generator = EmbeddedGenerator(tiny())
        for version in (1, 2, 3):
            await publisher.publish(version)
        task, reports = following(generator, board, subscriber)
        await until(lambda: generator.stats().version == 3)
        task.cancel()
        return reports

    assert asyncio.run(updated()).told == [("loaded", 3)]


def test_a_superseded_manifest_is_passed_over_in_silence(tiny, channel):
    _, board, publisher, subscriber = channel
    asked = []

    async def updated():
        generator = EmbeddedGenerator(tiny())
        for version in (1, 2, 3, 4):
            await publisher.publish(version)

        async def newest(learner_epoch, version):
            asked.append((learner_epoch, version))
            return board.manifests[0] if version < 1 else await board.newest(learner_epoch, version)

        reports = Reports()
        task = asyncio.create_task(follow(generator, newest, subscriber, "keep", reports))
        await until(lambda: len(reports) > 0)
        task.cancel()
        return reports

    assert asyncio.run(updated()).told == [("loaded", 4)]
    assert asked[:2] == [(-1, -1), (0, 1)]


def test_samples_that_an_update_aborts_come_back_resumable(tiny, channel):
    _, board, publisher, subscriber = channel

    async def updated():
        generator = EmbeddedGenerator(tiny(), max_running=4)
        task, _ = following(generator, board, subscriber, "abort")
        samples = [asyncio.create_task(generator.generate(request)) for request in LONG]
        await until(lambda: generator.generated_tokens > 20)
        await publisher.publish(1)
        found = await asyncio.gather(*samples)
        task.cancel()
        return found

    assert "abort" in {sample.finish for sample in asyncio.run(updated())}

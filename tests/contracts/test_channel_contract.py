"""What every weight channel must do, between one learner and the generators that follow it.

An implementation joins by one entry in ``CHANNELS``: how to open it for a model and some generators. The tests change the
learner's weights, publish, and look at what the generators hold.
"""

import asyncio
import copy
from contextlib import asynccontextmanager
from functools import partial

import pytest
import torch

from penstock.core.errors import WeightError
from penstock.engine.generator import EmbeddedGenerator
from penstock.weights import disk
from penstock.weights.alias import AliasChannel
from penstock.weights.channels import channel
from penstock.weights.folder import PREFIX
from penstock.weights.follow import follow
from weight_examples import Board, until

SECONDS = 20.0


class Line:
    """A learner's model, a channel, and generators that follow it."""

    def __init__(self, model, kind, folder):
        self.model, self.kind, self.folder = model, kind, folder
        self.board = Board()
        self.generators, self.tasks, self.publishers = [], [], []

    def publisher(self, learner_epoch=0, generators=1):
        """A learner's start."""
        options = {"generators": generators, "seconds": 1.0} if self.kind == "process group" else {}
        made = channel(self.kind).publisher(self.model.policy_weights, self.folder, self.board.post, learner_epoch, **options)
        self.publishers.append(made)
        return made

    async def end(self):
        """The learner's process ends."""
        self.publishers.pop().close()
        await until(lambda: not self.folder.exists())

    async def offer(self, generator, subscriber, version):
        """Publish to a generator that does not follow, and load what was announced."""
        await self.publishers[-1].publish(version)
        await until(lambda: self.board.manifests)
        await generator.load(await asyncio.to_thread(subscriber.open, self.board.manifests[-1]))

    def generator(self, joins=True):
        """One that follows from now on, or only looks."""
        generator = EmbeddedGenerator(copy.deepcopy(self.model), version=-1)
        subscriber = channel(self.kind).subscriber(self.folder, f"generator-{len(self.generators)}")
        self.generators.append(generator)
        if joins:
            work = follow(generator, self.board.newest, subscriber, "keep", lambda *_, **__: None)
            self.tasks.append(asyncio.create_task(work))
        return generator, subscriber

    async def close(self):
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for publisher in self.publishers:
            publisher.close()


class Alias:
    """The same over one set of parameters, in one process."""

    def __init__(self, model):
        self.model, self.generators = model, []

    def publisher(self, learner_epoch=0, generators=1):
        return AliasChannel(self.generators)

    def generator(self, joins=True):
        self.generators.append(EmbeddedGenerator(self.model, version=-1))
        return self.generators[-1], None

    async def offer(self, generator, subscriber, version):
        await AliasChannel([generator]).publish(version)

    async def close(self):
        return None


@asynccontextmanager
async def aliased(model, folder):
    yield Alias(model)


@asynccontextmanager
async def through(kind, model, folder, full_every=disk.FULL_EVERY):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk, "FULL_EVERY", full_every)
        line = Line(model, kind, folder)
        try:
            yield line
        finally:
            await line.close()


CHANNELS = {
    "alias": aliased,
    "shared memory": partial(through, "shared memory"),
    "process group": partial(through, "process group"),
    "disk, whole files": partial(through, "disk", full_every=1),
    "disk, differences": partial(through, "disk"),
}


@pytest.fixture(params=CHANNELS)
def opened(request, tiny, tmp_path):
    """``opened(scenario)``: the result of an async scenario over a fresh channel."""

    def run(scenario):
        async def over():
            async with CHANNELS[request.param](tiny(), tmp_path / f"{PREFIX}suite") as line:
                return await asyncio.wait_for(scenario(line), 60)

        return asyncio.run(over())

    return run


@torch.no_grad()
def train(model, by=0.5):
    """A step that changes a little of the model."""
    for parameter in model.network.parameters():
        if parameter.ndim == 1:
            parameter += by


def held(model):
    return {name: tensor.detach().clone() for name, tensor in model.policy_weights()}


def same(found, expected):
    return all(torch.equal(found[name], tensor) for name, tensor in expected.items())


async def publish(line, versions):
    publisher = line.publisher()
    for version in versions:
        train(line.model)
        await publisher.publish(version)


async def reach(generators, version):
    await until(lambda: all(generator.stats().version == version for generator in generators), SECONDS)


def test_every_generator_gets_a_version_with_its_weights(opened):
    async def scenario(line):
        (first, _), (second, _) = line.generator(), line.generator()
        publisher, seen = line.publisher(generators=2), []
        for version in range(3):
            train(line.model)
            await publisher.publish(version)
            await reach([first, second], version)
            seen.append(same(held(first.model), held(line.model)) and same(held(second.model), held(line.model)))
        return seen

    assert opened(scenario) == [True, True, True]


def test_weights_may_change_as_soon_as_publish_returns(opened):
    async def scenario(line):
        generator, _ = line.generator()
        publisher, published = line.publisher(), held(line.model)
        await publisher.publish(0)
        train(line.model)
        await reach([generator], 0)
        return same(held(generator.model), published), same(held(generator.model), held(line.model))

    assert opened(scenario) == (True, False)


def test_publishing_does_not_wait_for_generators_and_the_newest_version_wins(opened):
    async def scenario(line):
        generator, _ = line.generator()
        await publish(line, range(5))
        await reach([generator], 4)
        return same(held(generator.model), held(line.model))

    assert opened(scenario)


def test_a_late_generator_gets_the_newest_version(opened):
    async def scenario(line):
        await publish(line, range(4))
        late, _ = line.generator()
        await reach([late], 3)
        return same(held(late.model), held(line.model))

    assert opened(scenario)


def test_an_older_version_is_refused_and_changes_nothing(opened):
    async def scenario(line):
        generator, subscriber = line.generator(joins=False)
        line.publisher()
        generator.version = 7
        before = held(generator.model)
        with pytest.raises(WeightError, match="not newer than 7"):
            await line.offer(generator, subscriber, 5)
        return same(held(generator.model), before), generator.version

    assert opened(scenario) == (True, 7)


def test_a_restarted_learner_may_bring_a_version_again(opened):
    async def scenario(line):
        generator, _ = line.generator()
        for learner_epoch in (0, 1):
            train(line.model)
            await line.publisher(learner_epoch).publish(0)
            while (generator.learner_epoch, generator.version) != (learner_epoch, 0):
                await asyncio.sleep(0.001)
            await line.end()
        return same(held(generator.model), held(line.model))

    assert opened(scenario)


def test_a_damaged_image_is_refused_and_changes_nothing(opened):
    async def scenario(line):
        generator, subscriber = line.generator(joins=False)
        before = held(generator.model)
        await publish(line, [0])
        await until(lambda: line.board.manifests)
        spoilt = copy.deepcopy(line.board.manifests[-1])
        spoilt["buckets"][0]["checksum"] = "0" * 16
        with pytest.raises(WeightError, match="checksum"):
            await generator.load(await asyncio.to_thread(subscriber.open, spoilt))
        return same(held(generator.model), before), generator.version

    assert opened(scenario) == (True, -1)


def test_other_shapes_are_refused_and_change_nothing(opened):
    async def scenario(line):
        generator, subscriber = line.generator(joins=False)
        before = held(generator.model)
        parameter = next(p for p in line.model.network.parameters() if p.ndim == 1)
        parameter.data = parameter.data[:-1].clone()
        line.publisher()
        with pytest.raises(WeightError, match="shape"):
            await line.offer(generator, subscriber, 0)
        return same(held(generator.model), before), generator.version

    assert opened(scenario) == (True, -1)


def test_a_generator_that_left_holds_up_nobody(opened):
    async def scenario(line):
        (gone, _), (left, _) = line.generator(), line.generator()
        publisher = line.publisher(generators=2)
        await publisher.publish(0)
        await reach([gone, left], 0)
        for task in getattr(line, "tasks", [])[:1]:
            task.cancel()
        for version in (1, 2):
            train(line.model)
            await publisher.publish(version)
            await reach([left], version)
        return same(held(left.model), held(line.model))

    assert opened(scenario)


def test_closing_leaves_nothing_behind(opened, tmp_path):
    async def scenario(line):
        generator, _ = line.generator()
        publisher = line.publisher()
        await publisher.publish(0)
        await reach([generator], 0)

    opened(scenario)
    assert not list(tmp_path.glob(f"{PREFIX}*"))

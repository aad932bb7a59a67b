"""Channels by name: each kind carries weights from its publisher to its subscriber."""

import asyncio

import pytest
from weight_examples import Board, Source, assert_equal_tensors, following, until

from penstock.core.errors import SpecError
from penstock.engine.generator import EmbeddedGenerator
from penstock.weights.channels import KINDS, channel
from penstock.weights.folder import PREFIX


@pytest.mark.parametrize("kind", KINDS)
def test_a_generator_follows_a_channel_of_any_kind(kind, tiny, tmp_path):
    folder = tmp_path / f"{PREFIX}run"
    model = tiny()
    source = Source({name: tensor.detach() * 0.5 for name, tensor in model.policy_weights()})

    async def updated():
        board = Board()
        publisher = channel(kind).publisher(source, folder, board.post, 0)
        generator = EmbeddedGenerator(model, version=-1)
        async with following(generator, board, channel(kind).subscriber(folder, "generator-0")) as reports:
            for version in (0, 1):
                await publisher.publish(version)
                await until(lambda version=version: generator.stats().version == version)
                source.now = {name: tensor * 0.5 for name, tensor in source.now.items()}
        publisher.close()
        return reports

    assert asyncio.run(updated()).told == [("loaded", 0), ("loaded", 1)]
    found = {name: tensor.detach() for name, tensor in model.policy_weights()}
    assert_equal_tensors(found, {name: tensor * 2 for name, tensor in source.now.items()})
    assert not folder.exists()


def test_an_unknown_channel_names_those_there_are(tmp_path):
    with pytest.raises(SpecError, match='no weight channel "pigeon"; use one of: shared memory, disk, process group'):
        channel("pigeon").subscriber(tmp_path, "generator-0")


def test_an_unknown_type_of_transport_names_those_there_are(tmp_path):
    with pytest.raises(SpecError, match='weights cannot travel as "float7"'):
        channel("disk").publisher(Source(), tmp_path / "run", Board().post, 0, dtype="float7")

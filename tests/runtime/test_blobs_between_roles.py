"""Blobs cross between roles and hub once, are checked where they arrive, and are there again after a resume."""

from __future__ import annotations

import asyncio
from collections import Counter

import numpy as np
import pytest
from hub_scenes import Peers, scene

from penstock.core.blobs import Blob
from penstock.core.errors import DataError
from penstock.core.types import Group, Prompt, PromptKey, Sample, SampleKey
from penstock.data.blobs import Blobs
from penstock.runtime.blobs import BlobCaller, BlobVerbs
from penstock.runtime.remote import HubClient
from penstock.stream.rules import Rules
from penstock.stream.verbs import handlers, remote

PICTURE = b"a red square " * 1000
BLOB = Blob.of(PICTURE, "image/png")


class Counted:
    """A client that counts its calls."""

    def __init__(self, client) -> None:
        self.client, self.calls = client, Counter()

    async def call(self, verb, /, **values):
        self.calls[verb] += 1
        return await self.client.call(verb, **values)


class PeersWithBlobs(Peers):
    """A hub with a folder of its own, and roles that have theirs; what each asked is counted."""

    def __init__(self, folder) -> None:
        super().__init__(Rules(batch=4))
        self.folder, self.hub_blobs, self.calls, self.blobs = folder, Blobs(folder / "hub"), {}, {}
        verbs = BlobVerbs(self.hub_blobs, lambda: self.hub.needed_blobs())
        self.verbs = handlers(BlobVerbs, lambda peer: verbs)

    def client_of(self, name):
        counted, self.blobs[name] = Counted(self.clients[-1]), Blobs(self.folder / name)
        self.calls[name] = counted.calls
        return HubClient(self.clients[-1], BlobCaller(counted, self.blobs[name]))

    async def generator(self, name="generator-0", picture=PICTURE):
        """A generator that has a picture; none: that has nothing."""
        made = await self.connect(name)
        if picture:
            assert self.blobs[name].add(picture, "image/png") == BLOB
        return made


@pytest.fixture
def peers(tmp_path):
    return PeersWithBlobs(tmp_path)


def group(ordinal):
    def sample(place):
        key = SampleKey(PromptKey("pictures", 0, ordinal), place)
        numbers = (np.zeros(2, np.float32), np.array([-1, 0], np.int32))
        made = Sample(key, {"tokens_T": np.arange(2, dtype=np.int32)}, np.array([False, True]), *numbers, "stop", blobs=(BLOB,))
        return made.scored(1.0)

    return Group(Prompt(PromptKey("pictures", 0, ordinal), "what is it?", blobs=(BLOB,)), tuple(map(sample, range(16))))


async def put_all(generator, *groups):
    tickets = await generator.worker.admit(most=len(groups))
    await asyncio.gather(*(generator.worker.put(ticket, made) for ticket, made in zip(tickets, groups, strict=True)))


@scene
async def test_an_image_of_64_samples_crosses_once_to_the_hub_and_once_to_the_learner(peers):
    learner = await peers.learner()
    await put_all(await peers.generator(), *map(group, range(4)))
    lease = await learner.lease(0)
    assert [one.blobs for one in lease.groups] == [(BLOB,)] * 4
    assert (peers.calls["generator-0"]["keep_blob"], peers.calls["learner"]["read_blob"]) == (1, 1)
    assert peers.blobs["learner"].read(BLOB) == PICTURE
    assert peers.hub.needed_blobs() == {BLOB.hash}


@scene
async def test_a_second_generator_sends_nothing_that_the_hub_has(peers):
    await peers.learner()
    for ordinal, name in enumerate(("generator-0", "generator-1")):
        await put_all(await peers.generator(name), group(ordinal))
    assert (peers.calls["generator-1"]["lacking_blobs"], peers.calls["generator-1"]["keep_blob"]) == (1, 0)


@scene
async def test_bytes_that_are_not_what_a_blob_names_are_refused_by_the_hub(peers):
    await peers.learner()
    await peers.generator(picture=b"")
    with pytest.raises(DataError, match="gave other bytes for blob"):
        await remote(BlobVerbs, peers.clients[-1]).keep_blob(BLOB, np.zeros(len(PICTURE), np.uint8))
    assert BLOB not in peers.hub_blobs


@scene
async def test_a_group_whose_blob_is_nowhere_is_refused_before_it_travels(peers):
    await peers.learner()
    generator = await peers.generator(picture=b"")
    with pytest.raises(DataError, match="is not in"):
        await put_all(generator, group(0))
    assert peers.calls["generator-0"]["put"] == 0


@scene
async def test_a_run_that_is_resumed_has_its_blobs(tmp_path):
    async with PeersWithBlobs(tmp_path) as first:
        await first.learner()
        await put_all(await first.generator(), group(0))
    async with PeersWithBlobs(tmp_path) as resumed:
        await resumed.learner()
        await put_all(await resumed.generator(picture=b""), group(0))
        assert resumed.calls["generator-0"]["keep_blob"] == 0
        assert resumed.hub_blobs.read(BLOB) == PICTURE

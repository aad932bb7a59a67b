"""Blobs cross between roles and hub once, are checked where they arrive, and are there again after a resume."""

from __future__ import annotations

import asyncio
from collections import Counter

import numpy as np
import pytest

from penstock.core.blobs import Blob
from penstock.core.errors import DataError
from penstock.core.types import Group, Prompt, PromptKey, Sample, SampleKey
from penstock.data.blobs import Blobs
from penstock.net.rpc import connect
from penstock.runtime.blobs import BlobCaller, BlobVerbs
from penstock.runtime.hub import Hub
from penstock.runtime.remote import HubClient, RemoteLearner
from penstock.stream.rules import Rules
from penstock.stream.verbs import handlers, remote

TOKEN, SECONDS, PICTURE = "0" * 64, 20.0, b"a red square " * 1000


class Counted:
    """A client that counts its calls."""

    def __init__(self, client) -> None:
        self.client, self.calls = client, Counter()

    async def call(self, verb, /, **values):
        self.calls[verb] += 1
        return await self.client.call(verb, **values)


class Scene:
    """A hub with a folder of its own, and roles that have theirs."""

    def __init__(self, folder, rules) -> None:
        self.folder, self.rules = folder, rules
        self.hub_blobs = Blobs(folder / "hub")
        verbs = BlobVerbs(self.hub_blobs, lambda: self.hub.needed_blobs())
        self.hub = Hub(lambda stage: rules, TOKEN, self.nothing, self.nothing, SECONDS, handlers(BlobVerbs, lambda peer: verbs))

    async def nothing(self, stage: str) -> None:
        return None

    async def __aenter__(self):
        self.address = await self.hub.start()
        self.clients = []
        return self

    async def __aexit__(self, *error):
        for client in self.clients:
            await client.close()
        await self.hub.stop()

    async def role(self, name, role, stage=""):
        client = await connect(self.address, TOKEN, name=name, role=role)
        self.clients.append(client)
        counted = Counted(client)
        blobs = Blobs(self.folder / name)
        made = HubClient(client, BlobCaller(counted, blobs))
        if stage:
            await made.role.join(stage)
        return made, blobs, counted.calls

    async def learner(self):
        hub, blobs, calls = await self.role("learner", "learner")
        learner = RemoteLearner(self.rules, lambda what, **fields: None)
        await learner.begin(hub, "stage")
        return learner, blobs, calls


def group(ordinal, blob, samples=16):
    def sample(place):
        key = SampleKey(PromptKey("pictures", 0, ordinal), place)
        numbers = (np.zeros(2, np.float32), np.array([-1, 0], np.int32))
        made = Sample(key, {"tokens_T": np.arange(2, dtype=np.int32)}, np.array([False, True]), *numbers, "stop", blobs=(blob,))
        return made.scored(1.0)

    return Group(Prompt(PromptKey("pictures", 0, ordinal), "what is it?", blobs=(blob,)), tuple(map(sample, range(samples))))


def run(scene, tmp_path, batch=4):
    async def whole():
        async with asyncio.timeout(SECONDS), Scene(tmp_path, Rules(batch=batch)) as made:
            return await scene(made)

    return asyncio.run(whole())


async def put_all(worker, groups):
    tickets = await worker.admit(most=len(groups))
    await asyncio.gather(*(worker.put(ticket, made) for ticket, made in zip(tickets, groups, strict=True)))


def test_an_image_of_64_samples_crosses_once_to_the_hub_and_once_to_the_learner(tmp_path):
    async def scene(made):
        learner, seen, asked = await made.learner()
        generator, own, sent = await made.role("generator-0", "generator", "stage")
        blob = own.add(PICTURE, "image/png")
        await put_all(generator.worker, [group(ordinal, blob) for ordinal in range(4)])
        lease = await learner.lease(0)
        assert [one.blobs for one in lease.groups] == [(blob,)] * 4
        assert (sent["keep_blob"], asked["read_blob"], seen.read(blob)) == (1, 1, PICTURE)
        assert made.hub.needed_blobs() == {blob.hash}

    run(scene, tmp_path)


def test_a_second_generator_sends_nothing_that_the_hub_has(tmp_path):
    async def scene(made):
        await made.learner()
        for name in ("generator-0", "generator-1"):
            generator, own, sent = await made.role(name, "generator", "stage")
            await put_all(generator.worker, [group(int(name[-1]), own.add(PICTURE, "image/png"))])
        assert (sent["lacking_blobs"], sent["keep_blob"]) == (1, 0)

    run(scene, tmp_path)


def test_bytes_that_are_not_what_a_blob_names_are_refused_by_the_hub(tmp_path):
    async def scene(made):
        await made.learner()
        generator, _, _ = await made.role("generator-0", "generator", "stage")
        blob = Blob.of(PICTURE, "image/png")
        with pytest.raises(DataError, match="gave other bytes for blob"):
            await remote(BlobVerbs, generator.client).keep_blob(blob, np.zeros(len(PICTURE), np.uint8))
        assert blob not in made.hub_blobs

    run(scene, tmp_path)


def test_a_group_whose_blob_is_nowhere_is_refused_before_it_travels(tmp_path):
    async def scene(made):
        await made.learner()
        generator, _, sent = await made.role("generator-0", "generator", "stage")
        with pytest.raises(DataError, match="is not in"):
            await put_all(generator.worker, [group(0, Blob.of(PICTURE, "image/png"))])
        assert sent["put"] == 0

    run(scene, tmp_path)


def test_a_run_that_is_resumed_has_its_blobs(tmp_path):
    async def first(made):
        await made.learner()
        generator, own, _ = await made.role("generator-0", "generator", "stage")
        await put_all(generator.worker, [group(0, own.add(PICTURE, "image/png"))])

    async def resumed(made):
        await made.learner()
        generator, _, sent = await made.role("generator-0", "generator", "stage")
        await put_all(generator.worker, [group(0, Blob.of(PICTURE, "image/png"))])
        assert sent["keep_blob"] == 0
        assert made.hub_blobs.read(Blob.of(PICTURE, "image/png")) == PICTURE

    run(first, tmp_path)
    run(resumed, tmp_path)

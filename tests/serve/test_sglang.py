"""SGLang's adapter against a server that answers as its documentation says: what it asks, and how it reads the answers."""

import asyncio
import copy
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest

import tiny_models
from penstock.core.blobs import Blob
from penstock.core.errors import GenerationError, WeightError
from penstock.core.types import WeightUpdate
from penstock.serve.http import pick
from penstock.serve.in_flight import InFlightRequest
from penstock.serve.sglang import SGLangGenerator
from penstock.serve.sglang_weights import FromGroup
from sglang_answers import Answers, sglang_over
from tiny_models import request


@pytest.fixture
def sglang(tiny, tmp_path):
    """``async with sglang() as (generator, answers)``."""

    @asynccontextmanager
    async def opened():
        model = tiny()
        answers = Answers(copy.deepcopy(model))
        async with sglang_over(answers, model, tmp_path) as generator:
            yield generator, answers

    return opened


def other_weights(tiny, seed=5):
    model = tiny()
    tiny_models.randomise(model.network, seed=seed)
    return list(model.policy_weights())


async def updated_in_flight(sglang, tiny, kv):
    """The sample that an update came in the middle of, and what the server was asked."""
    async with sglang() as (generator, answers):
        task = asyncio.create_task(generator.generate(request(np.array([20]), max_new_tokens=60)))
        while generator.stats().generated_tokens < 5:
            assert not task.done()
            await asyncio.sleep(0)
        await generator.load(WeightUpdate(1, other_weights(tiny), kv))
        return await task, answers.asked


async def test_an_update_pauses_in_place_and_keeps_the_cache(sglang, tiny):
    _, asked = await updated_in_flight(sglang, tiny, "keep")
    paths = [path for path, _ in asked]
    assert paths == ["/pause_generation", "/update_weights_from_disk", "/continue_generation"]
    assert asked[0][1] == {"mode": "in_place"}
    assert (asked[1][1]["flush_cache"], asked[1][1]["weight_version"]) == (False, "0.1")


async def test_recomputing_ends_requests_flushes_and_begins_them_again(sglang, tiny):
    sample, asked = await updated_in_flight(sglang, tiny, "recompute")
    assert asked[0] == ("/pause_generation", {"mode": "abort"})
    assert asked[1][1]["flush_cache"] is True
    assert sample.finish in ("stop", "length")
    assert set(sample.version_T[sample.action_T].tolist()) == {0, 1}


async def test_aborting_with_an_update_gives_what_was_drawn(sglang, tiny):
    sample, _ = await updated_in_flight(sglang, tiny, "abort")
    assert sample.finish == "abort"
    assert set(sample.version_T[sample.action_T].tolist()) == {0}


async def test_a_folder_that_the_server_refuses_leaves_the_last_weights(sglang, tiny):
    tokens_T = np.arange(20, 30, dtype=np.int32)
    async with sglang() as (generator, answers):
        await generator.load(WeightUpdate(1, other_weights(tiny)))
        before = await generator.score(tokens_T)
        answers.refuse_folders = 1
        with pytest.raises(WeightError, match="refused by SGLang: Failed to load weights"):
            await generator.load(WeightUpdate(2, other_weights(tiny, 6)))
        assert before.tolist() == (await generator.score(tokens_T)).tolist()
    labels = [body["weight_version"] for path, body in answers.asked if path == "/update_weights_from_disk"]
    assert labels == ["0.1", "0.2", "0.1"]
    assert (generator.version, answers.asked[-1][0]) == (1, "/continue_generation")


async def test_a_server_that_takes_not_even_the_last_weights_is_given_up(sglang, tiny):
    async with sglang() as (generator, answers):
        await generator.load(WeightUpdate(1, other_weights(tiny)))
        answers.refuse_folders = 2
        with pytest.raises(GenerationError, match="failed in the middle"):
            await generator.load(WeightUpdate(2, other_weights(tiny, 6)))
        with pytest.raises(GenerationError, match="failed in the middle"):
            await generator.generate(request(np.array([20])))
        assert answers.asked[-1][0] == "/continue_generation"


async def test_folders_of_old_versions_are_removed(sglang, tiny, tmp_path):
    async with sglang() as (generator, _):
        for version in (1, 2, 3):
            await generator.load(WeightUpdate(version, other_weights(tiny, version)))
    assert [path.name for path in tmp_path.iterdir()] == ["0.3"]


async def test_a_server_that_tells_no_spans_is_read_event_by_event(tiny):
    logps = [[-1.0, 20, None], [-2.0, 21, None], [-3.0, 22, None]]
    generator = SGLangGenerator(None, tiny().text, {}, None, context=128, version=4)
    generator.meter.enter(0.0)
    flight = InFlightRequest(request=request(np.array([20])), limit=12)
    for count, label in enumerate(({"weight_version": "0.5"}, {"weight_version": "0.6"}, {}), 1):
        generator._take(flight, 0, {"output_token_logprobs": logps[:count], **label})
    assert (flight.tokens, flight.logps, flight.versions) == ([20, 21, 22], [-1.0, -2.0, -3.0], [5, 6, 4])


class Heard:
    """Notes what is posted, and says yes."""

    def __init__(self):
        self.posts = []

    async def get(self, path):
        assert path == "/server_info"
        return {"tp_size": 2}

    async def post(self, path, body):
        self.posts.append((path, body))
        return {"success": True, "message": ""}


class Trainer:
    """Notes what is broadcast, to nobody."""

    address, port, name, backend = "10.0.0.1", 5000, "penstock-1", "nccl"

    def __init__(self):
        self.joined, self.sent = [], []

    def join(self, world):
        self.joined.append(world)

    def broadcast(self, pairs):
        self.sent.append(pairs)

    def close(self):
        """Nothing is open."""


async def test_a_process_group_is_joined_once_and_carries_every_tensor_in_order(tiny):
    client, trainer = Heard(), Trainer()
    delivery = FromGroup(lambda: trainer)
    tensors = dict(other_weights(tiny))
    await delivery.send(client, tensors, "0.1", False)
    await delivery.send(client, tensors, "0.2", True)
    assert [path for path, _ in client.posts] == ["/init_weights_update_group"] + ["/update_weights_from_distributed"] * 2
    assert (client.posts[0][1]["rank_offset"], client.posts[0][1]["world_size"]) == (1, 3)
    assert client.posts[1][1]["names"] == list(tensors) == [name for name, _ in trainer.sent[0]]
    assert client.posts[2][1]["flush_cache"] is True
    assert trainer.joined == [3]


def test_each_generator_has_a_server_to_itself():
    assert [pick("http://a, http://b", f"generator-{i}") for i in range(2)] == ["http://a", "http://b"]
    with pytest.raises(Exception, match="names 2 servers, and generator-2 needs one to itself"):
        pick("http://a,http://b", "generator-2")


async def test_a_prompt_with_media_is_refused_and_not_sent_without_them(tiny):
    blob = Blob.of(b"a picture", "image/png")
    generator = SGLangGenerator(None, tiny().text, {}, None, context=128, version=4)
    with pytest.raises(GenerationError, match="the prompt has media, which SGLang is not sent; use Embedded"):
        await generator.generate(replace(request(np.array([20])), blobs=(blob,)))

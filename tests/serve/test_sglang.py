"""SGLang's adapter against a server that answers as its documentation says: what it asks, and how it reads the answers."""

import asyncio
import copy
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
def over(tiny, tmp_path):
    """``over(scenario)``: the result of an async scenario over (generator, answers)."""

    def run(scenario):
        async def opened():
            model = tiny()
            answers = Answers(copy.deepcopy(model))
            async with sglang_over(answers, model, tmp_path) as generator:
                return await asyncio.wait_for(scenario(generator, answers), 60)

        return asyncio.run(opened())

    return run


def other_weights(tiny, seed=5):
    model = tiny()
    tiny_models.randomise(model.network, seed=seed)
    return list(model.policy_weights())


async def begun(generator, tokens=5):
    task = asyncio.create_task(generator.generate(request(np.array([20]), max_new_tokens=60)))
    while generator.stats().generated_tokens < tokens:
        assert not task.done()
        await asyncio.sleep(0)
    return task


def test_an_update_pauses_in_place_and_keeps_the_cache(over, tiny):
    async def scenario(generator, answers):
        task = await begun(generator)
        await generator.load(WeightUpdate(1, other_weights(tiny), "keep"))
        await task
        return answers.asked

    asked = over(scenario)
    paths = [path for path, _ in asked]
    assert paths == ["/pause_generation", "/update_weights_from_disk", "/continue_generation"]
    assert asked[0][1] == {"mode": "in_place"}
    assert (asked[1][1]["flush_cache"], asked[1][1]["weight_version"]) == (False, "0.1")


def test_recomputing_ends_requests_flushes_and_begins_them_again(over, tiny):
    async def scenario(generator, answers):
        task = await begun(generator)
        await generator.load(WeightUpdate(1, other_weights(tiny), "recompute"))
        return await task, answers.asked

    sample, asked = over(scenario)
    assert asked[0] == ("/pause_generation", {"mode": "abort"})
    assert asked[1][1]["flush_cache"] is True
    assert sample.finish in ("stop", "length")
    assert set(sample.version_T[sample.action_T].tolist()) == {0, 1}


def test_aborting_with_an_update_gives_what_was_drawn(over, tiny):
    async def scenario(generator, answers):
        task = await begun(generator)
        await generator.load(WeightUpdate(1, other_weights(tiny), "abort"))
        return await task

    sample = over(scenario)
    assert sample.finish == "abort"
    assert set(sample.version_T[sample.action_T].tolist()) == {0}


def test_a_folder_that_the_server_refuses_leaves_the_last_weights(over, tiny):
    tokens_T = np.arange(20, 30, dtype=np.int32)

    async def scenario(generator, answers):
        await generator.load(WeightUpdate(1, other_weights(tiny)))
        before = await generator.score(tokens_T)
        answers.refuse_folders = 1
        with pytest.raises(WeightError, match="refused by SGLang: Failed to load weights"):
            await generator.load(WeightUpdate(2, other_weights(tiny, 6)))
        after = await generator.score(tokens_T)
        labels = [body["weight_version"] for path, body in answers.asked if path == "/update_weights_from_disk"]
        return before.tolist() == after.tolist(), labels, generator.version, answers.asked[-1][0]

    same, labels, version, last = over(scenario)
    assert same
    assert labels == ["0.1", "0.2", "0.1"]
    assert (version, last) == (1, "/continue_generation")


def test_a_server_that_takes_not_even_the_last_weights_is_given_up(over, tiny):
    async def scenario(generator, answers):
        await generator.load(WeightUpdate(1, other_weights(tiny)))
        answers.refuse_folders = 2
        with pytest.raises(GenerationError, match="failed in the middle"):
            await generator.load(WeightUpdate(2, other_weights(tiny, 6)))
        with pytest.raises(GenerationError, match="failed in the middle"):
            await generator.generate(request(np.array([20])))
        return answers.asked[-1][0]

    assert over(scenario) == "/continue_generation"


def test_folders_of_old_versions_are_removed(over, tiny, tmp_path):
    async def scenario(generator, answers):
        for version in (1, 2, 3):
            await generator.load(WeightUpdate(version, other_weights(tiny, version)))

    over(scenario)
    assert [path.name for path in tmp_path.iterdir()] == ["0.3"]


def test_a_server_that_tells_no_spans_is_read_event_by_event(tiny):
    logps = [[-1.0, 20, None], [-2.0, 21, None], [-3.0, 22, None]]

    async def read():
        generator = SGLangGenerator(None, tiny().text, {}, None, context=128, version=4)
        generator.meter.enter(0.0)
        flight = InFlightRequest(request=request(np.array([20])), limit=12)
        for count, label in enumerate(({"weight_version": "0.5"}, {"weight_version": "0.6"}, {}), 1):
            generator._take(flight, 0, {"output_token_logprobs": logps[:count], **label})
        return flight

    flight = asyncio.run(read())
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


def test_a_process_group_is_joined_once_and_carries_every_tensor_in_order(tiny):
    client, trainer = Heard(), Trainer()
    delivery = FromGroup(lambda: trainer)
    tensors = dict(other_weights(tiny))

    async def scenario():
        await delivery.send(client, tensors, "0.1", False)
        await delivery.send(client, tensors, "0.2", True)

    asyncio.run(scenario())
    assert [path for path, _ in client.posts] == ["/init_weights_update_group"] + ["/update_weights_from_distributed"] * 2
    assert (client.posts[0][1]["rank_offset"], client.posts[0][1]["world_size"]) == (1, 3)
    assert client.posts[1][1]["names"] == list(tensors) == [name for name, _ in trainer.sent[0]]
    assert client.posts[2][1]["flush_cache"] is True
    assert trainer.joined == [3]


def test_each_generator_has_a_server_to_itself():
    assert [pick("http://a, http://b", f"generator-{i}") for i in range(2)] == ["http://a", "http://b"]
    with pytest.raises(Exception, match="names 2 servers, and generator-2 needs one to itself"):
        pick("http://a,http://b", "generator-2")


def test_a_prompt_with_media_is_refused_and_not_sent_without_them(tiny):
    blob = Blob.of(b"a picture", "image/png")

    async def asked():
        generator = SGLangGenerator(None, tiny().text, {}, None, context=128, version=4)
        await generator.generate(replace(request(np.array([20])), blobs=(blob,)))

    with pytest.raises(GenerationError, match="the prompt has media, which SGLang is not sent; use Embedded"):
        asyncio.run(asked())

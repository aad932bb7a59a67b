"""Clients that leave, a server that is full, pauses, and weights that come over HTTP."""

import asyncio
import json
from contextlib import asynccontextmanager

import httpx
import pytest
from raw_http import post_of

import tiny_models
from penstock.core.types import WeightUpdate
from penstock.weights.channels import channel
from penstock.weights.folder import PREFIX
from penstock.weights.snapshot import pack, sums_of, table_checksum
from prometheus_text import read

LONG = {"prompt": "3 + 4 =", "max_tokens": 100, "seed": 5}
SHORT = LONG | {"max_tokens": 3}


async def until(ready):
    async def turns():
        while not ready():
            await asyncio.sleep(0)

    await asyncio.wait_for(turns(), 30)


def other_weights(tiny):
    model = tiny()
    tiny_models.randomise(model.network, seed=5)
    return model


def weights_of(tiny):
    return [(name, tensor.detach()) for name, tensor in other_weights(tiny).policy_weights()]


def parcel(update, change=None, **head):
    """An upload, whose manifest may be changed."""
    manifest, image = pack(update)
    if change is not None:
        change(manifest)
    return json.dumps({"manifest": manifest, **head}).encode() + b"\n" + bytes(image)


async def drawing(service, tokens=3):
    """Until more tokens were drawn."""
    drawn = service.engine.generated_tokens
    await until(lambda: service.engine.generated_tokens > drawn + tokens)


async def in_flight(client, service, asked=LONG):
    """A completion that has begun, with drawing paused."""
    task = asyncio.create_task(client.post("/v1/completions", json=asked))
    await drawing(service)
    service.engine.pause()
    return task


@asynccontextmanager
async def unchanged(serve):
    """A client whose server has the same weights afterwards."""
    async with serve() as (client, _):
        before = (await client.get("/weights/sums")).json()
        yield client
        assert before == (await client.get("/weights/sums")).json()


async def test_a_client_that_leaves_frees_its_places(serve):
    async with serve() as (client, service):
        task = await in_flight(client, service)
        assert service.taken == 1
        task.cancel()
        await until(lambda: not service.taken)
        service.engine.resume()
        assert (await client.post("/v1/completions", json=SHORT)).status_code == 200
        assert (service.engine.stats().running, service.keys) == (0, [])


async def test_a_client_that_leaves_a_stream_frees_its_places(serve):
    async with serve() as (client, service):
        async with client.stream("POST", "/v1/completions", json=LONG | {"stream": True, "n": 2}) as answer:
            async for _ in answer.aiter_lines():
                break
            service.engine.pause()
            assert service.taken == 2
        await until(lambda: not service.taken)
        service.engine.resume()
        await client.post("/v1/completions", json=SHORT)
        assert service.engine.stats().running == 0


async def test_a_full_server_says_when_to_come_again(serve):
    async with serve(room=2) as (client, service):
        task = await in_flight(client, service)
        full = await client.post("/v1/completions", json=SHORT | {"n": 2})
        assert (full.status_code, full.headers["retry-after"], full.json()["error"]["code"]) == (429, "1", "queue_full")
        room = asyncio.create_task(client.post("/v1/completions", json=SHORT))
        await until(lambda: service.taken == 2)
        service.engine.resume()
        assert ((await room).status_code, (await task).status_code) == (200, 200)


async def test_a_request_that_takes_too_long_is_given_up(serve):
    async with serve(request_seconds=0.1) as (client, service):
        service.engine.pause()
        assert (await client.post("/v1/completions", json=SHORT)).status_code == 504
        assert '"code":"timeout"' in (await client.post("/v1/completions", json=SHORT | {"stream": True})).text
        await until(lambda: not service.taken)


async def test_a_reader_that_does_not_read_is_let_go(serve):
    async def floods(request, on_token=None):
        for _ in range(10_000_000):
            on_token(20, -1.0, 0)
            await asyncio.sleep(0)

    async with serve(send_seconds=0.1) as (client, service):
        service.engine.generate = floods
        body = json.dumps(LONG | {"stream": True, "logprobs": 0, "return_token_ids": True, "max_tokens": 120}).encode()
        _, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port, limit=1024)
        writer.write(post_of(len(body)) + body)
        await until(lambda: service.taken)
        await until(lambda: not service.taken)
        assert not service.taken
        writer.close()


async def test_pausing_keeps_requests_and_resuming_goes_on(serve):
    async with serve() as (client, service):
        free = (await client.post("/v1/completions", json=LONG)).json()["choices"]
        task = asyncio.create_task(client.post("/v1/completions", json=LONG))
        await drawing(service)
        assert (await client.post("/pause", json={})).status_code == 200
        drawn = service.engine.generated_tokens
        assert (await client.get("/health")).json()["status"] == "paused"
        await client.get("/health")
        assert service.engine.generated_tokens == drawn
        await client.post("/resume", json={})
        assert (await task).json()["choices"] == free


async def test_pausing_can_end_what_is_in_flight(serve):
    async with serve() as (client, service):
        task = asyncio.create_task(client.post("/v1/completions", json=LONG))
        await drawing(service)
        await client.post("/pause", json={"mode": "abort"})
        (choice,) = (await task).json()["choices"]
    assert choice["finish_reason"] == "abort"
    assert 0 < len(choice["weight_versions"]) < 100


async def test_an_uploaded_image_lands_between_two_tokens(serve, tiny):
    async with serve() as (client, service):
        task = await in_flight(client, service)
        body = parcel(WeightUpdate(3, weights_of(tiny), learner_epoch=2), kv="recompute")
        assert (await client.put("/weights", content=body)).json() == {"version": 3, "learner_epoch": 2}
        service.engine.resume()
        versions = (await task).json()["choices"][0]["weight_versions"]
        assert set(versions) == {0, 3}
        assert versions == sorted(versions)
        assert (await client.get("/weights/sums")).json()["sums"] == sums_of(lambda: weights_of(tiny))
        version = (await client.get("/version")).json()
        assert (version["version"], version["learner_epoch"]) == (3, 2)


@pytest.mark.parametrize("problem", ["cut", "flipped", "old", "no line", "long", "empty"])
async def test_a_refused_upload_changes_nothing(serve, tiny, problem):
    body = parcel(WeightUpdate(0 if problem == "old" else 1, weights_of(tiny)))
    body = {
        "cut": body[:-64],
        "flipped": body[:-200] + bytes([body[-200] ^ 1]) + body[-199:],
        "no line": body.replace(b"\n", b" ", 1),
        "long": body + bytes(64),
        "empty": b"",
    }.get(problem, body)
    async with unchanged(serve) as client:
        assert (await client.put("/weights", content=body)).status_code in (400, 409)


WRONG = {
    "a missing tensor": lambda first, rest: rest,
    "one that comes twice": lambda first, rest: [first, *rest, first],
    "another shape": lambda first, rest: [(first[0], first[1].T), *rest],
    "whole numbers": lambda first, rest: [(first[0], first[1].long()), *rest],
    "infinite in the model's type": lambda first, rest: [(first[0], first[1].double() * 1e300), *rest],
}


@pytest.mark.parametrize("problem", WRONG)
async def test_an_upload_of_other_tensors_changes_nothing(serve, tiny, problem):
    first, *rest = weights_of(tiny)
    async with unchanged(serve) as client:
        refused = await client.put("/weights", content=parcel(WeightUpdate(1, WRONG[problem](first, rest))))
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "weights_refused")


@pytest.mark.parametrize(("field", "value"), [("dtype", ["float32"]), ("offset", "0"), ("shape", [-300, -32]), ("name", 5)])
async def test_a_manifest_of_other_types_is_refused(serve, tiny, field, value):
    def change(manifest):
        manifest["tensors"][0][field] = value

    async with unchanged(serve) as client:
        refused = await client.put("/weights", content=parcel(WeightUpdate(1, weights_of(tiny)), change))
    assert refused.status_code == 409
    assert "the weight manifest is malformed" in refused.text


async def test_tensors_that_lie_in_each_others_place_are_refused_and_change_nothing(serve, tiny):
    """Two of the same shape, the second at the place of the first: one of them would be lost, with every checksum right."""

    def change(manifest):
        by_shape = {}
        first, second = next(
            (by_shape[tuple(slot["shape"])], slot)
            for slot in manifest["tensors"]
            if by_shape.setdefault(tuple(slot["shape"]), slot) is not slot
        )
        second["offset"] = first["offset"]
        manifest["table"] = table_checksum(manifest)

    async with unchanged(serve) as client:
        refused = await client.put("/weights", content=parcel(WeightUpdate(1, weights_of(tiny)), change))
    assert refused.status_code == 409
    assert "lies in the place of" in refused.text


@pytest.mark.parametrize("kind", ["shared memory", "disk", "process group"])
async def test_weights_come_by_manifest_through_a_channel(serve, tiny, tmp_path, kind):
    folder, other = tmp_path / f"{PREFIX}run", other_weights(tiny)
    async with serve() as (client, service):
        manifests = asyncio.Queue(maxsize=1)
        publisher = channel(kind).publisher(other.policy_weights, folder, manifests.put, 0)
        early = await client.post("/weights", json={"manifest": {"kind": kind}})
        assert early.status_code == 409
        assert "POST /weights/group" in early.text
        group = await client.post("/weights/group", json={"channel": kind, "folder": str(folder), "name": "generator-0"})
        assert group.status_code == 200
        task = await in_flight(client, service)
        await publisher.publish(7)
        loaded = await client.post("/weights", json={"manifest": await manifests.get()})
        assert loaded.json() == {"version": 7, "learner_epoch": 0}
        service.engine.resume()
        assert set((await task).json()["choices"][0]["weight_versions"]) == {0, 7}
        publisher.close()
        assert service.metrics.updates == {"refused": 1, "loaded": 1}


async def test_metrics_count_what_was_done(serve):
    async with serve() as (client, _):
        usage = (await client.post("/v1/completions", json=SHORT)).json()["usage"]
        await client.post("/v1/completions", json={"prompt": "x", "nonsense": 1})
        await client.get("/health")
        found = read((await client.get("/metrics")).text)
    assert found["penstock_generated_tokens_total"] == usage["completion_tokens"]
    assert found['penstock_requests_total{route="/v1/completions",status="200"}'] == 1
    assert found['penstock_requests_total{route="/v1/completions",status="400"}'] == 1
    assert found["penstock_first_token_seconds_count"] == 1
    assert found['penstock_answer_seconds_bucket{le="+Inf"}'] == found["penstock_answer_seconds_count"] == 2


NATIVE = {"key": ["a", 0, 0, 0], "tokens": [5], "sampling": {"max_new_tokens": 3}}


async def test_a_malformed_native_request_is_refused_and_harms_nobody(serve):
    changes = [
        {"sampling": {"surprise": 1}},
        {"sampling": {"temperature": "hot"}},
        {"key": ["a"]},
        {"tokens": [10**9]},
        {"tokens": "5"},
        {"resume": {"tokens": [5]}},
        {"more": 1},
    ]
    async with serve() as (client, _):
        for change in changes:
            assert (await client.post("/generate", json=NATIVE | change)).status_code == 400, change
        huge = await client.post("/generate", json=NATIVE | {"sampling": {"max_new_tokens": 3, "top_k": 1 << 70}})
    assert "sample" in json.loads(huge.text.splitlines()[-1])


@pytest.mark.parametrize(
    "wrong", [{"key": ["\ud800", 0, 0, 0]}, {"sampling": {"temperature": 10**400}}, {"sampling": {"stop": ["\ud800"]}}]
)
async def test_what_could_stop_the_engine_is_refused_and_harms_nobody(serve, wrong):
    async with serve() as (client, service):
        task = await in_flight(client, service)
        json_headers = {"Content-Type": "application/json"}
        refused = await client.post("/generate", content=json.dumps(NATIVE | wrong), headers=json_headers)
        service.engine.resume()
        assert (refused.status_code, (await task).status_code) == (400, 200)


async def test_a_server_that_ends_lets_answers_under_way_end(tiny):
    from penstock.serve.guard import Access
    from penstock.serve.server import server_of
    from serving import BEARER, running, service_of

    service = service_of(tiny())
    server = server_of(service, Access())
    async with running(server) as url, httpx.AsyncClient(base_url=url, headers=BEARER) as client:
        task = await in_flight(client, service)
        server.should_exit = True
        service.engine.resume()
        assert (await task).status_code == 200

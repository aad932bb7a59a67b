"""Clients that leave, a server that is full, pauses, and weights that come over HTTP."""

import asyncio
import json

import httpx
import pytest

import tiny_models
from penstock.core.types import WeightUpdate
from penstock.weights.channels import channel
from penstock.weights.folder import PREFIX
from penstock.weights.snapshot import sums_of, table_checksum
from penstock.weights.upload import pack
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


def parcel(update, **head):
    manifest, image = pack(update)
    return json.dumps({"manifest": manifest, **head}).encode() + b"\n" + bytes(image)


async def in_flight(client, service, asked=LONG):
    """A completion that has begun, with drawing paused."""
    task = asyncio.create_task(client.post("/v1/completions", json=asked))
    await until(lambda: service.engine.generated_tokens > 3)
    service.engine.pause()
    return task


def test_a_client_that_leaves_frees_its_places(ask):
    async def scenario(client, service):
        task = await in_flight(client, service)
        held = service.taken
        task.cancel()
        await until(lambda: not service.taken)
        service.engine.resume()
        after = await client.post("/v1/completions", json=SHORT)
        return held, after.status_code, service.engine.stats().running, service.keys

    assert ask(scenario) == (1, 200, 0, [])


def test_a_client_that_leaves_a_stream_frees_its_places(ask):
    async def scenario(client, service):
        async with client.stream("POST", "/v1/completions", json=LONG | {"stream": True, "n": 2}) as answer:
            async for _ in answer.aiter_lines():
                break
            service.engine.pause()
            held = service.taken
        await until(lambda: not service.taken)
        service.engine.resume()
        await client.post("/v1/completions", json=SHORT)
        return held, service.engine.stats().running

    assert ask(scenario) == (2, 0)


def test_a_full_server_says_when_to_come_again(ask):
    async def scenario(client, service):
        task = await in_flight(client, service)
        full = await client.post("/v1/completions", json=SHORT | {"n": 2})
        room = asyncio.create_task(client.post("/v1/completions", json=SHORT))
        await until(lambda: service.taken == 2)
        service.engine.resume()
        return full, (await room).status_code, (await task).status_code

    full, room, first = ask(scenario, room=2)
    assert (full.status_code, full.headers["retry-after"], full.json()["error"]["code"]) == (429, "1", "queue_full")
    assert (room, first) == (200, 200)


def test_a_request_that_takes_too_long_is_given_up(ask):
    async def scenario(client, service):
        service.engine.pause()
        whole = await client.post("/v1/completions", json=SHORT)
        stream = await client.post("/v1/completions", json=SHORT | {"stream": True})
        await until(lambda: not service.taken)
        return whole.status_code, stream.text, service.taken

    status, stream, taken = ask(scenario, request_seconds=0.1)
    assert (status, taken) == (504, 0)
    assert '"code":"timeout"' in stream


def test_a_reader_that_does_not_read_is_let_go(ask):
    async def scenario(client, service):
        async def floods(request, on_token=None):
            for _ in range(10_000_000):
                on_token(20, -1.0, 0)
                await asyncio.sleep(0)

        service.engine.generate = floods
        body = json.dumps(LONG | {"stream": True, "logprobs": 0, "return_token_ids": True, "max_tokens": 120}).encode()
        headers = "".join(f"{name}: {value}\r\n" for name, value in client.headers.items() if name == "authorization")
        _, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port, limit=1024)
        writer.write(
            f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        await until(lambda: service.taken)
        await until(lambda: not service.taken)
        writer.close()
        return service.taken

    assert ask(scenario, send_seconds=0.1) == 0


def test_pausing_keeps_requests_and_resuming_goes_on(ask):
    async def scenario(client, service):
        free = (await client.post("/v1/completions", json=LONG)).json()["choices"]
        task = asyncio.create_task(client.post("/v1/completions", json=LONG))
        drawn = service.engine.generated_tokens
        await until(lambda: service.engine.generated_tokens > drawn + 3)
        paused = await client.post("/pause", json={})
        health = (await client.get("/health")).json()["status"]
        drawn = service.engine.generated_tokens
        await client.get("/health")
        still = service.engine.generated_tokens == drawn
        await client.post("/resume", json={})
        return free, (await task).json()["choices"], paused.status_code, health, still

    free, interrupted, status, health, still = ask(scenario)
    assert interrupted == free
    assert (status, health, still) == (200, "paused", True)


def test_pausing_can_end_what_is_in_flight(ask):
    async def scenario(client, service):
        task = asyncio.create_task(client.post("/v1/completions", json=LONG))
        await until(lambda: service.engine.generated_tokens > 3)
        await client.post("/pause", json={"mode": "abort"})
        return (await task).json()["choices"][0]

    choice = ask(scenario)
    assert choice["finish_reason"] == "abort"
    assert 0 < len(choice["weight_versions"]) < 100


def test_an_uploaded_image_lands_between_two_tokens(ask, tiny):
    async def scenario(client, service):
        task = await in_flight(client, service)
        body = parcel(WeightUpdate(3, list(other_weights(tiny).policy_weights()), learner_epoch=2), kv="recompute")
        loaded = await client.put("/weights", content=body)
        service.engine.resume()
        versions = (await task).json()["choices"][0]["weight_versions"]
        sums = (await client.get("/weights/sums")).json()
        return loaded.json(), versions, sums, (await client.get("/version")).json()

    loaded, versions, sums, version = ask(scenario)
    assert loaded == {"version": 3, "learner_epoch": 2}
    assert set(versions) == {0, 3}
    assert versions == sorted(versions)
    assert sums["sums"] == sums_of(lambda: [(n, t.detach()) for n, t in other_weights(tiny).policy_weights()])
    assert (version["version"], version["learner_epoch"]) == (3, 2)


@pytest.mark.parametrize("problem", ["cut", "flipped", "old", "no line", "long", "empty"])
def test_a_refused_upload_changes_nothing(ask, tiny, problem):
    body = parcel(WeightUpdate(0 if problem == "old" else 1, list(other_weights(tiny).policy_weights())))
    body = {
        "cut": body[:-64],
        "flipped": body[:-200] + bytes([body[-200] ^ 1]) + body[-199:],
        "no line": body.replace(b"\n", b" ", 1),
        "long": body + bytes(64),
        "empty": b"",
    }.get(problem, body)

    async def scenario(client, service):
        before = (await client.get("/weights/sums")).json()
        refused = await client.put("/weights", content=body)
        return refused.status_code, before == (await client.get("/weights/sums")).json()

    status, same = ask(scenario)
    assert same
    assert status in (400, 409)


WRONG = {
    "a missing tensor": lambda first, rest: rest,
    "one that comes twice": lambda first, rest: [first, *rest, first],
    "another shape": lambda first, rest: [(first[0], first[1].T), *rest],
    "whole numbers": lambda first, rest: [(first[0], first[1].long()), *rest],
    "infinite in the model's type": lambda first, rest: [(first[0], first[1].double() * 1e300), *rest],
}


@pytest.mark.parametrize("problem", WRONG)
def test_an_upload_of_other_tensors_changes_nothing(ask, tiny, problem):
    first, *rest = [(name, tensor.detach()) for name, tensor in other_weights(tiny).policy_weights()]

    async def scenario(client, service):
        before = (await client.get("/weights/sums")).json()
        refused = await client.put("/weights", content=parcel(WeightUpdate(1, WRONG[problem](first, rest))))
        return refused.status_code, refused.json()["error"]["code"], before == (await client.get("/weights/sums")).json()

    assert ask(scenario) == (409, "weights_refused", True)


@pytest.mark.parametrize(("field", "value"), [("dtype", ["float32"]), ("offset", "0"), ("shape", [-300, -32]), ("name", 5)])
def test_a_manifest_of_other_types_is_refused(ask, tiny, field, value):
    manifest, image = pack(WeightUpdate(1, list(other_weights(tiny).policy_weights())))
    manifest["tensors"][0][field] = value

    async def scenario(client, service):
        return await client.put("/weights", content=json.dumps({"manifest": manifest}).encode() + b"\n" + bytes(image))

    refused = ask(scenario)
    assert (refused.status_code, "the weight manifest is malformed" in refused.text) == (409, True)


def test_tensors_that_lie_in_each_others_place_are_refused_and_change_nothing(ask, tiny):
    """Two of the same shape, the second at the place of the first: one of them would be lost, with every checksum right."""
    manifest, image = pack(WeightUpdate(1, list(other_weights(tiny).policy_weights())))
    by_shape = {}
    first, second = next(
        (by_shape[tuple(slot["shape"])], slot)
        for slot in manifest["tensors"]
        if by_shape.setdefault(tuple(slot["shape"]), slot) is not slot
    )
    second["offset"] = first["offset"]
    manifest["table"] = table_checksum(manifest)

    async def scenario(client, service):
        before = (await client.get("/weights/sums")).json()
        refused = await client.put("/weights", content=json.dumps({"manifest": manifest}).encode() + b"\n" + bytes(image))
        return refused, before == (await client.get("/weights/sums")).json()

    refused, same = ask(scenario)
    assert (refused.status_code, "lies in the place of" in refused.text, same) == (409, True, True)


@pytest.mark.parametrize("kind", ["shared memory", "disk", "process group"])
def test_weights_come_by_manifest_through_a_channel(ask, tiny, tmp_path, kind):
    folder, other = tmp_path / f"{PREFIX}run", other_weights(tiny)

    async def scenario(client, service):
        manifests = asyncio.Queue(maxsize=1)
        publisher = channel(kind).publisher(other.policy_weights, folder, manifests.put, 0)
        early = await client.post("/weights", json={"manifest": {"kind": kind}})
        group = await client.post("/weights/group", json={"channel": kind, "folder": str(folder), "name": "generator-0"})
        task = await in_flight(client, service)
        await publisher.publish(7)
        loaded = await client.post("/weights", json={"manifest": await manifests.get()})
        service.engine.resume()
        versions = (await task).json()["choices"][0]["weight_versions"]
        publisher.close()
        return early, group.status_code, loaded.json(), set(versions), service.metrics.updates

    early, group, loaded, versions, updates = ask(scenario)
    assert (early.status_code, "POST /weights/group" in early.text) == (409, True)
    assert group == 200
    assert loaded == {"version": 7, "learner_epoch": 0}
    assert versions == {0, 7}
    assert updates == {"refused": 1, "loaded": 1}


def test_metrics_count_what_was_done(ask):
    async def scenario(client, service):
        body = (await client.post("/v1/completions", json=SHORT)).json()
        await client.post("/v1/completions", json={"prompt": "x", "nonsense": 1})
        await client.get("/health")
        return body["usage"]["completion_tokens"], (await client.get("/metrics")).text

    tokens, text = ask(scenario)
    found = read(text)
    assert found["penstock_generated_tokens_total"] == tokens
    assert found['penstock_requests_total{route="/v1/completions",status="200"}'] == 1
    assert found['penstock_requests_total{route="/v1/completions",status="400"}'] == 1
    assert found["penstock_first_token_seconds_count"] == 1
    assert found['penstock_answer_seconds_bucket{le="+Inf"}'] == found["penstock_answer_seconds_count"] == 2


def test_a_malformed_native_request_is_refused_and_harms_nobody(ask):
    key, sampling = ["a", 0, 0, 0], {"max_new_tokens": 3}
    bodies = [
        {"key": key, "tokens": [5], "sampling": {"surprise": 1}},
        {"key": key, "tokens": [5], "sampling": {"temperature": "hot"}},
        {"key": ["a"], "tokens": [5], "sampling": sampling},
        {"key": key, "tokens": [10**9], "sampling": sampling},
        {"key": key, "tokens": "5", "sampling": sampling},
        {"key": key, "tokens": [5], "sampling": sampling, "resume": {"tokens": [5]}},
        {"key": key, "tokens": [5], "sampling": sampling, "more": 1},
    ]

    async def scenario(client, service):
        statuses = [(await client.post("/generate", json=body)).status_code for body in bodies]
        huge = await client.post("/generate", json={"key": key, "tokens": [5], "sampling": sampling | {"top_k": 1 << 70}})
        return statuses, "sample" in json.loads(huge.text.splitlines()[-1])

    assert ask(scenario) == ([400] * len(bodies), True)


@pytest.mark.parametrize(
    "wrong", [{"key": ["\ud800", 0, 0, 0]}, {"sampling": {"temperature": 10**400}}, {"sampling": {"stop": ["\ud800"]}}]
)
def test_what_could_stop_the_engine_is_refused_and_harms_nobody(ask, wrong):
    async def scenario(client, service):
        task = await in_flight(client, service)
        body = {"key": ["a", 0, 0, 0], "tokens": [5], "sampling": {"max_new_tokens": 3}} | wrong
        refused = await client.post("/generate", content=json.dumps(body), headers={"Content-Type": "application/json"})
        service.engine.resume()
        return refused.status_code, (await task).status_code

    assert ask(scenario) == (400, 200)


def test_a_server_that_ends_lets_answers_under_way_end(tiny):
    from penstock.serve.guard import Access
    from penstock.serve.server import server_of
    from serving import BEARER, running, service_of

    async def over():
        service = service_of(tiny())
        server = server_of(service, Access())
        async with running(server) as url, httpx.AsyncClient(base_url=url, headers=BEARER) as client:
            task = await in_flight(client, service)
            server.should_exit = True
            service.engine.resume()
            return (await task).status_code

    assert asyncio.run(asyncio.wait_for(over(), 30)) == 200

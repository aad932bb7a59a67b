"""Completions and chats: what goes in, what comes out, and what is refused."""

import asyncio
import json
import math

import numpy as np
import pytest

import tiny_models
from penstock.core.types import WeightUpdate

PROMPT = {"model": "tiny", "prompt": "3 + 4 =", "max_tokens": 12, "seed": 5}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "3 + 4"}], "max_tokens": 12, "seed": 5}


def completion(ask, *asked, **fields):
    """(status, body) of a completion, or of several of one server."""

    async def scenario(client, service):
        answers = [await client.post("/v1/completions", json=PROMPT | one) for one in (asked or (fields,))]
        return [(answer.status_code, answer.json()) for answer in answers]

    found = ask(scenario)
    return found if asked else found[0]


async def streamed(client, path, body):
    """The events of a stream, and what the last line said."""
    async with client.stream("POST", path, json=body | {"stream": True}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") async for line in answer.aiter_lines() if line]
    return [json.loads(line) for line in lines[:-1]], lines[-1]


def test_a_completion_has_the_shape_that_clients_know(ask):
    status, body = completion(ask)
    assert (status, body["object"], body["model"]) == (200, "text_completion", "tiny")
    (choice,) = body["choices"]
    assert choice["index"] == 0
    assert choice["finish_reason"] in ("stop", "length")
    assert body["usage"]["completion_tokens"] == len(choice["weight_versions"]) <= 12
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + body["usage"]["completion_tokens"]


def test_tokens_go_in_and_come_out(ask, text):
    tokens = text.encode("3 + 4 =")
    (_, by_text), (_, by_tokens) = completion(ask, {"return_token_ids": True}, {"prompt": tokens, "return_token_ids": True})
    assert by_text["choices"] == by_tokens["choices"]
    assert by_tokens["choices"][0]["prompt_token_ids"] == tokens
    assert text.decode(by_tokens["choices"][0]["token_ids"]) == by_tokens["choices"][0]["text"]


def test_several_prompts_and_samples_stand_in_order(ask):
    (_, body), (_, alone) = completion(ask, {"prompt": ["3 + 4 =", "12 - 5 ="], "n": 2}, {"n": 2})
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert [c["text"] for c in body["choices"][:2]] == [c["text"] for c in alone["choices"]]
    assert body["choices"][0]["text"] != body["choices"][1]["text"]


def test_a_seed_gives_the_same_answer_again_and_no_seed_another(ask):
    unseeded = {"seed": None, "max_tokens": 30}
    first, again, free, other = (body["choices"] for _, body in completion(ask, {}, {"n": 1}, unseeded, unseeded))
    assert first == again
    assert free != other


def test_log_probs_are_those_of_the_model(ask, tiny):
    async def scenario(client, service):
        body = (await client.post("/v1/completions", json=PROMPT | {"logprobs": 0, "return_token_ids": True})).json()
        (choice,) = body["choices"]
        tokens = np.array([*choice["prompt_token_ids"], *choice["token_ids"]], np.int32)
        return choice, (await service.engine.score(tokens))[len(choice["prompt_token_ids"]) :]

    choice, scored = ask(scenario)
    np.testing.assert_allclose(choice["logprobs"]["token_logprobs"], scored, atol=1e-4)
    assert choice["logprobs"]["text_offset"][:1] == [0]
    assert len(choice["logprobs"]["tokens"]) == len(choice["token_ids"])


@pytest.mark.parametrize("stream", [False, True])
def test_offsets_of_log_probs_are_places_in_the_text(ask, stream):
    async def scenario(client, service):
        asked = PROMPT | {"logprobs": 0, "max_tokens": 60}
        if not stream:
            choices = (await client.post("/v1/completions", json=asked)).json()["choices"]
        else:
            events, _ = await streamed(client, "/v1/completions", asked)
            choices = [choice for event in events for choice in event["choices"]]
        said = "".join(choice["text"] for choice in choices)
        logprobs = [choice["logprobs"] for choice in choices]
        return said, [t for one in logprobs for t in one["tokens"]], [o for one in logprobs for o in one["text_offset"]]

    said, tokens, offsets = ask(scenario)
    whole = [(token, place) for token, place in zip(tokens, offsets, strict=True) if "\ufffd" not in token and token[0] != "<"]
    assert len(whole) < len(tokens)  # some characters are of several tokens
    assert offsets == sorted(offsets)
    assert all(said.startswith(token, place) for token, place in whole)


def test_a_chat_is_rendered_by_its_template(ask, text):
    async def scenario(client, service):
        parts = [{"role": "user", "content": [{"type": "text", "text": "3 "}, {"type": "text", "text": "+ 4"}]}]
        asked = CHAT | {"return_token_ids": True, "logprobs": True}
        return [(await client.post("/v1/chat/completions", json=asked | more)).json() for more in ({}, {"messages": parts})]

    whole, in_parts = ask(scenario)
    assert whole["prompt_token_ids"] == text.encode(text.render_chat(CHAT["messages"]))
    assert whole["choices"] == in_parts["choices"]
    (choice,) = whole["choices"]
    assert choice["message"]["role"] == "assistant"
    assert len(choice["logprobs"]["content"]) == len(choice["token_ids"])


@pytest.mark.parametrize(("path", "asked"), [("/v1/completions", PROMPT), ("/v1/chat/completions", CHAT)])
def test_a_stream_adds_up_to_the_whole_answer(ask, path, asked):
    async def scenario(client, service):
        more = asked | {"n": 3, "return_token_ids": True, "max_tokens": 40}
        whole = (await client.post(path, json=more)).json()
        return whole, *await streamed(client, path, more | {"stream_options": {"include_usage": True}})

    whole, events, last = ask(scenario)
    assert last == "[DONE]"
    assert events[-1]["choices"] == []
    assert events[-1]["usage"] == whole["usage"]
    assert all(event["usage"] is None for event in events[:-1])
    for choice in whole["choices"]:
        mine = [c for event in events for c in event["choices"] if c["index"] == choice["index"]]
        said = "".join(c["text"] if "text" in c else c["delta"].get("content", "") for c in mine)
        assert said == (choice["text"] if "text" in choice else choice["message"]["content"])
        assert [token for c in mine for token in c.get("token_ids", [])] == choice["token_ids"]
        assert [c["finish_reason"] for c in mine if c["finish_reason"]] == [choice["finish_reason"]]


def test_a_stop_string_appears_in_no_piece(ask):
    async def scenario(client, service):
        free = (await client.post("/v1/completions", json=PROMPT | {"max_tokens": 40})).json()["choices"][0]["text"]
        stop = next(free[at : at + 2] for at in range(5, len(free)) if free[at : at + 2].isascii())
        events, _ = await streamed(client, "/v1/completions", PROMPT | {"max_tokens": 40, "stop": [stop]})
        return free, stop, [choice for event in events for choice in event["choices"]]

    free, stop, choices = ask(scenario)
    assert "".join(choice["text"] for choice in choices) == free[: free.index(stop)]
    assert choices[-1]["finish_reason"] == "stop"


def test_an_update_lands_between_two_tokens_of_a_stream(ask, tiny):
    other = tiny()
    tiny_models.randomise(other.network, seed=5)

    async def scenario(client, service):
        versions = []
        asked = PROMPT | {"max_tokens": 60, "stream": True, "stop_token_ids": None}
        async with client.stream("POST", "/v1/completions", json=asked) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    choices = json.loads(line[6:])["choices"]
                    versions += [version for choice in choices for version in choice["weight_versions"]]
                    if len(versions) >= 5 and service.version == 0:
                        await service.engine.load(WeightUpdate(1, list(other.policy_weights())))
        return versions

    versions = ask(scenario)
    assert versions == sorted(versions)
    assert set(versions) == {0, 1}


REFUSED = [
    ({"model": "gpt"}, 404, "model"),
    ({"prompt": None}, 400, "prompt"),
    ({"prompt": []}, 400, "prompt"),
    ({"prompt": [3, 10**9]}, 400, "prompt"),
    ({"prompt": [3, -1]}, 400, "prompt"),
    ({"prompt": [[3], ["x"]]}, 400, "prompt"),
    ({"prompt": {"text": "x"}}, 400, "prompt"),
    ({"prompt": "what is the sum " * 100}, 400, "prompt"),
    ({"max_tokens": 0}, 400, "max_tokens"),
    ({"max_tokens": 2.5}, 400, "max_tokens"),
    ({"temperature": -1}, 400, "temperature"),
    ({"temperature": "hot"}, 400, "temperature"),
    ({"temperature": True}, 400, "temperature"),
    ({"top_p": 1.5}, 400, "top_p"),
    ({"n": 0}, 400, "n"),
    ({"n": 10**9}, 400, "n"),
    ({"n": 100, "prompt": ["a", "b"]}, 400, "n"),
    ({"stop": [""]}, 400, "stop"),
    ({"stop": ["a"] * 99}, 400, "stop"),
    ({"seed": "x"}, 400, "seed"),
    ({"seed": 1 << 70}, 400, "seed"),
    ({"logprobs": 3}, 400, "logprobs"),
    ({"echo": True}, 400, "echo"),
    ({"best_of": 4}, 400, "best_of"),
    ({"presence_penalty": 0.5}, 400, "presence_penalty"),
    ({"logit_bias": {"5": 1}}, 400, "logit_bias"),
    ({"stop_token_ids": [10**6]}, 400, "stop_token_ids"),
    ({"stream": "yes"}, 400, "stream"),
    ({"stream_options": {"surprise": 1}}, 400, "surprise"),
    ({"guided_json": {}}, 400, "guided_json"),
]


def test_what_cannot_be_honoured_is_refused_by_name(ask):
    async def scenario(client, service):
        return [await client.post("/v1/completions", json=PROMPT | fields) for fields, _, _ in REFUSED]

    answers = ask(scenario)
    assert [(a.status_code, a.json()["error"]["param"]) for a in answers] == [(status, param) for _, status, param in REFUSED]
    assert all(set(answer.json()["error"]) == {"message", "type", "param", "code"} for answer in answers)


def test_more_samples_than_ever_have_room_are_refused_and_not_put_off(ask):
    async def scenario(client, service):
        return [await client.post("/v1/completions", json=PROMPT | more) for more in ({"n": 3}, {"prompt": ["a", "b", "c"]})]

    assert [(a.status_code, a.json()["error"]["param"]) for a in ask(scenario, room=2)] == [(400, "n"), (400, "prompt")]


@pytest.mark.parametrize("field", ["prompt", "model", "stop", "unknown \ud800"])
def test_half_a_character_is_no_json(ask, field):
    async def scenario(client, service):
        body = json.dumps(PROMPT | {field: "\udfff"})
        found = await client.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
        pair = await client.post("/v1/completions", content=json.dumps(PROMPT | {"prompt": "\U0001f600"}),
                                 headers={"Content-Type": "application/json"})  # fmt: skip
        return found.status_code, found.json()["error"]["message"], pair.status_code

    status, message, pair = ask(scenario)
    assert (status, pair) == (400, 200)
    assert "the body is not JSON" in message


REFUSED_CHATS = [
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [{"role": "king", "content": "x"}]}, "role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
    ({"top_logprobs": 2, "logprobs": True}, "top_logprobs"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"max_completion_tokens": 5}, "max_tokens"),
    ({"prompt": "x"}, "prompt"),
]


def test_a_chat_that_cannot_be_honoured_is_refused_by_name(ask):
    async def scenario(client, service):
        return [await client.post("/v1/chat/completions", json=CHAT | fields) for fields, _ in REFUSED_CHATS]

    answers = ask(scenario)
    assert [answer.status_code for answer in answers] == [400] * len(REFUSED_CHATS)
    assert [answer.json()["error"]["param"] for answer in answers] == [param for _, param in REFUSED_CHATS]


def test_fields_that_change_nothing_are_taken(ask):
    same = {"presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "best_of": 1, "echo": False, "user": "me"}
    (_, with_them), (_, without) = completion(ask, same, {"n": 1})
    assert with_them["choices"] == without["choices"]


def test_a_chat_without_a_limit_goes_on_to_the_context(ask):
    async def scenario(client, service):
        asked = {name: value for name, value in CHAT.items() if name != "max_tokens"}
        body = (await client.post("/v1/chat/completions", json=asked)).json()
        return body["choices"][0]["finish_reason"], body["usage"]["total_tokens"], service.context

    finish, total, context = ask(scenario)
    assert total == context if finish == "length" else total <= context


def test_models_say_what_is_served_and_at_which_version(ask):
    async def scenario(client, service):
        listed = (await client.get("/v1/models")).json()["data"]
        alone = (await client.get("/v1/models/tiny")).json()
        return listed, alone, (await client.get("/v1/models/other")).status_code

    listed, alone, status = ask(scenario)
    assert listed == [alone]
    assert (alone["id"], alone["weight_version"], status) == ("tiny", 0, 404)


def test_greedy_answers_need_no_seed(ask):
    greedy = {"temperature": 0, "seed": None}
    (_, first), (_, second) = completion(ask, greedy, greedy)
    assert first["choices"] == second["choices"]


def test_an_error_of_the_engine_in_a_stream_is_an_event(ask):
    async def scenario(client, service):
        async def fail(request, on_token=None):
            on_token(20, -math.log(2), 0)
            await asyncio.sleep(0)
            raise RuntimeError("broken")

        service.engine.generate = fail
        return await streamed(client, "/v1/completions", PROMPT)

    events, last = ask(scenario)
    assert events[-1]["error"]["type"] == "server_error"
    assert last == "[DONE]"

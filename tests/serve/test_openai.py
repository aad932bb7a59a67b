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


async def posted(serve, path, bodies, **limits):
    """The answers of one server to bodies."""
    async with serve(**limits) as (client, _):
        return [await client.post(path, json=body) for body in bodies]


async def completions(serve, *changes, **limits):
    """The answers to the usual prompt with each of these changes."""
    return await posted(serve, "/v1/completions", [PROMPT | change for change in changes], **limits)


async def chosen(serve, *changes):
    """The choices of completions."""
    return [answer.json()["choices"] for answer in await completions(serve, *changes)]


async def streamed(client, path, body):
    """The events of a stream, and what the last line said."""
    async with client.stream("POST", path, json=body | {"stream": True}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") async for line in answer.aiter_lines() if line]
    return [json.loads(line) for line in lines[:-1]], lines[-1]


async def test_a_completion_has_the_shape_that_clients_know(serve):
    (answer,) = await completions(serve, {})
    body = answer.json()
    assert (answer.status_code, body["object"], body["model"]) == (200, "text_completion", "tiny")
    (choice,) = body["choices"]
    assert choice["index"] == 0
    assert choice["finish_reason"] in ("stop", "length")
    assert body["usage"]["completion_tokens"] == len(choice["weight_versions"]) <= 12
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + body["usage"]["completion_tokens"]


async def test_tokens_go_in_and_come_out(serve, text):
    tokens = text.encode("3 + 4 =")
    by_text, by_tokens = await chosen(serve, {"return_token_ids": True}, {"prompt": tokens, "return_token_ids": True})
    assert by_text == by_tokens
    assert by_tokens[0]["prompt_token_ids"] == tokens
    assert text.decode(by_tokens[0]["token_ids"]) == by_tokens[0]["text"]


async def test_several_prompts_and_samples_stand_in_order(serve):
    both, alone = await chosen(serve, {"prompt": ["3 + 4 =", "12 - 5 ="], "n": 2}, {"n": 2})
    assert [choice["index"] for choice in both] == [0, 1, 2, 3]
    assert [choice["text"] for choice in both[:2]] == [choice["text"] for choice in alone]
    assert both[0]["text"] != both[1]["text"]


async def test_a_seed_gives_the_same_answer_again_and_no_seed_another(serve):
    unseeded = {"seed": None, "max_tokens": 30}
    first, again, free, other = await chosen(serve, {}, {"n": 1}, unseeded, unseeded)
    assert first == again
    assert free != other


async def test_log_probs_are_those_of_the_model(serve):
    async with serve() as (client, service):
        body = (await client.post("/v1/completions", json=PROMPT | {"logprobs": 0, "return_token_ids": True})).json()
        (choice,) = body["choices"]
        tokens = np.array([*choice["prompt_token_ids"], *choice["token_ids"]], np.int32)
        scored = (await service.engine.score(tokens))[len(choice["prompt_token_ids"]) :]
    np.testing.assert_allclose(choice["logprobs"]["token_logprobs"], scored, atol=1e-4)
    assert choice["logprobs"]["text_offset"][:1] == [0]
    assert len(choice["logprobs"]["tokens"]) == len(choice["token_ids"])


@pytest.mark.parametrize("stream", [False, True])
async def test_offsets_of_log_probs_are_places_in_the_text(serve, stream):
    asked = PROMPT | {"logprobs": 0, "max_tokens": 60}
    async with serve() as (client, _):
        if stream:
            events, _ = await streamed(client, "/v1/completions", asked)
        else:
            events = [(await client.post("/v1/completions", json=asked)).json()]
    choices = [choice for event in events for choice in event["choices"]]
    said = "".join(choice["text"] for choice in choices)
    tokens = [token for choice in choices for token in choice["logprobs"]["tokens"]]
    offsets = [offset for choice in choices for offset in choice["logprobs"]["text_offset"]]
    whole = [(token, place) for token, place in zip(tokens, offsets, strict=True) if "\ufffd" not in token and token[0] != "<"]
    assert len(whole) < len(tokens)  # some characters are of several tokens
    assert offsets == sorted(offsets)
    assert all(said.startswith(token, place) for token, place in whole)


async def test_a_chat_is_rendered_by_its_template(serve, text):
    parts = [{"role": "user", "content": [{"type": "text", "text": "3 "}, {"type": "text", "text": "+ 4"}]}]
    asked = CHAT | {"return_token_ids": True, "logprobs": True}
    answers = await posted(serve, "/v1/chat/completions", [asked, asked | {"messages": parts}])
    whole, in_parts = (answer.json() for answer in answers)
    assert whole["prompt_token_ids"] == text.encode(text.render_chat(CHAT["messages"]))
    assert whole["choices"] == in_parts["choices"]
    (choice,) = whole["choices"]
    assert choice["message"]["role"] == "assistant"
    assert len(choice["logprobs"]["content"]) == len(choice["token_ids"])


@pytest.mark.parametrize(("path", "asked"), [("/v1/completions", PROMPT), ("/v1/chat/completions", CHAT)])
async def test_a_stream_adds_up_to_the_whole_answer(serve, path, asked):
    more = asked | {"n": 3, "return_token_ids": True, "max_tokens": 40}
    async with serve() as (client, _):
        whole = (await client.post(path, json=more)).json()
        events, last = await streamed(client, path, more | {"stream_options": {"include_usage": True}})
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


async def test_a_stop_string_appears_in_no_piece(serve):
    async with serve() as (client, _):
        free = (await client.post("/v1/completions", json=PROMPT | {"max_tokens": 40})).json()["choices"][0]["text"]
        stop = next(free[at : at + 2] for at in range(5, len(free)) if free[at : at + 2].isascii())
        events, _ = await streamed(client, "/v1/completions", PROMPT | {"max_tokens": 40, "stop": [stop]})
    choices = [choice for event in events for choice in event["choices"]]
    assert "".join(choice["text"] for choice in choices) == free[: free.index(stop)]
    assert choices[-1]["finish_reason"] == "stop"


async def test_an_update_lands_between_two_tokens_of_a_stream(serve, tiny):
    other = tiny()
    tiny_models.randomise(other.network, seed=5)

    versions = []
    asked = PROMPT | {"max_tokens": 60, "stream": True, "stop_token_ids": None}
    async with serve() as (client, service), client.stream("POST", "/v1/completions", json=asked) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                choices = json.loads(line[6:])["choices"]
                versions += [version for choice in choices for version in choice["weight_versions"]]
                if len(versions) >= 5 and service.version == 0:
                    await service.engine.load(WeightUpdate(1, list(other.policy_weights())))
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


async def test_what_cannot_be_honoured_is_refused_by_name(serve):
    answers = await completions(serve, *(fields for fields, _, _ in REFUSED))
    assert [(a.status_code, a.json()["error"]["param"]) for a in answers] == [(status, param) for _, status, param in REFUSED]
    assert all(set(answer.json()["error"]) == {"message", "type", "param", "code"} for answer in answers)


async def test_more_samples_than_ever_have_room_are_refused_and_not_put_off(serve):
    answers = await completions(serve, {"n": 3}, {"prompt": ["a", "b", "c"]}, room=2)
    assert [(answer.status_code, answer.json()["error"]["param"]) for answer in answers] == [(400, "n"), (400, "prompt")]


async def test_half_a_character_is_no_json(serve):
    fields = ("prompt", "model", "stop", "unknown \ud800")
    bodies = [json.dumps(PROMPT | change) for change in [{field: "\udfff"} for field in fields] + [{"prompt": "\U0001f600"}]]
    async with serve() as (client, _):
        headers = {"Content-Type": "application/json"}
        *answers, pair = [await client.post("/v1/completions", content=body, headers=headers) for body in bodies]
    assert [answer.status_code for answer in answers] == [400] * 4
    assert all("the body is not JSON" in answer.json()["error"]["message"] for answer in answers)
    assert pair.status_code == 200


REFUSED_CHATS = [
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
    ({"top_logprobs": 2, "logprobs": True}, "top_logprobs"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"max_completion_tokens": 5}, "max_tokens"),
    ({"prompt": "x"}, "prompt"),
]


async def test_a_chat_that_cannot_be_honoured_is_refused_by_name(serve):
    answers = await posted(serve, "/v1/chat/completions", [CHAT | fields for fields, _ in REFUSED_CHATS])
    assert [answer.status_code for answer in answers] == [400] * len(REFUSED_CHATS)
    assert [answer.json()["error"]["param"] for answer in answers] == [param for _, param in REFUSED_CHATS]


async def test_fields_that_change_nothing_are_taken(serve):
    same = {"presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "best_of": 1, "echo": False, "user": "me"}
    with_them, without = await chosen(serve, same, {"n": 1})
    assert with_them == without


async def test_a_chat_without_a_limit_goes_on_to_the_context(serve):
    asked = {name: value for name, value in CHAT.items() if name != "max_tokens"}
    async with serve() as (client, service):
        body = (await client.post("/v1/chat/completions", json=asked)).json()
    total = body["usage"]["total_tokens"]
    assert total == service.context if body["choices"][0]["finish_reason"] == "length" else total <= service.context


async def test_models_say_what_is_served_and_at_which_version(serve):
    async with serve() as (client, _):
        listed = (await client.get("/v1/models")).json()["data"]
        alone = (await client.get("/v1/models/tiny")).json()
        assert (await client.get("/v1/models/other")).status_code == 404
    assert listed == [alone]
    assert (alone["id"], alone["weight_version"]) == ("tiny", 0)


async def test_greedy_answers_need_no_seed(serve):
    greedy = {"temperature": 0, "seed": None}
    first, second = await chosen(serve, greedy, greedy)
    assert first == second


async def test_an_error_of_the_engine_in_a_stream_is_an_event(serve):
    async def fail(request, on_token=None):
        on_token(20, -math.log(2), 0)
        await asyncio.sleep(0)
        raise RuntimeError("broken")

    async with serve() as (client, service):
        service.engine.generate = fail
        events, last = await streamed(client, "/v1/completions", PROMPT)
    assert events[-1]["error"]["type"] == "server_error"
    assert last == "[DONE]"


async def test_tool_calls_without_a_content_and_metadata_are_taken(serve):
    call = {"id": "call00000", "type": "function", "function": {"name": "add", "arguments": '{"a": 3}'}}
    turns = [
        CHAT["messages"][0],
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None, "annotations": []},
        {"role": "tool", "content": "7", "tool_call_id": "call00000"},
    ]
    asked = CHAT | {"messages": turns, "metadata": {"run": "a"}, "max_tokens": 2, "return_token_ids": True}
    async with serve() as (client, service):
        answer = (await client.post("/v1/chat/completions", json=asked)).json()
        said = service.text.tokenizer.decode(answer["prompt_token_ids"])
    assert '<tool_call>\n{"name": "add", "arguments": {"a": 3}}\n</tool_call>' in said
    assert "7" in said.partition("</tool_call>")[2]


@pytest.mark.parametrize(
    "turn",
    [
        {"role": "assistant", "content": None}, {"role": "assistant", "content": None, "tool_calls": {}},
        {"role": "assistant", "content": None, "tool_calls": ["add"]}, {"role": "user", "content": "a", "colour": "red"},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": 3}}]},
        {"role": "assistant", "content": "7", "reasoning_content": "3 + 4"}, {"role": ["user"], "content": "a"}, "a",
        {"role": "user", "content": [{"type": ["text"], "text": "a"}]}, {"role": "tool", "content": "a", "tool_call_id": 3},
        {"role": "assistant", "tool_calls": {"function": {"name": "add"}}},
        {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": "[1]"}}]},
    ],
)  # fmt: skip
async def test_turns_that_would_not_arrive_whole_are_refused(serve, turn):
    (answer,) = await posted(serve, "/v1/chat/completions", [CHAT | {"messages": [CHAT["messages"][0], turn]}])
    assert answer.status_code == 400


async def test_log_probs_of_a_part_of_a_character_have_its_bytes(serve, text):
    """The bytes of all tokens together are the text, whatever its characters were cut into."""
    async with serve() as (client, _):
        asked = CHAT | {"logprobs": True, "max_tokens": 60, "return_token_ids": True}
        (choice,) = (await client.post("/v1/chat/completions", json=asked)).json()["choices"]
    pieces = choice["logprobs"]["content"]
    assert any("\ufffd" in piece["token"] for piece in pieces)
    assert all(piece["bytes"] is not None for piece in pieces)
    ended = len(pieces) - (choice["token_ids"][-1] in text.ends)
    spelled = b"".join(bytes(piece["bytes"]) for piece in pieces[:ended])
    assert spelled.decode("utf-8", "replace") == text.tokenizer.decode(choice["token_ids"][:ended])

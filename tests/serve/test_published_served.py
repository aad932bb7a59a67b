"""Families as they are published behind the server: chats and texts are read, and end, as transformers has it."""

import asyncio

import httpx
import pytest
from transformers import AutoTokenizer

import published
from penstock.models.files import load_model
from serving import BEARER, service_of, serving

CHAT = [{"role": "user", "content": "what is 3 + 4"}]


@pytest.fixture(scope="module", params=sorted(published.FAMILIES))
def folder(request, tmp_path_factory):
    return published.publish(request.param, tmp_path_factory.mktemp("served") / request.param)


def asked(model, *requests):
    """The bodies of answers to (path, body) of one server."""

    async def over():
        client = httpx.AsyncClient(headers=BEARER, timeout=30, trust_env=False)
        async with serving(service_of(model)) as url, client:
            return [(await client.post(f"{url}/v1/{path}", json={"model": "tiny"} | body)).json() for path, body in requests]

    return asyncio.run(over())


def test_prompts_of_both_routes_are_those_of_transformers(folder):
    theirs, more = AutoTokenizer.from_pretrained(folder), {"max_tokens": 2, "return_token_ids": True}
    plain, chat, thoughtless = asked(
        load_model(str(folder)),
        ("completions", {"prompt": "the sum is", **more}),
        ("chat/completions", {"messages": CHAT, **more}),
        ("chat/completions", {"messages": CHAT, "chat_template_kwargs": {"enable_thinking": False}, **more}),
    )
    assert plain["choices"][0]["prompt_token_ids"] == theirs("the sum is")["input_ids"]
    rendered = theirs.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
    assert chat["prompt_token_ids"] == rendered
    quiet = theirs.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False, enable_thinking=False)
    assert thoughtless["prompt_token_ids"] == quiet
    assert (quiet == rendered) == (folder.name != "qwen-3")


def test_an_end_besides_the_tokenizers_stops_an_answer_and_is_not_shown(folder):
    model, body = load_model(str(folder)), {"messages": CHAT, "max_tokens": 8, "temperature": 0, "return_token_ids": True}
    (free,) = asked(model, ("chat/completions", body))
    tokens = free["choices"][0]["token_ids"]
    assert len(tokens) == 8
    model.text.ends |= {tokens[3]}
    first = tokens.index(tokens[3])
    (stopped,) = (answer["choices"][0] for answer in asked(model, ("chat/completions", body)))
    assert (stopped["finish_reason"], stopped["token_ids"]) == ("stop", tokens[: first + 1])
    assert stopped["message"]["content"] == model.text.decode(tokens[:first])


@pytest.mark.parametrize("given", [{"tokenize": True}, 3])
def test_template_arguments_that_are_not_the_callers_are_refused(given, folder):
    (answer,) = asked(load_model(str(folder)), ("chat/completions", {"messages": CHAT, "chat_template_kwargs": given}))
    assert answer["error"]["param"] == "chat_template_kwargs"


def test_a_conversation_that_a_template_refuses_is_the_callers_fault(tmp_path):
    place = published.publish("gemma-3", tmp_path / "gemma-3")
    (answer,) = asked(load_model(str(place)), ("chat/completions", {"messages": [*CHAT, *CHAT]}))
    assert answer["error"]["type"] == "invalid_request_error"
    assert "the chat template refuses the conversation" in answer["error"]["message"]

"""Three APIs that agents speak, and one form of what they ask and are answered: OpenAI's chat completions and responses, and
Anthropic's messages. What the other two say is written as chat completions have it, and read as those are. A stream is cut
from the whole answer.

Fields that choose or bind how tokens are sampled (temperature, top_p, penalties, seed, tool_choice) are the trainer's own, so
that log-probs are those of the policy: they are read and have no effect. Other fields that cannot be honoured are refused.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.core.messages import OPENAI_KEYS, OPENAI_ROLES, Message, arguments_of, read_content, read_message
from penstock.envs.calls import Call
from penstock.web.chat import STOPS, Completion, limit, streaming
from penstock.web.fields import Fields
from penstock.web.refusals import Refusal

TRAINERS = (
    "temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "logit_bias", "user", "store",
    "metadata", "service_tier", "parallel_tool_calls", "include", "truncation", "reasoning", "reasoning_effort", "thinking",
    "tool_choice", "safety_identifier", "prompt_cache_key", "betas", "cache_control", "container", "output_config",
)  # fmt: skip
"""Fields that have no effect here."""
ANY = (1 << 63) - 1
"""Tokens of an answer where the request sets no limit."""


@dataclass(frozen=True)
class AgentRequest:
    """A call of an agent. Messages are chat completions': assistant turns with ``tool_calls``, results of the role ``tool``."""

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...]
    most: int
    """Tokens of the answer at most."""
    stop: tuple[str, ...]
    stream: bool
    usage: bool
    model: str


@dataclass(frozen=True)
class Reply:
    """What the policy answers to a call."""

    text: str
    calls: tuple[Call, ...]
    length: bool
    """Whether it was cut."""
    read: int
    """Tokens of the request."""
    written: int
    ids: tuple[str, ...]
    """Of the calls."""


def chat_asked(body: dict[str, Any]) -> AgentRequest:
    """A body of ``/v1/chat/completions``."""
    fields = Fields(body)
    messages = [_read(one.rest(), one.where) for one in fields.objects("messages")]
    tools = [_tool(one, nested=True) for one in fields.objects("tools")]
    fields.neutral("n", 1)
    fields.neutral("response_format", {"type": "text"})
    fields.neutral("logprobs", False)
    return _asked(fields, messages, tools, limit(fields, ANY), fields.texts("stop", STOPS), streaming(fields))


def responses_asked(body: dict[str, Any]) -> AgentRequest:
    """A body of ``/v1/responses``, with all of the conversation in ``input``."""
    fields = Fields(body)
    if fields.has("previous_response_id"):
        raise Refusal(400, "previous_response_id: give the conversation in input", param="previous_response_id")
    given, instructions = fields.take("input", []), fields.text("instructions", "")
    messages: list[Message] = [{"role": "system", "content": instructions}] if instructions else []
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    for item in Fields({"input": items}).objects("input"):
        message = _read(_responses_item(item), item.where)
        if "tool_calls" in message and messages and messages[-1]["role"] == "assistant":
            calls = [*messages[-1].get("tool_calls", ()), *message["tool_calls"]]
            messages[-1] = {**messages[-1], "tool_calls": calls}
        else:
            messages.append(message)
    tools = [_tool(one) for one in fields.objects("tools")]
    text = Fields(fields.object("text"), "text")
    text.neutral("format", {"type": "text"})
    text.take("verbosity")
    text.done()
    fields.neutral("background", False)
    fields.take("stream_options")
    return _asked(fields, messages, tools, fields.whole("max_output_tokens", ANY, 1), (), (fields.flag("stream"), True))


def anthropic_asked(body: dict[str, Any]) -> AgentRequest:
    """A body of Anthropic's ``/v1/messages``."""
    fields = Fields(body)
    system = read_content(fields.take("system", ""), "system")
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    for one in fields.objects("messages"):
        messages += [_read(message, one.where) for message in _anthropic_messages(one)]
    tools = [_tool(one, "input_schema", "custom") for one in fields.objects("tools")]
    most, stop = fields.whole("max_tokens", ANY, 1), fields.texts("stop_sequences", STOPS)
    return _asked(fields, messages, tools, most, stop, (fields.flag("stream"), True))


def _asked(
    fields: Fields, messages: Sequence[Message], tools: Sequence[dict[str, Any]], most: int, stop: tuple[str, ...],
    streamed: tuple[bool, bool],
) -> AgentRequest:  # fmt: skip
    """With the fields that all APIs have; those that nobody has read are refused."""
    for name in TRAINERS:
        fields.take(name)
    if not messages:
        raise Refusal(400, 'messages must be a list like [{"role": "user", "content": "…"}]', param="messages")
    model = fields.text("model", "policy")
    fields.done()
    return AgentRequest(tuple(messages), tuple(tools), most, stop, *streamed, model)


def _read(given: dict[str, Any], where: str) -> Message:
    return read_message(given, where, OPENAI_ROLES, OPENAI_KEYS)


def _tool(one: Fields, parameters: str = "parameters", kind: str = "function", nested: bool = False) -> dict[str, Any]:
    """A function's schema. Tools of other types are a provider's own: its servers run them, or its models alone know them."""
    if (given := one.take("type", kind)) != kind:
        raise Refusal(400, f"{one.where}: only functions are served, and {given!r:.60} is a tool of the provider's own",
                      param=one.where, code="unsupported_parameter")  # fmt: skip
    inner = Fields(one.object("function"), f"{one.where}.function") if nested else one
    named = {"name": inner.text("name"), "description": inner.text("description", ""), "parameters": inner.object(parameters)}
    for name in ("strict", "cache_control"):  # nothing binds what a policy in training writes, and all is cached
        inner.take(name)
    inner.done()
    one.done()
    return {"type": "function", "function": named}


def _responses_item(item: Fields) -> dict[str, Any]:
    """An item of ``input`` as a message."""
    kind = item.take("type", "message")
    item.take("status")
    item.take("id")
    if kind == "message":
        return item.rest()
    if kind == "function_call":
        function = {"name": item.take("name"), "arguments": item.take("arguments")}
        found = {"role": "assistant", "tool_calls": [{"id": item.text("call_id"), "function": function}]}
    elif kind == "function_call_output":
        found = {"role": "tool", "content": item.take("output", ""), "tool_call_id": item.text("call_id")}
    else:
        raise Refusal(400, f"{item.where}: items of the type {kind!r:.60} are not served", param=item.where)
    item.done()
    return found


def _anthropic_messages(one: Fields) -> Iterator[dict[str, Any]]:
    """Results of tools in a message, and what else it says, as messages."""
    role, content = one.text("role", one_of=("user", "assistant")), one.take("content", [])
    one.done()
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    said: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    for block in Fields({"content": blocks}, one.where).objects("content"):
        kind = block.take("type")
        if kind == "tool_use" and role == "assistant":
            function = {"name": block.take("name"), "arguments": block.take("input")}
            calls.append({"id": block.text("id"), "function": function})
        elif kind == "tool_result" and role == "user":
            failed = "error: " if block.flag("is_error") else ""
            result = failed + read_content(block.take("content", ""), f"{block.where}.content")
            yield {"role": "tool", "content": result, "tool_call_id": block.text("tool_use_id")}
        else:
            said.append({"type": kind, **block.rest()})
        block.take("cache_control")
        block.done()
    if said or calls or not blocks:
        yield {"role": role, "content": said, "tool_calls": calls}


def _id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(12)}"


def _arguments(call: Call) -> str:
    return json.dumps(dict(call.arguments), ensure_ascii=False)


def chat_whole(asked: AgentRequest, reply: Reply) -> dict[str, Any]:
    """A chat completion."""
    calls = {"tool_calls": _chat_calls(reply)} if reply.calls else {}
    content = reply.text or (None if reply.calls else "")
    message = {"role": "assistant", "content": content, "refusal": None, **calls}
    choice = {"index": 0, "message": message, "finish_reason": _chat_finish(reply), "logprobs": None}
    return Completion(asked.model).whole([choice], reply.read, reply.written)


def _chat_calls(reply: Reply) -> list[dict[str, Any]]:
    return [
        {"id": id, "type": "function", "function": {"name": call.name, "arguments": _arguments(call)}}
        for id, call in zip(reply.ids, reply.calls, strict=True)
    ]


def _chat_finish(reply: Reply) -> str:
    return "length" if reply.length else "tool_calls" if reply.calls else "stop"


def chat_events(asked: AgentRequest, reply: Reply) -> Iterator[tuple[str, Any]]:
    """A chat completion as a stream of chunks."""
    said = Completion(asked.model, usage=asked.usage)
    yield "", said.delta(0, {"role": "assistant", "content": ""})
    if reply.text:
        yield "", said.delta(0, {"content": reply.text})
    if reply.calls:
        yield "", said.delta(0, {"tool_calls": [{"index": at, **call} for at, call in enumerate(_chat_calls(reply))]})
    yield "", said.delta(0, {}, _chat_finish(reply))
    for chunk in said.closing(reply.read, reply.written):
        yield "", chunk
    yield "", "[DONE]"


def responses_whole(asked: AgentRequest, reply: Reply) -> dict[str, Any]:
    """A response of OpenAI's newer API."""
    output: list[dict[str, Any]] = []
    if reply.text or not reply.calls:
        part = {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}
        output.append({"type": "message", "id": _id("msg"), "status": "completed", "role": "assistant", "content": [part]})
    for id, call in zip(reply.ids, reply.calls, strict=True):
        named = {"name": call.name, "arguments": _arguments(call), "status": "completed"}
        output.append({"type": "function_call", "id": _id("fc"), "call_id": id, **named})
    used = {"input_tokens": reply.read, "output_tokens": reply.written, "total_tokens": reply.read + reply.written}
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    return {
        "id": _id("resp"), "object": "response", "created_at": int(time.time()), "model": asked.model, "output": output,
        "status": "incomplete" if reply.length else "completed", "error": None, "instructions": None, "metadata": {},
        "incomplete_details": {"reason": "max_output_tokens"} if reply.length else None, "parallel_tool_calls": True,
        "temperature": None, "top_p": None, "tool_choice": "auto", "tools": [], "usage": used | details,
    }  # fmt: skip


def responses_events(asked: AgentRequest, reply: Reply) -> Iterator[tuple[str, Any]]:
    """A response as a stream of events."""
    whole = responses_whole(asked, reply)
    begun = whole | {"output": [], "status": "in_progress", "usage": None, "incomplete_details": None}
    events: list[tuple[str, dict[str, Any]]] = [("created", {"response": begun}), ("in_progress", {"response": begun})]
    for at, item in enumerate(whole["output"]):
        where, hollow = {"output_index": at, "item_id": item["id"]}, {"status": "in_progress"}
        if item["type"] == "message":
            (part,), none = item["content"], {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            inner = where | {"content_index": 0}
            events += [
                ("output_item.added", {"output_index": at, "item": item | hollow | {"content": []}}),
                ("content_part.added", inner | {"part": none}),
                ("output_text.delta", inner | {"delta": part["text"], "logprobs": []}),
                ("output_text.done", inner | {"text": part["text"], "logprobs": []}),
                ("content_part.done", inner | {"part": part}),
            ]
        else:
            events += [
                ("output_item.added", {"output_index": at, "item": item | hollow | {"arguments": ""}}),
                ("function_call_arguments.delta", where | {"delta": item["arguments"]}),
                ("function_call_arguments.done", where | {"name": item["name"], "arguments": item["arguments"]}),
            ]
        events.append(("output_item.done", {"output_index": at, "item": item}))
    events.append(("incomplete" if reply.length else "completed", {"response": whole}))
    for number, (kind, fields) in enumerate(events):
        yield f"response.{kind}", {"type": f"response.{kind}", "sequence_number": number, **fields}


def anthropic_whole(asked: AgentRequest, reply: Reply) -> dict[str, Any]:
    """A message of Anthropic's API."""
    content: list[dict[str, Any]] = [{"type": "text", "text": reply.text}] if reply.text or not reply.calls else []
    for id, call in zip(reply.ids, reply.calls, strict=True):
        content.append({"type": "tool_use", "id": id, "name": call.name, "input": dict(call.arguments)})
    reason = "max_tokens" if reply.length else "tool_use" if reply.calls else "end_turn"
    head = {"id": _id("msg"), "type": "message", "role": "assistant", "model": asked.model, "content": content}
    used = {"input_tokens": reply.read, "output_tokens": reply.written}
    return head | {"stop_reason": reason, "stop_sequence": None, "usage": used}


def anthropic_events(asked: AgentRequest, reply: Reply) -> Iterator[tuple[str, Any]]:
    """A message as a stream of events."""
    whole = anthropic_whole(asked, reply)
    begun = whole | {"content": [], "stop_reason": None, "usage": whole["usage"] | {"output_tokens": 1}}
    yield "message_start", {"type": "message_start", "message": begun}
    for at, block in enumerate(whole["content"]):
        spoken = block["type"] == "text"
        empty = {"type": "text", "text": ""} if spoken else block | {"input": {}}
        written = json.dumps(block.get("input"), ensure_ascii=False)
        delta = (
            {"type": "text_delta", "text": block["text"]} if spoken else {"type": "input_json_delta", "partial_json": written}
        )
        yield "content_block_start", {"type": "content_block_start", "index": at, "content_block": empty}
        yield "content_block_delta", {"type": "content_block_delta", "index": at, "delta": delta}
        yield "content_block_stop", {"type": "content_block_stop", "index": at}
    ended = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield "message_delta", {"type": "message_delta", "delta": ended, "usage": whole["usage"]}
    yield "message_stop", {"type": "message_stop"}


@dataclass(frozen=True)
class Api:
    """One API: how a body is read, and how a reply is written whole or as (event name, value) pairs."""

    asked: Callable[[dict[str, Any]], AgentRequest]
    whole: Callable[[AgentRequest, Reply], dict[str, Any]]
    events: Callable[[AgentRequest, Reply], Iterator[tuple[str, Any]]]


APIS: Mapping[str, Api] = {
    "/v1/chat/completions": Api(chat_asked, chat_whole, chat_events),
    "/v1/responses": Api(responses_asked, responses_whole, responses_events),
    "/v1/messages": Api(anthropic_asked, anthropic_whole, anthropic_events),
}
"""By path."""


def canonical(message: Message) -> tuple[Any, ...]:
    """What makes two messages the same turn: role, text without white space, and calls without their ids."""
    calls: Sequence[Any] = message.get("tool_calls") or ()
    named = [(call["function"]["name"], json.dumps(arguments_of(call), sort_keys=True)) for call in calls]
    role = {"developer": "system"}.get(str(message["role"]), str(message["role"]))
    return role, "".join(str(message.get("content", "")).split()), tuple(named)

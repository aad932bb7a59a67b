"""Three APIs that agents speak, and one form of what they ask and are answered: OpenAI's chat completions and responses, and
Anthropic's messages. A stream is cut from the whole answer.

Fields that choose or bind how tokens are sampled (temperature, top_p, penalties, seed, tool_choice) are the trainer's own, so
that log-probs are those of the policy: they are read and have no effect. Other fields that cannot be honoured are refused.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.data.messages import Message
from penstock.envs.calls import Call, refuse
from penstock.web.fields import Fields
from penstock.web.refusals import Refusal

TRAINERS = (
    "temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "logit_bias", "user", "store",
    "metadata", "service_tier", "parallel_tool_calls", "include", "truncation", "reasoning", "reasoning_effort", "thinking",
    "tool_choice", "safety_identifier", "prompt_cache_key", "betas", "cache_control", "container", "output_config",
)  # fmt: skip
"""Fields that have no effect here."""
STOPS = 16


@dataclass(frozen=True)
class AgentRequest:
    """A call of an agent. Messages are chat completions': assistant turns with ``tool_calls``, results of the role ``tool``."""

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...]
    most: int | None
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
    messages = tuple(map(_openai_message, fields.objects("messages")))
    tools = tuple(_tool(one, nested=True) for one in fields.objects("tools"))
    fields.neutral("n", 1)
    fields.neutral("response_format", {"type": "text"})
    fields.neutral("logprobs", False)
    most = fields.take("max_completion_tokens", fields.take("max_tokens"))
    options = Fields(fields.object("stream_options"), "stream_options")
    usage = options.flag("include_usage")
    options.take("include_obfuscation")
    options.done()
    return _asked(fields, AgentRequest(messages, tools, most, fields.texts("stop", STOPS), False, usage, ""))


def responses_asked(body: dict[str, Any]) -> AgentRequest:
    """A body of ``/v1/responses``, with all of the conversation in ``input``."""
    fields = Fields(body)
    if fields.has("previous_response_id"):
        raise Refusal(400, "previous_response_id: give the conversation in input", param="previous_response_id")
    given = fields.take("input", [])
    messages: list[Message] = []
    if instructions := fields.text("instructions", ""):
        messages.append({"role": "system", "content": instructions})
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    for item in Fields({"input": items}).objects("input"):
        _responses_item(item, messages)
    tools = tuple(map(_tool, fields.objects("tools")))
    text = Fields(fields.object("text"), "text")
    text.neutral("format", {"type": "text"})
    text.take("verbosity")
    text.done()
    fields.neutral("background", False)
    fields.take("stream_options")
    return _asked(fields, AgentRequest(tuple(messages), tools, fields.take("max_output_tokens"), (), False, True, ""))


def anthropic_asked(body: dict[str, Any]) -> AgentRequest:
    """A body of Anthropic's ``/v1/messages``."""
    fields = Fields(body)
    messages: list[Message] = []
    if system := fields.take("system"):
        messages.append({"role": "system", "content": _texts("system", system)})
    for one in fields.objects("messages"):
        _anthropic_message(one, messages)
    tools = tuple(_tool(one, "input_schema", "custom") for one in fields.objects("tools"))
    most, stop = fields.take("max_tokens"), fields.texts("stop_sequences", STOPS)
    return _asked(fields, AgentRequest(tuple(messages), tools, most, stop, False, True, ""))


def _asked(fields: Fields, asked: AgentRequest) -> AgentRequest:
    """With the fields that all APIs have; those that nobody has read are refused."""
    for name in TRAINERS:
        fields.take(name)
    most = asked.most
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
        raise Refusal(400, f"max_tokens={most!r}; give a whole number from 1", param="max_tokens")
    if not asked.messages:
        raise Refusal(400, 'messages must be a list like [{"role": "user", "content": "…"}]', param="messages")
    found = replace(asked, stream=fields.flag("stream"), model=fields.text("model", "policy"))
    fields.done()
    return found


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


def _texts(where: str, content: Any) -> str:
    """A text, or parts that are all text, as one."""
    if isinstance(content, str) or content is None:
        return content or ""
    said = ""
    for part in Fields({where: content}).objects(where):
        if part.take("type") not in ("text", "input_text", "output_text"):
            raise Refusal(400, f"{part.where}: an agent's messages hold text alone here", param=part.where)
        said += part.text("text")
        for name in ("annotations", "citations", "logprobs", "cache_control"):  # what a reply of ours has none of
            part.take(name)
        part.done()
    return said


def _function(where: str, name: str, arguments: Any, id: str) -> dict[str, Any]:
    try:
        read = json.loads(arguments or "{}", parse_constant=refuse) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"{where}: the arguments of a call are no JSON: {error}", param=where) from error
    if not isinstance(read := {} if read is None else read, dict):
        raise Refusal(400, f"{where}: the arguments of a call are an object by name", param=where)
    return {"id": id, "type": "function", "function": {"name": name, "arguments": read}}


def _openai_message(one: Fields) -> Message:
    if (role := one.take("role")) not in ("system", "developer", "user", "assistant", "tool"):
        raise Refusal(400, f"{one.where}.role must be system, developer, user, assistant or tool", param=one.where)
    found: dict[str, Any] = {"role": role, "content": _texts(f"{one.where}.content", one.take("content"))}
    if calls := [_chat_call(call) for call in one.objects("tool_calls")]:
        found["tool_calls"] = calls
    found |= {name: one.text(name) for name in ("name", "tool_call_id") if one.has(name)}
    one.neutral("refusal", "")
    one.neutral("annotations", [])
    one.done()
    return found


def _chat_call(one: Fields) -> dict[str, Any]:
    one.neutral("type", "function")
    one.take("index")
    function = Fields(one.object("function"), f"{one.where}.function")
    found = _function(one.where, function.text("name"), function.take("arguments"), one.text("id", ""))
    function.done()
    one.done()
    return found


def _responses_item(item: Fields, messages: list[Message]) -> None:
    kind = item.take("type", "message")
    item.take("status")
    item.take("id")
    if kind == "message":
        return messages.append(_openai_message(item))
    if kind == "function_call":
        call = _function(item.where, item.text("name"), item.take("arguments"), item.text("call_id"))
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": ""})
        messages[-1] = {**messages[-1], "tool_calls": [*messages[-1].get("tool_calls", ()), call]}
    elif kind == "function_call_output":
        said = _texts(f"{item.where}.output", item.take("output"))
        messages.append({"role": "tool", "content": said, "tool_call_id": item.text("call_id")})
    else:
        raise Refusal(400, f"{item.where}: items of the type {kind!r:.60} are not served", param=item.where)
    return item.done()


def _anthropic_message(one: Fields, messages: list[Message]) -> None:
    if (role := one.take("role")) not in ("user", "assistant"):
        raise Refusal(400, f"{one.where}.role must be user or assistant", param=one.where)
    content = one.take("content", [])
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    said, calls = "", []
    for block in Fields({"content": blocks}, one.where).objects("content"):
        kind = block.take("type")
        if kind == "text":
            said += block.text("text")
            block.take("citations")
        elif kind == "tool_use" and role == "assistant":
            calls.append(_function(block.where, block.text("name"), block.take("input"), block.text("id")))
        elif kind == "tool_result" and role == "user":
            failed = "error: " if block.flag("is_error") else ""
            text = failed + _texts(f"{block.where}.content", block.take("content"))
            messages.append({"role": "tool", "content": text, "tool_call_id": block.text("tool_use_id")})
        else:
            raise Refusal(400, f"{block.where}: blocks of the type {kind!r:.60} are not served", param=block.where)
        block.take("cache_control")
        block.done()
    one.done()
    if said or calls or not blocks:
        messages.append({"role": role, "content": said} | ({"tool_calls": calls} if calls else {}))


def _id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(12)}"


def _arguments(call: Call) -> str:
    return json.dumps(dict(call.arguments), ensure_ascii=False)


def chat_whole(asked: AgentRequest, reply: Reply) -> dict[str, Any]:
    """A chat completion."""
    message: dict[str, Any] = {
        "role": "assistant",
        "content": reply.text or None if reply.calls else reply.text,
        "refusal": None,
    }
    if reply.calls:
        message["tool_calls"] = _chat_calls(reply)
    choice = {"index": 0, "message": message, "finish_reason": _chat_finish(reply), "logprobs": None}
    head = {"id": _id("chatcmpl"), "object": "chat.completion", "created": int(time.time()), "model": asked.model}
    return head | {"choices": [choice], "usage": _chat_usage(reply)}


def _chat_calls(reply: Reply) -> list[dict[str, Any]]:
    return [
        {"id": id, "type": "function", "function": {"name": call.name, "arguments": _arguments(call)}}
        for id, call in zip(reply.ids, reply.calls, strict=True)
    ]


def _chat_finish(reply: Reply) -> str:
    return "length" if reply.length else "tool_calls" if reply.calls else "stop"


def _chat_usage(reply: Reply) -> dict[str, int]:
    return {"prompt_tokens": reply.read, "completion_tokens": reply.written, "total_tokens": reply.read + reply.written}


def chat_events(asked: AgentRequest, reply: Reply) -> Iterator[tuple[str, Any]]:
    """A chat completion as a stream of chunks."""
    head = {"id": _id("chatcmpl"), "object": "chat.completion.chunk", "created": int(time.time()), "model": asked.model}

    def chunk(delta: dict[str, Any], finish: str | None = None) -> tuple[str, Any]:
        return "", head | {"choices": [{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}]}

    yield chunk({"role": "assistant", "content": ""})
    if reply.text:
        yield chunk({"content": reply.text})
    if reply.calls:
        yield chunk({"tool_calls": [{"index": at, **call} for at, call in enumerate(_chat_calls(reply))]})
    yield chunk({}, _chat_finish(reply))
    if asked.usage:
        yield "", head | {"choices": [], "usage": _chat_usage(reply)}
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
    named = [(call["function"]["name"], json.dumps(call["function"]["arguments"], sort_keys=True)) for call in calls]
    role = {"developer": "system"}.get(str(message["role"]), str(message["role"]))
    return role, "".join(str(message["content"]).split()), tuple(named)

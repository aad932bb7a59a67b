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
from penstock.envs.calls import Call
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
    messages = tuple(_openai_message(f"messages[{at}]", one) for at, one in enumerate(_list(fields, "messages")))
    tools = tuple(_openai_tool(one) for one in fields.take("tools", ()))
    fields.neutral("n", 1)
    fields.neutral("response_format", {"type": "text"})
    fields.neutral("logprobs", False)
    most = fields.take("max_completion_tokens", fields.take("max_tokens"))
    options = Fields(fields.object("stream_options"))
    return _asked(
        fields, AgentRequest(messages, tools, most, fields.texts("stop", STOPS), False, options.flag("include_usage"), "")
    )


def responses_asked(body: dict[str, Any]) -> AgentRequest:
    """A body of ``/v1/responses``, with all of the conversation in ``input``."""
    fields = Fields(body)
    if fields.has("previous_response_id"):
        raise Refusal(400, "previous_response_id: give the conversation in input", param="previous_response_id")
    given = fields.take("input")
    messages: list[Message] = []
    if instructions := fields.text("instructions", ""):
        messages.append({"role": "system", "content": instructions})
    for at, item in enumerate([{"role": "user", "content": given}] if isinstance(given, str) else given or ()):
        _responses_item(f"input[{at}]", item, messages)
    tools = []
    for one in fields.take("tools", ()):
        if not isinstance(one, dict) or one.get("type") != "function":
            raise Refusal(400, "tools: only functions are served", param="tools")
        tools.append(_openai_tool({"type": "function", "function": {k: v for k, v in one.items() if k != "type"}}))
    text = fields.object("text")
    if text.get("format", {"type": "text"}) != {"type": "text"}:
        raise Refusal(400, "text.format: only plain text is served", param="text")
    fields.take("background", False)
    fields.take("stream_options")
    return _asked(fields, AgentRequest(tuple(messages), tuple(tools), fields.take("max_output_tokens"), (), False, True, ""))


def anthropic_asked(body: dict[str, Any]) -> AgentRequest:
    """A body of Anthropic's ``/v1/messages``."""
    fields = Fields(body)
    messages: list[Message] = []
    if system := fields.take("system"):
        messages.append({"role": "system", "content": _texts("system", system)})
    for at, one in enumerate(_list(fields, "messages")):
        _anthropic_message(f"messages[{at}]", one, messages)
    tools = []
    for one in fields.take("tools", ()):
        named = {"name": one.get("name"), "description": one.get("description", ""), "parameters": one.get("input_schema", {})}
        tools.append(_openai_tool({"type": "function", "function": named}))
    most, stop = fields.take("max_tokens"), fields.texts("stop_sequences", STOPS)
    return _asked(fields, AgentRequest(tuple(messages), tuple(tools), most, stop, False, True, ""))


def _asked(fields: Fields, asked: AgentRequest) -> AgentRequest:
    """With the fields that all APIs have; those that nobody has read are refused."""
    for name in TRAINERS:
        fields.take(name)
    most = asked.most
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
        raise Refusal(400, f"max_tokens={most!r}; give a whole number from 1", param="max_tokens")
    if not asked.messages:
        raise Refusal(400, "a call needs messages", param="messages")
    found = replace(asked, stream=fields.flag("stream"), model=fields.text("model", "policy"))
    fields.done()
    return found


def _list(fields: Fields, name: str) -> list[Any]:
    value = fields.take(name)
    if not isinstance(value, list) or not value:
        raise Refusal(400, f'{name} must be a list like [{{"role": "user", "content": "…"}}]', param=name)
    return value


def _openai_tool(one: Any) -> dict[str, Any]:
    named = one.get("function") if isinstance(one, dict) and one.get("type") == "function" else None
    if not isinstance(named, dict) or not isinstance(named.get("name"), str):
        raise Refusal(400, 'a tool is {"type": "function", "function": {"name": …, "parameters": …}}', param="tools")
    return {"type": "function", "function": {name: value for name, value in named.items() if name != "strict"}}


def _texts(where: str, content: Any) -> str:
    """A text, or parts that are all text, as one."""
    if content is None:
        return ""
    if isinstance(content, list):
        kinds = ("text", "input_text", "output_text")
        if all(isinstance(part, dict) and part.get("type") in kinds and isinstance(part.get("text"), str) for part in content):
            return "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise Refusal(400, f"{where}: an agent's messages hold text alone here", param=where)
    return content


def _function(where: str, name: Any, arguments: Any, id: Any) -> dict[str, Any]:
    try:
        read = json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError as error:
        raise Refusal(400, f"{where}: the arguments of a call are no JSON: {error}", param=where) from error
    return {"id": str(id), "type": "function", "function": {"name": str(name), "arguments": read}}


def _openai_message(where: str, one: Any) -> Message:
    if not isinstance(one, dict) or one.get("role") not in ("system", "developer", "user", "assistant", "tool"):
        raise Refusal(400, f"{where}.role must be system, developer, user, assistant or tool", param=where)
    found: dict[str, Any] = {"role": one["role"], "content": _texts(f"{where}.content", one.get("content"))}
    if one.get("tool_calls"):
        calls = [(call.get("function", {}), call.get("id")) for call in one["tool_calls"]]
        found["tool_calls"] = [_function(where, call.get("name"), call.get("arguments"), id) for call, id in calls]
    if "tool_call_id" in one:
        found["tool_call_id"] = str(one["tool_call_id"])
    return found


def _responses_item(where: str, item: Any, messages: list[Message]) -> None:
    kind = item.get("type", "message") if isinstance(item, dict) else None
    if kind == "message":
        messages.append(_openai_message(where, {"role": item.get("role"), "content": item.get("content")}))
    elif kind == "function_call":
        call = _function(where, item.get("name"), item.get("arguments"), item.get("call_id"))
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": ""})
        messages[-1] = {**messages[-1], "tool_calls": [*messages[-1].get("tool_calls", ()), call]}
    elif kind == "function_call_output":
        said = _texts(where, item.get("output"))
        messages.append({"role": "tool", "content": said, "tool_call_id": str(item.get("call_id"))})
    else:
        raise Refusal(400, f"{where}: items of the type {kind!r} are not served", param=where)


def _anthropic_message(where: str, one: Any, messages: list[Message]) -> None:
    role, content = (one.get("role"), one.get("content")) if isinstance(one, dict) else (None, None)
    if role not in ("user", "assistant"):
        raise Refusal(400, f"{where}.role must be user or assistant", param=where)
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    said, calls = "", []
    for block in blocks:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "text":
            said += str(block.get("text"))
        elif kind == "tool_use" and role == "assistant":
            calls.append(_function(where, block.get("name"), block.get("input"), block.get("id")))
        elif kind == "tool_result" and role == "user":
            text = _texts(where, block.get("content"))
            messages.append({"role": "tool", "content": text, "tool_call_id": str(block.get("tool_use_id"))})
        else:
            raise Refusal(400, f"{where}: blocks of the type {kind!r} are not served", param=where)
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

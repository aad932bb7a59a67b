"""Chat messages as rows hold them: what one may be, and the turns of other layouts as messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.core.errors import DataError

Message = Mapping[str, Any]
Messages = tuple[Message, ...]

ROLES = ("system", "developer", "user", "assistant", "tool", "function", "ipython", "environment")
SPEAKERS = {
    "human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant", "bard": "assistant",
    "model": "assistant", "assistant": "assistant", "system": "system", "observation": "tool", "tool": "tool",
}  # fmt: skip
"""Roles of ShareGPT's turns (``from``) as those of messages."""
KEYS = (
    "role", "content", "name", "tool_calls", "tool_call_id", "weight", "reasoning_content", "reasoning", "thinking",
)  # fmt: skip
"""What a message may hold besides nulls."""
INSTEAD = {
    "from": "ShareGPT's turns lie in a column conversations",
    "value": "ShareGPT's turns lie in a column conversations",
    "function_call": 'write "tool_calls": [{"type": "function", "function": {"name": …, "arguments": …}}]',
    "train": 'write "weight": 1 or 0, as OpenAI does',
    "training": 'write "weight": 1 or 0, as OpenAI does',
    "audio": "sounds lie in a column of their own (docs/vision.md)",
    "image": "pictures lie in a column of their own (docs/vision.md)",
    "images": "pictures lie in a column of their own (docs/vision.md)",
}
"""What to do with keys of other layouts."""


def assistant(content: str) -> Message:
    """A turn of the assistant's."""
    return {"role": "assistant", "content": content}


def is_messages(value: Any) -> bool:
    """Whether a value means to be messages rather than a text: a list that holds a mapping."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes) and any(isinstance(one, Mapping) for one in value)


def read_messages(value: Any, where: str) -> Messages:
    """Check a list of messages: mappings with the texts ``role`` and ``content``. One with ``tool_calls`` needs no content; a
    content in parts of text is their text. Nulls are left out.

    Raises:
        DataError: names the message, what it holds, and what it should.
    """
    if not isinstance(value, Sequence) or isinstance(value, str | bytes) or not value:
        raise DataError(f'{where}: messages must be a list like [{{"role": "user", "content": "…"}}], not {value!r:.80}')
    return tuple(_message(message, f"{where}: messages[{place}]") for place, message in enumerate(value))


def _message(given: Any, where: str) -> Message:
    if not isinstance(given, Mapping):
        raise DataError(f"{where} needs the texts role and content, got {given!r:.80}")
    message = {key: value for key, value in given.items() if value is not None}
    calls, said = message.get("tool_calls"), message.get("content")
    if isinstance(said, list | tuple):
        said = message["content"] = _text_of_parts(said, where)
    if not isinstance(message.get("role"), str) or not (isinstance(said, str) or (said is None and calls)):
        raise DataError(f"{where} needs the texts role and content, got {given!r:.80}")
    if message["role"] not in ROLES:
        better = SPEAKERS.get(message["role"], "")
        raise DataError(f'{where}: no role is called "{message["role"]:.40}"; '
                        + (f'write "{better}"' if better else f"write one of {', '.join(ROLES)}"))  # fmt: skip
    if unknown := [key for key in message if key not in KEYS]:
        what = INSTEAD.get(unknown[0], f"drop it; a message may hold {', '.join(KEYS)}")
        raise DataError(f'{where}: nobody reads "{unknown[0]}" of a message; {what}')
    if "weight" in message and (message["weight"] not in (0, 1) or message["role"] != "assistant"):
        raise DataError(f"{where}: weight={message['weight']!r:.40} of the role {message['role']}; a turn of the assistant's "
                        "has 1 (it is learned) or 0")  # fmt: skip
    if calls is not None:
        message["tool_calls"] = _calls(calls, where)
    return message


def _text_of_parts(parts: Sequence[Any], where: str) -> str:
    """The text of a content in parts of text."""
    for part in parts:
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise DataError(f'{where}: content has a part of the type "{kind}"; only {{"type": "text", "text": …}} is read '
                            "here, and media lie in columns of their own (docs/vision.md)")  # fmt: skip
    return "".join(part["text"] for part in parts)


def _calls(calls: Any, where: str) -> list[Any]:
    """Tool calls, each a mapping with a function's name; bare functions get their wrapping."""
    found = []
    for call in calls if isinstance(calls, list | tuple) else [calls]:
        function = call.get("function", call) if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise DataError(
                f'{where}: a tool call is {{"type": "function", "function": {{"name": …, "arguments": …}}}}, not {call!r:.80}'
            )
        found.append(call if "function" in call else {"type": "function", "function": dict(call)})
    return found


def spoken(turns: Any, where: str, system: Any = None) -> list[Message]:
    """ShareGPT's turns (``from``, ``value``) as messages; ``function_call`` is a call of the assistant's in JSON.

    Raises:
        DataError: a turn has other keys or an unknown speaker.
    """
    found: list[Message] = [{"role": "system", "content": system}] if system else []
    for place, turn in enumerate(turns):
        at = f"{where}: conversations[{place}]"
        if isinstance(turn, Mapping) and "role" in turn:
            found.append(turn)
            continue
        who, said = (turn.get("from"), turn.get("value")) if isinstance(turn, Mapping) else (None, None)
        if not isinstance(said, str) or who not in (*SPEAKERS, "function_call"):
            raise DataError(f'{at} is {turn!r:.80}; ShareGPT has {{"from": "human" or "gpt", "value": "…"}} '
                            f"(also {', '.join((*SPEAKERS, 'function_call'))})")  # fmt: skip
        extra = {"weight": turn["weight"]} if turn.get("weight") is not None else {}
        if unread := [key for key, value in turn.items() if key not in ("from", "value", "weight") and value is not None]:
            raise DataError(f'{at}: nobody reads "{unread[0]}" of a turn; {INSTEAD.get(unread[0], "drop it")}')
        if who == "function_call":
            found.append({"role": "assistant", "tool_calls": _spoken_calls(said, at), **extra})
        else:
            found.append({"role": SPEAKERS[who], "content": said, **extra})
    return found


def _spoken_calls(said: str, where: str) -> list[Any]:
    """The calls that a turn ``function_call`` holds in JSON, one or a list."""
    try:
        calls = json.loads(said)
    except ValueError as error:
        raise DataError(f"{where}: a function_call holds JSON with name and arguments ({error})") from error
    return _calls(calls, where)

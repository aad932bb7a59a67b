"""Chat messages in the form of OpenAI's API. Rows, requests, what environments say and what chat templates are given: all are
read here, and what is no message is refused by its place.

SOURCE: https://platform.openai.com/docs/api-reference/chat/create
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from penstock.core.errors import DataError

Message = Mapping[str, Any]
Messages = tuple[Message, ...]

OPENAI_ROLES = ("system", "developer", "user", "assistant", "tool")
ROLES = (*OPENAI_ROLES, "function", "ipython", "environment")
OPENAI_KEYS = ("role", "content", "name", "tool_calls", "tool_call_id")
THOUGHTS = ("reasoning_content", "reasoning", "thinking")
"""Keys for what was thought before the content."""
KEYS = (*OPENAI_KEYS, "weight", *THOUGHTS)
"""What a message of a row may hold; ``weight`` is that of OpenAI's fine-tuning format."""
SPEAKERS = {
    "human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant", "bard": "assistant",
    "model": "assistant", "assistant": "assistant", "system": "system", "observation": "tool", "tool": "tool",
}  # fmt: skip
"""What other formats call the roles."""
INSTEAD = {
    "from value": "ShareGPT's turns lie in a column conversations",
    "function_call": 'write "tool_calls": [{"type": "function", "function": {"name": …, "arguments": …}}]',
    "train training": 'write "weight": 1 or 0, as OpenAI does',
    "audio image images": "media lie in columns of their own (docs/vision.md)",
}
"""What to do with keys of other formats."""
TEXTS = ("text", "input_text", "output_text")
"""Types of a part of text, of chat completions and of OpenAI's newer API."""
NOTES = ("annotations", "citations", "logprobs", "cache_control")
"""Keys of a part of text that are no part of what it says."""


class MessageError(DataError):
    """Something is no message; ``where`` is its place."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(where + problem)
        self.where = where


def assistant(content: str) -> Message:
    """A turn of the assistant's."""
    return {"role": "assistant", "content": content}


SPELLED = re.compile(r"""\s*\[\s*\{\s*(['"])(?:role|content|from|value)\1\s*:""")
"""Where messages begin that somebody made a text of."""


def refuse_spelled(text: str, where: str) -> str:
    """The text. Raises DataError where it is messages that a table or an export made a text of."""
    if SPELLED.match(text):
        raise DataError(f"{where} is messages spelled as a text ({text:.40}…); parse it by json.loads (or ast.literal_eval, if "
                        "Python wrote it), and keep the rows in JSON lines or Parquet")  # fmt: skip
    return text


def is_messages(value: Any) -> bool:
    """Whether a value means to be messages rather than a text: a list that holds a mapping."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes) and any(isinstance(one, Mapping) for one in value)


def text_alone(part: Any, where: str) -> str:
    """What becomes of a part that is no text where only texts are read."""
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    raise MessageError(where, f' has the type "{kind}"; here a content is a text alone, whole or in parts {{"type": "text", '
                              '"text": …}, and media of rows lie in columns of their own (docs/vision.md)')  # fmt: skip


def read_messages(
    value: Any, where: str, roles: Collection[str] = ROLES, keys: Collection[str] = KEYS,
    part: Callable[[Any, str], str] = text_alone,
) -> Messages:  # fmt: skip
    """A list of messages (``where`` it is, for errors), each as :func:`read_message` has it.

    Raises:
        MessageError: it is no such list; names the message, what it holds and what it should.
    """
    if not isinstance(value, Sequence) or isinstance(value, str | bytes) or not value:
        raise MessageError(where, f' must be a list like [{{"role": "user", "content": "…"}}], not {value!r:.80}')
    return tuple(read_message(message, f"{where}[{place}]", roles, keys, part) for place, message in enumerate(value))


def read_message(
    given: Any, where: str, roles: Collection[str] = (), keys: Collection[str] = (),
    part: Callable[[Any, str], str] = text_alone,
) -> dict[str, Any]:  # fmt: skip
    """A message: its content as one text, its calls checked, and nothing that is null or empty but the content.

    Args:
        roles: those that it may have; none: any.
        keys: what it may hold; none: anything, where a chat template decides.
        part: gives the text in the place of a part of the content that is no text.

    Raises:
        MessageError: it is none.
    """
    if not isinstance(given, Mapping):
        raise MessageError(where, f" must be a mapping with role and content, not {given!r:.80}")
    empty: tuple[Any, ...] = (None, "", [], (), {})
    message = {key: value for key, value in given.items() if value not in empty or (key == "content" and value is not None)}
    role, calls = message.get("role"), message.get("tool_calls", ())
    if not isinstance(role, str) or (roles and role not in roles):
        better = f'; write "{SPEAKERS[role]}"' if isinstance(role, str) and role in SPEAKERS else ""
        wanted = f"one of {', '.join(roles)}" if roles else "a text"
        raise MessageError(f"{where}.role", f": a turn has a role, and a role must be {wanted}, not {role!r:.40}{better}")
    if unknown := [key for key in message if keys and key not in keys]:
        other = [what for names, what in INSTEAD.items() if unknown[0] in names.split()]
        what = other[0] if other else f"drop it; a message may hold {', '.join(keys)}"
        raise MessageError(where, f': nobody reads "{unknown[0]}" of a message; {what}')
    for key in ("name", "tool_call_id", *THOUGHTS):
        if not isinstance(message.get(key, ""), str):
            raise MessageError(f"{where}.{key}", f" is {message[key]!r:.40}; give a text")
    if "weight" in message and message["weight"] not in ((0, 1) if role == "assistant" else (0,)):
        raise MessageError(where, f": weight={message['weight']!r:.40} of the role {role}; a turn of the assistant's has 1 (it "
                                  "is learned) or 0, and the others are never learned")  # fmt: skip
    if "content" in message or not (calls or message.keys() & {*THOUGHTS}):
        message["content"] = read_content(message.get("content"), f"{where}.content", part)
    if calls:
        if role != "assistant" or not isinstance(calls, list | tuple):
            problem = f": one with tool_calls is the assistant's, and they are a list, not {calls!r:.40} of the role {role}"
            raise MessageError(f"{where}.tool_calls", problem)
        message["tool_calls"] = [read_call(call, f"{where}.tool_calls[{place}]") for place, call in enumerate(calls)]
    return message


def read_content(content: Any, where: str, part: Callable[[Any, str], str] = text_alone) -> str:
    """A content as one text: a text, or parts ``{"type": "text", "text": …}`` and others that ``part`` gives a text for."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise MessageError(where, f': a content is a text, or a list of {{"type": "text", "text": …}}, not {content!r:.60}')
    return "".join(_text_of(one, f"{where}[{place}]", part) for place, one in enumerate(content))


def _text_of(given: Any, where: str, part: Callable[[Any, str], str]) -> str:
    if isinstance(given, Mapping) and given.get("type") in TEXTS and isinstance(given.get("text"), str):
        if unread := [key for key, value in given.items() if key not in ("type", "text", *NOTES) and value is not None]:
            raise MessageError(where, f': nobody reads "{unread[0]}" of a part of text; drop it')
        return str(given["text"])
    return part(given, where)


def read_call(call: Any, where: str) -> dict[str, Any]:
    """A call of a function, or its function alone. Its arguments stay as they are given: an object, or the JSON of one."""
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        example = '{"type": "function", "function": {"name": …, "arguments": {…}}}'
        raise MessageError(where, f": a call is {example}, not {call!r:.80}")
    outer, inner = ({key: value for key, value in one.items() if value is not None} for one in (call, function))
    known = ("type", "id", "index", "function", "name", "arguments")
    unknown = [key for key in (*outer, *inner) if key not in known]
    if unknown or outer.get("type", "function") != "function":
        what = f'"{unknown[0]}"' if unknown else f"type {outer['type']!r:.40}"
        raise MessageError(where, f": nobody reads {what} of a call; only functions are called, by name and arguments")
    if not isinstance(outer.get("id", ""), str):
        raise MessageError(f"{where}.id", f" is {outer['id']!r:.40}; give a text")
    named = {key: inner[key] for key in ("name", "arguments") if key in inner}
    found = {"type": "function", **{key: outer[key] for key in outer if key in known[:4]}, "function": named}
    arguments_of(found, where)
    return found


def arguments_of(call: Message, where: str = "a call") -> dict[str, Any]:
    """The arguments of a call by name. Raises MessageError where they are none."""
    given = call["function"].get("arguments")
    try:
        read = strict_json(given.strip() or "null") if isinstance(given, str) else given
    except (ValueError, RecursionError) as error:
        raise MessageError(where, f": the arguments are no JSON: {error}") from error
    if not isinstance(read, Mapping | None):
        raise MessageError(where, f": the arguments of a call are an object by name, not {given!r:.60}")
    return dict(read or {})


def strict_json(text: str, **options: Any) -> Any:
    """The value of a JSON text, in which NaN and infinities, which Python would read, are none. Raises ValueError."""
    return json.loads(text, parse_constant=_no_constant, **options)


def _no_constant(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")

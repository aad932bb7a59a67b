"""Tool calls in what a policy wrote, in the formats that model families publish; what cannot be read is said in words."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.core.errors import SpecError
from penstock.core.messages import strict_json

LONGEST = 1 << 16
"""Characters of a call that is read."""


@dataclass(frozen=True)
class Call:
    """A tool is asked for."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Parsed:
    """The calls of a turn in order, in words what of it should have been calls and is none, and what comes before them."""

    calls: tuple[Call, ...] = ()
    problems: tuple[str, ...] = field(default=())
    words: str = field(default="", compare=False)


_HERMES = re.compile(r"<tool_call>(.*?)(</tool_call>|\Z)", re.DOTALL)
_FENCE = re.compile(r"\A\s*```(?:json)?\s*(.*?)\s*```\s*\Z", re.DOTALL)
_MISTRAL_NAMED = re.compile(r"\s*([\w.-]+)\s*(?:\[ARGS\])?\s*(?=\{)")


def _hermes(raw: str) -> Iterator[str]:
    """Hermes and Qwen: each call is ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``."""
    for body, end in _HERMES.findall(raw):
        yield body if end else body + " </tool_call> is missing"


def _llama(raw: str) -> Iterator[str]:
    """Llama-3: the whole turn is ``{"name": …, "parameters": {…}}``, after ``<|python_tag|>`` or bare; several with ``;``."""
    _, mark, rest = raw.partition("<|python_tag|>")
    body = rest if mark else raw
    if not mark and not body.lstrip().startswith("{"):
        return
    yield from _objects(body, ";")


def _mistral(raw: str) -> Iterator[str]:
    """Mistral: ``[TOOL_CALLS]`` and a list, or since 2025 ``[TOOL_CALLS]name{…}`` for each call."""
    for body in raw.split("[TOOL_CALLS]")[1:]:
        if named := _MISTRAL_NAMED.match(body):
            yield f'{{"name": {json.dumps(named[1])}, "arguments": {body[named.end() :]}}}'
        else:
            yield body


def _json(raw: str) -> Iterator[str]:
    """A turn that is one JSON object or list and nothing else, in a fence or not."""
    fenced = _FENCE.match(raw)
    body = fenced[1] if fenced else raw
    if body.lstrip()[:1] in ("{", "["):
        yield body


def _objects(text: str, between: str) -> Iterator[str]:
    """Pieces of JSON with a sign between them; from what cannot be read on, the rest is one piece."""
    decoder, at = json.JSONDecoder(), 0
    while text[at:].strip():
        begin = at + len(text[at:]) - len(text[at:].lstrip())
        try:
            _, at = decoder.raw_decode(text, begin)
        except (ValueError, RecursionError):
            yield text[begin:]
            return
        yield text[begin:at]
        rest = text[at:].lstrip()
        at = len(text) - len(rest.removeprefix(between))
        if rest and not rest.startswith(between):
            yield rest
            return


FORMATS: dict[str, Callable[[str], Iterator[str]]] = {"hermes": _hermes, "llama": _llama, "mistral": _mistral, "json": _json}
"""What finds the bodies of calls, by format."""


_BEGUN = r"(?:\A|(?<=</think>)|(?<=\[/THINK\]))\s*"
_CALL = {
    "hermes": r"<tool_call>.*?(?:</tool_call>|\Z)", "mistral": r"\[TOOL_CALLS\].*",
    "llama": rf"(?:<\|python_tag\|>|{_BEGUN}\{{).*", "json": rf"{_BEGUN}(?:```|[\[{{]).*",
}  # fmt: skip
"""What is a call, whatever it holds, by format."""


def aloud(raw: str, calls: str, thinking: bool = False) -> str:
    """A turn with spaces in the place of what was thought in it, which calls nothing; ``thinking``: it begins in a thought."""
    opened = r"\A.*?(?:</think>|\[/THINK\]|\Z)|" if thinking else ""
    thought = r"<think>.*?(?:</think>|\Z)|\[THINK\].*?(?:\[/THINK\]|\Z)"
    found = re.compile(rf"{opened}({_CALL[calls]})|{thought}", re.DOTALL)
    return found.sub(lambda piece: piece[1] or " " * len(piece[0]), raw)


def parsed(raw: str, calls: str, thinking: bool = False) -> Parsed:
    """The calls of a turn, but for those in its thoughts. Raises SpecError for a format that is not known; never for what the
    turn says."""
    if calls not in FORMATS:
        raise SpecError(f'calls="{calls}" is no format of tool calls; known are {", ".join(FORMATS)}')
    found: list[Call] = []
    problems: list[str] = []
    said = aloud(raw, calls, thinking)
    for body in FORMATS[calls](said):
        try:
            found += [_call(one) for one in _values(body)]
        except (ValueError, RecursionError) as error:
            problems.append(f"this is no call: {error or 'too deep'}")
    called = re.search(_CALL[calls], said, re.DOTALL)
    return Parsed(tuple(found), tuple(problems), (raw[: called.start()] if called else raw).strip())


def _values(body: str) -> list[Any]:
    if len(body) > LONGEST:
        raise ValueError(f"{len(body)} characters are more than the {LONGEST} that are read")
    value = strict_json(body)
    return value if isinstance(value, list) else [value]


def _call(value: Any) -> Call:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise ValueError('a call is {"name": …, "arguments": {…}}')
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):  # as the OpenAI API writes them
        arguments = strict_json(arguments)
    if not isinstance(arguments, dict):
        raise ValueError("arguments are a JSON object")
    return Call(value["name"], arguments)

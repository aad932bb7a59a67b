"""Templates over a row's columns. Chat messages are built here; a tokenizer turns them into tokens elsewhere."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import numbers
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2
import jinja2.sandbox
from jinja2 import nodes

from penstock.config.parts import TEMPLATE_OWN
from penstock.config.run import DataSpec
from penstock.core.errors import DataError, blame
from penstock.core.messages import Message, Messages, assistant, is_messages, read_messages, refuse_spelled
from penstock.core.types import Prompt, PromptKey
from penstock.data.layouts import advice, arranged
from penstock.data.rows import DataRow

ARGUMENTS = "chat_template_kwargs"
"""The column with what a chat template is given besides the messages."""


@dataclass(frozen=True)
class Answered:
    """A prompt and what may follow it by name: a ``completion``, or ``chosen`` and ``rejected``."""

    prompt: Prompt
    answers: Mapping[str, Message]
    conversation: Messages = ()
    """All turns of an example that is one; no completion is left where the last has weight 0."""

    @property
    def turns(self) -> list[tuple[Messages, Message]]:
        """Each turn of the assistant's in the conversation but the very first, after what was said before. Those of weight 0
        are not to be learned, as in OpenAI's format."""
        said = tuple(bare(message) for message in self.conversation)
        learned = [turn["role"] == "assistant" and turn.get("weight", 1) != 0 for turn in self.conversation]
        return [(said[:n], turn) for n, turn in enumerate(said) if n and learned[n]]


def bare(message: Message) -> Message:
    """A message as a chat template reads it."""
    return {key: value for key, value in message.items() if key != "weight"}


def text_of(value: Any) -> Any:
    """What a template may show: a text or a finite number. Anything else has no text that everybody would agree on."""
    if isinstance(value, str | jinja2.Undefined):
        return value
    if isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value):
        return value
    if value is None:
        raise jinja2.TemplateRuntimeError("a value is null, which has no text")
    kind = "a list" if isinstance(value, list | tuple) else f"of the type {type(value).__name__}"
    raise jinja2.TemplateRuntimeError(f"a value is {kind} ({value!r:.60}), which is no text; choose or join what is to be read")


OF_TEXTS = (
    "capitalize", "center", "e", "escape", "forceescape", "indent", "lower", "replace", "safe", "string", "striptags", "title",
    "trim", "truncate", "upper", "urlencode", "wordcount", "wordwrap", "format",
)  # fmt: skip
"""Jinja's filters that make a text of whatever they are given."""


def _strict(known: Any, given_texts: bool) -> Any:
    """A filter that takes texts and numbers alone; ``given_texts``: as its other arguments too."""
    first = int(hasattr(known, "jinja_pass_arg"))

    @functools.wraps(known)
    def filtered(*given: Any, **named: Any) -> Any:
        others = tuple(map(text_of, given[first + 1 :])) if given_texts else given[first + 1 :]
        return known(*given[:first], text_of(given[first]), *others, **named)

    return filtered


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Jinja's sandbox, in which whatever becomes part of a text must be a text or a number itself: what ``~`` and ``%`` put
    together, and what a filter is given."""

    intercepted_binops = frozenset(["%"])

    def __init__(self) -> None:
        super().__init__(undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False, finalize=text_of)
        # Without jinja's own globals a missing column called "dict" or "range" is an error like any other.
        self.globals.clear()
        self.filters |= {name: _strict(self.filters[name], name in ("replace", "format")) for name in OF_TEXTS}
        joined = self.filters["join"]

        @functools.wraps(joined)
        def join(context: Any, value: Any, separator: str = "", attribute: Any = None) -> Any:
            return joined(context, value if attribute is not None else [text_of(one) for one in value], separator, attribute)

        self.filters |= {"join": join, "text_of": text_of}

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        for value in right.values() if isinstance(right, Mapping) else right if isinstance(right, tuple) else (right,):
            text_of(value)
        return super().call_binop(context, operator, left, right)

    def joined(self, text: str) -> jinja2.Template:
        tree = self.parse(text)
        for node in tree.find_all(nodes.Concat):
            node.nodes = [nodes.Filter(part, "text_of", [], [], None, None, lineno=part.lineno) for part in node.nodes]
        return self.from_string(tree)


class Template:
    """One compiled template, sandboxed, which refuses columns that are not there and values that are null."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        named = re.fullmatch(r"\s*\{\{\s*(\w+)\s*\}\}\s*", text)
        self.column = named.group(1) if named else ""
        """The column that it names and nothing else, if it does."""
        self._constant = "{{" not in text and "{%" not in text
        try:
            self._compiled = _Environment().joined(text)
        except jinja2.TemplateSyntaxError as error:
            raise DataError(f'template {name} "{text}": line {error.lineno}: {error.message}') from error

    def __call__(self, row: DataRow, where: str) -> str:
        """The row's text; ``where`` names the row in errors.

        Raises:
            DataError: an undefined column or a failing expression; names the template, the row and the columns there are.
        """
        if self._constant and (meant := [name for name in row if name == self.text.strip() or f"{{{name}}}" in self.text]):
            raise DataError(f'template {self.name} "{self.text}" on {where}: {meant[0]} is a column, which a template shows by '
                            f"{{{{ {meant[0]} }}}}")  # fmt: skip
        try:
            return self._compiled.render(row)
        except Exception as error:
            raise DataError(
                f'template {self.name} "{self.text}" on {where}: {error}; columns there are: {", ".join(map(str, row))}'
                + (advice(row) if isinstance(error, jinja2.UndefinedError) else "")
            ) from error


class Renderer:
    """Makes prompts, examples and pairs out of rows, as a data spec says.

    Messages in a column that a template names alone are messages, not their text. A row of a published layout is read as its
    authors mean it, unless the spec has templates of its own.
    """

    def __init__(self, spec: DataSpec) -> None:
        self.chat, self._arguments = spec.template_arguments is not None, spec.template_arguments or {}
        names = ("prompt", "completion", "chosen", "rejected")
        self._templates = {name: Template(name, getattr(spec, name)) for name in names}
        self._arranges = all(template.column == name for name, template in self._templates.items())

    def _arranged(self, row: DataRow, where: str) -> DataRow:
        return arranged(row, self.chat, where) if self._arranges else row

    def _said(self, name: str, row: DataRow, where: str) -> str | Messages:
        template = self._templates[name]
        value = row.get(template.column) if template.column else None
        if is_messages(value):
            return read_messages(value, f"{where}: messages")
        return template(row, where) if not isinstance(value, str) else refuse_spelled(value, f"{where}: {template.column}")

    def _messages(self, row: DataRow, where: str) -> Messages:
        """The row's column ``messages`` if that is what is to be read: not where templates say what is."""
        wanted = self._arranges and (self.chat or "prompt" not in row)
        return read_messages(row["messages"], f"{where}: messages") if wanted and "messages" in row else ()

    def prompt(self, key: PromptKey, row: DataRow, index: int) -> Prompt:
        """A prompt to be answered: the row's messages, or its text, with ``chat`` as one user turn.

        Raises:
            DataError: a template fails, or the row's messages are not messages or end with the assistant's turn.
        """
        where = f"{key.source} row {index}"
        return self._asked(key, self._arranged(row, where), where)

    def _asked(self, key: PromptKey, row: DataRow, where: str) -> Prompt:
        said = self._messages(row, where) or self._said("prompt", row, where)
        if isinstance(said, str):
            if not self.chat and self._arranges and row.get("tools") not in (None, "", "[]", []):
                raise DataError(f"{where}: nobody reads tools of a bare prompt; set chat=true, or leave the column out")
            if not self.chat:
                return Prompt(key, said, columns=row)
            return self._conversation(key, ({"role": "user", "content": said},), row, where)
        if said[-1]["role"] == "assistant":
            raise DataError(f"{where}: messages end with the assistant's turn, so nothing is left to answer; drop that turn")
        return self._conversation(key, said, row, where)

    def _conversation(self, key: PromptKey, messages: Messages, row: DataRow, where: str) -> Prompt:
        """A prompt in chat; the column of the template's arguments holds those of the spec and of the row."""
        found = template_arguments(row, self._arguments, where)
        said = tuple(bare(message) for message in messages)
        return Prompt(key, said[-1].get("content", ""), said, {**row, ARGUMENTS: found} if found else row)

    def example(self, key: PromptKey, row: DataRow, index: int) -> Answered:
        """A prompt and its completion. Messages that end with the assistant's turn hold both. Of a prompt and a completion that
        are messages each, as TRL has them, the completion's turns alone are learned."""
        where = f"{key.source} row {index}"
        row = self._arranged(row, where)
        messages = self._messages(row, where)
        if self._arranges and "completion" not in row and "messages" in row:
            messages = messages or read_messages(row["messages"], f"{where}: messages")
            if messages[-1]["role"] != "assistant":
                last = messages[-1]["role"]
                raise DataError(f"{where}: messages end with a turn of the role {last}, so nothing is left to learn; drop it")
        if not messages or messages[-1]["role"] != "assistant" or len(messages) == 1:
            prompt, said = self._asked(key, row, where), self._said("completion", row, where)
            if isinstance(said, str):
                return Answered(prompt, {"completion": assistant(said)})
            if said[-1]["role"] != "assistant":
                raise DataError(f"{where}: a completion of messages ends with the assistant's turn")
            asked = prompt.messages or ({"role": "user", "content": prompt.text},)
            before = [{**turn, "weight": 0} if turn["role"] == "assistant" else turn for turn in asked]
            messages = (*before, *said)
        learned = messages[-1].get("weight", 1) != 0
        prompt = self._conversation(key, messages[:-1], row, where)
        return Answered(prompt, {"completion": bare(messages[-1])} if learned else {}, messages)

    def pair(self, key: PromptKey, row: DataRow, index: int) -> Answered:
        """A prompt and its two completions. Where these are conversations, ``messages`` are one of both again and not read."""
        where = f"{key.source} row {index}"
        if "prompt" in row and is_messages(row.get("chosen")) and is_messages(row.get("rejected")):
            row = {name: value for name, value in row.items() if name != "messages"}
        row = self._arranged(row, where)
        prompt = self._asked(key, row, where)
        return Answered(prompt, {name: self._answer(name, prompt, row, where) for name in ("chosen", "rejected")})

    def _answer(self, name: str, prompt: Prompt, row: DataRow, where: str) -> Message:
        said = self._said(name, row, where)
        if isinstance(said, str):
            return assistant(said)
        if len(said) != 1 or said[0]["role"] != "assistant" or not prompt.messages:
            raise DataError(f"{where}: {name} has {len(said)} messages; give the assistant's turn alone, after a "
                            "prompt of messages, or the whole conversation in both answers")  # fmt: skip
        return bare(said[0])

    def texts(self, row: DataRow) -> Iterator[str]:
        """Every text that the row's columns allow, to fit a tokenizer to; a template whose columns are missing gives none."""
        row = self._arranged(row, "a row")
        yield from (message["content"] for message in self._messages(row, "a row") if "content" in message)
        for name in self._templates:
            with contextlib.suppress(DataError):
                said = self._said(name, row, "a row")
                yield from [said] if isinstance(said, str) else [turn["content"] for turn in said if "content" in turn]
        if isinstance(row.get("steps"), list | tuple):  # of a process reward model
            yield from (step for step in row["steps"] if isinstance(step, str))


def template_arguments(row: DataRow, given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """What a chat template is given besides the messages: a spec's, the row's own, its ``tools`` (a list or JSON), and verl's
    ``enable_thinking``.

    Raises:
        DataError: the row's are no arguments, are set by us, or are tools by another name.
    """
    own, tools = row.get(ARGUMENTS) or {}, row.get("tools")
    with blame(DataError, f"{where}: tools"):
        tools = json.loads(tools) if isinstance(tools, str) and tools else tools
    if not isinstance(own, Mapping) or not isinstance(tools or [], Sequence) or TEMPLATE_OWN & own.keys():
        raise DataError(f"{where}: {ARGUMENTS} must be a mapping without {', '.join(sorted(TEMPLATE_OWN))}, tools a list")
    if misnamed := [name for name in ("tool_defs", "tool_schemas", "functions") if row.get(name) and not tools]:
        raise DataError(f"{where}: nobody reads {misnamed[0]}, so the model would not see its tools; call the column tools")
    own = {name: value for name, value in own.items() if value is not None}  # which a table puts where other rows have one
    if isinstance(row.get("enable_thinking"), bool):
        own = {"enable_thinking": row["enable_thinking"], **own}
    return {**given, **own, **({"tools": list(tools)} if tools else {})}

"""Templates over a row's columns. Chat messages are built here; a tokenizer turns them into tokens elsewhere."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2
import jinja2.sandbox

from penstock.config.parts import TEMPLATE_OWN
from penstock.config.run import DataSpec
from penstock.core.errors import DataError, blame
from penstock.core.types import Prompt, PromptKey
from penstock.data.rows import DataRow

Message = Mapping[str, Any]
Messages = tuple[Message, ...]
ARGUMENTS = "chat_template_kwargs"
"""The column with what a chat template is given besides the messages."""


def assistant(content: str) -> Message:
    """A turn of the assistant's."""
    return {"role": "assistant", "content": content}


@dataclass(frozen=True)
class Example:
    """A prompt and the text that should follow it, the last turn of a ``conversation`` if there is one."""

    prompt: Prompt
    completion: str
    conversation: Messages = ()

    @property
    def answers(self) -> Mapping[str, Message]:
        """What should follow the prompt, by name."""
        return {"completion": self.conversation[-1] if self.conversation else assistant(self.completion)}

    @property
    def turns(self) -> list[tuple[Messages, Message]]:
        """Each turn of the assistant's in the conversation but the very first, after what was said before."""
        said = self.conversation
        return [(said[:n], turn) for n, turn in enumerate(said) if n and turn["role"] == "assistant"]


@dataclass(frozen=True)
class Pair:
    """A prompt and two texts that may follow it, the preferred one first."""

    prompt: Prompt
    chosen: str
    rejected: str

    @property
    def answers(self) -> Mapping[str, Message]:
        """What may follow the prompt, by name."""
        return {"chosen": assistant(self.chosen), "rejected": assistant(self.rejected)}


def _refuse_null(value: Any) -> Any:
    if value is None:
        raise jinja2.TemplateRuntimeError("a value is null, which has no text")
    return value


def _environment() -> jinja2.Environment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False, finalize=_refuse_null
    )
    # Without jinja's own globals a missing column called "dict" or "range" is an error like any other.
    environment.globals.clear()
    return environment


class Template:
    """One compiled template, sandboxed, which refuses columns that are not there and values that are null."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        try:
            self._compiled = _environment().from_string(text)
        except jinja2.TemplateSyntaxError as error:
            raise DataError(f'template {name} "{text}": line {error.lineno}: {error.message}') from error

    def __call__(self, row: DataRow, where: str) -> str:
        """The row's text; ``where`` names the row in errors.

        Raises:
            DataError: an undefined column or a failing expression; names the template, the row and the columns there are.
        """
        try:
            return self._compiled.render(row)
        except Exception as error:
            raise DataError(
                f'template {self.name} "{self.text}" on {where}: {error}; columns there are: {", ".join(map(str, row))}'
            ) from error


class Renderer:
    """Makes prompts, examples and pairs out of rows, as a data spec says."""

    def __init__(self, spec: DataSpec) -> None:
        self.chat, self._arguments = spec.template_arguments is not None, spec.template_arguments or {}
        self._prompt = Template("prompt", spec.prompt)
        self._completion = Template("completion", spec.completion)
        self._chosen = Template("chosen", spec.chosen)
        self._rejected = Template("rejected", spec.rejected)

    def prompt(self, key: PromptKey, row: DataRow, index: int) -> Prompt:
        """A prompt to be answered. With ``chat`` its messages are the row's, or its text as one user turn.

        Raises:
            DataError: a template fails, or the row's messages are not messages or end with the assistant's turn.
        """
        where = f"{key.source} row {index}"
        if not (self.chat and "messages" in row):
            text = self._prompt(row, where)
            if not self.chat:
                return Prompt(key, text, columns=row)
            return self._conversation(key, ({"role": "user", "content": text},), row, where)
        messages = read_messages(row["messages"], where)
        if messages[-1]["role"] == "assistant":
            raise DataError(f"{where}: messages end with the assistant's turn, so nothing is left to answer; drop that turn")
        return self._conversation(key, messages, row, where)

    def _conversation(self, key: PromptKey, messages: Messages, row: DataRow, where: str) -> Prompt:
        """A prompt in chat; the column of the template's arguments holds those of the spec and of the row."""
        found = template_arguments(row, self._arguments, where)
        return Prompt(key, messages[-1]["content"] or "", messages, {**row, ARGUMENTS: found} if found else row)

    def example(self, key: PromptKey, row: DataRow, index: int) -> Example:
        """A prompt and its completion. With ``chat``, messages that end with the assistant's turn hold both."""
        where = f"{key.source} row {index}"
        if self.chat and "messages" in row:
            messages = read_messages(row["messages"], where)
            if messages[-1]["role"] == "assistant" and len(messages) > 1:
                prompt = self._conversation(key, messages[:-1], row, where)
                return Example(prompt, messages[-1].get("content") or "", messages)
        return Example(self.prompt(key, row, index), self._completion(row, where))

    def pair(self, key: PromptKey, row: DataRow, index: int) -> Pair:
        """A prompt and its two completions."""
        where = f"{key.source} row {index}"
        return Pair(self.prompt(key, row, index), self._chosen(row, where), self._rejected(row, where))

    def texts(self, row: DataRow) -> Iterator[str]:
        """Every text that the row's columns allow, to fit a tokenizer to; a template whose columns are missing gives none."""
        if self.chat and "messages" in row:
            yield from (message["content"] for message in read_messages(row["messages"], "a row") if message.get("content"))
        for template in (self._prompt, self._completion, self._chosen, self._rejected):
            with contextlib.suppress(DataError):
                yield template(row, "a row")
        if isinstance(row.get("steps"), list | tuple):  # of a process reward model
            yield from (step for step in row["steps"] if isinstance(step, str))


def template_arguments(row: DataRow, given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """What a chat template is given besides the messages: a spec's, the row's own, and the row's ``tools`` (a list or JSON).

    Raises:
        DataError: the row's are no arguments, or are set by us.
    """
    own, tools = row.get(ARGUMENTS) or {}, row.get("tools")
    with blame(DataError, f"{where}: tools"):
        tools = json.loads(tools) if isinstance(tools, str) and tools else tools
    if not isinstance(own, Mapping) or not isinstance(tools or [], Sequence) or TEMPLATE_OWN & own.keys():
        raise DataError(f"{where}: {ARGUMENTS} must be a mapping without {', '.join(sorted(TEMPLATE_OWN))}, tools a list")
    return {**given, **own, **({"tools": list(tools)} if tools else {})}


def read_messages(value: Any, where: str) -> Messages:
    """Check a ``messages`` column: a list of mappings with the texts ``role`` and ``content``; one with ``tool_calls`` needs no
    content."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes) or not value:
        raise DataError(f'{where}: messages must be a list like [{{"role": "user", "content": "…"}}], not {value!r:.80}')
    for place, message in enumerate(value):
        calls = isinstance(message, Mapping) and message.get("tool_calls") and message.get("content") is None
        texts = ("role",) if calls else ("role", "content")
        if not isinstance(message, Mapping) or not all(isinstance(message.get(k), str) for k in texts):
            raise DataError(f"{where}: messages[{place}] needs the texts role and content, got {message!r:.80}")
    return tuple(value)

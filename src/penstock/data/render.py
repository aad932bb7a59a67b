"""Templates over a row's columns. Chat messages are built here; a tokenizer turns them into tokens elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2
import jinja2.sandbox

from penstock.config.run import DataSpec
from penstock.core.errors import DataError
from penstock.core.types import Prompt, PromptKey
from penstock.data.rows import DataRow

Messages = tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class Example:
    """A prompt and the text that should follow it."""

    prompt: Prompt
    completion: str


@dataclass(frozen=True)
class Pair:
    """A prompt and two texts that may follow it, the preferred one first."""

    prompt: Prompt
    chosen: str
    rejected: str


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
        self.chat = spec.chat
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
            return Prompt(key, text, ({"role": "user", "content": text},) if self.chat else (), row)
        messages = read_messages(row["messages"], where)
        if messages[-1]["role"] == "assistant":
            raise DataError(f"{where}: messages end with the assistant's turn, so nothing is left to answer; drop that turn")
        return _conversation(key, messages, row)

    def example(self, key: PromptKey, row: DataRow, index: int) -> Example:
        """A prompt and its completion. With ``chat``, messages that end with the assistant's turn hold both."""
        where = f"{key.source} row {index}"
        if self.chat and "messages" in row:
            messages = read_messages(row["messages"], where)
            if messages[-1]["role"] == "assistant" and len(messages) > 1:
                return Example(_conversation(key, messages[:-1], row), messages[-1]["content"])
        return Example(self.prompt(key, row, index), self._completion(row, where))

    def pair(self, key: PromptKey, row: DataRow, index: int) -> Pair:
        """A prompt and its two completions."""
        where = f"{key.source} row {index}"
        return Pair(self.prompt(key, row, index), self._chosen(row, where), self._rejected(row, where))

    def texts(self, row: DataRow) -> Iterator[str]:
        """Every text that the row's columns allow, to fit a tokenizer to; a template whose columns are missing gives none."""
        if self.chat and "messages" in row:
            yield from (message["content"] for message in read_messages(row["messages"], "a row"))
        for template in (self._prompt, self._completion, self._chosen, self._rejected):
            with contextlib.suppress(DataError):
                yield template(row, "a row")
        if isinstance(row.get("steps"), list | tuple):  # of a process reward model
            yield from (step for step in row["steps"] if isinstance(step, str))


def _conversation(key: PromptKey, messages: Messages, row: DataRow) -> Prompt:
    return Prompt(key, messages[-1]["content"], messages, row)


def read_messages(value: Any, where: str) -> Messages:
    """Check a ``messages`` column: a list of mappings with the texts ``role`` and ``content``."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes) or not value:
        raise DataError(f'{where}: messages must be a list like [{{"role": "user", "content": "…"}}], not {value!r:.80}')
    for place, message in enumerate(value):
        if not isinstance(message, Mapping) or not all(isinstance(message.get(k), str) for k in ("role", "content")):
            raise DataError(f"{where}: messages[{place}] needs the texts role and content, got {message!r:.80}")
    return tuple(value)

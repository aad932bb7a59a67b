"""Prompts and answers as a tokenizer reads them, and as its chat template writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from penstock.core.algorithm import Encoder
from penstock.core.blobs import Blob
from penstock.core.errors import DataError
from penstock.core.messages import Message
from penstock.core.types import IntArray, Prompt
from penstock.data.render import ARGUMENTS, Answered


class Tokenizer(Encoder, Protocol):
    """A tokenizer with a chat template."""

    store: Any
    """Where media are kept, if the model reads any."""

    @property
    def rendered(self) -> Tokenizer:
        """The tokenizer for what the chat template has written."""
        ...

    def showing(self, blobs: Sequence[Blob]) -> Tokenizer:
        """The tokenizer for a prompt with these media."""
        ...

    def media_columns(self, tokens_T: IntArray, blobs: Sequence[Blob]) -> Mapping[str, Any]:
        """Columns of tokens that show these media."""
        ...

    def render_chat(self, messages: Sequence[Message], arguments: Mapping[str, Any]) -> str:
        """A conversation up to where the assistant's answer begins."""
        ...

    def render_answer(self, messages: Sequence[Message], answer: Message, arguments: Mapping[str, Any]) -> str:
        """The assistant's answer to it, with its end token."""
        ...


def arguments_of(prompt: Prompt) -> Mapping[str, Any]:
    """What the chat template is given besides the messages."""
    found: Mapping[str, Any] = prompt.columns.get(ARGUMENTS) or {}
    return found


def prompt_text(prompt: Prompt, text: Tokenizer) -> str:
    """What a prompt reads as: its chat rendering if it has messages, else its text."""
    return text.render_chat(prompt.messages, arguments_of(prompt)) if prompt.messages else prompt.text


def answer_text(prompt: Prompt, answer: Message, text: Tokenizer) -> str:
    """What an answer to a prompt reads as: as the chat template writes it if the prompt has messages, else its content."""
    if prompt.messages:
        return text.render_answer(prompt.messages, answer, arguments_of(prompt))
    return str(answer["content"])


def reader(prompt: Prompt, text: Tokenizer) -> Encoder:
    """The tokenizer for the texts of a prompt: one that adds nothing where a chat template has written them."""
    return (text.rendered if prompt.messages else text).showing(prompt.blobs)


def prompt_tokens(prompt: Prompt, text: Tokenizer) -> IntArray:
    """Tokens of a prompt, which begin as every sequence of the model does, or as its chat template says."""
    return np.asarray(reader(prompt, text).prompt(prompt_text(prompt, text)), np.int32)


def example_texts(item: Prompt | Answered, text: Tokenizer, every_turn: bool = False) -> dict[str, Any]:
    """The columns of a prompt or of an example or pair, and over them its texts by name: ``prompt`` and what follows it; with
    ``every_turn`` the ``turns`` of an example, (prompt, completion) of each of the assistant's in its conversation.

    Raises:
        DataError: its last turn is the one that is read, and has weight 0.
    """
    prompt = item if isinstance(item, Prompt) else item.prompt
    texts, given = dict(prompt.columns), arguments_of(prompt)
    if isinstance(item, Prompt):
        return texts | {"prompt": prompt_text(prompt, text)}
    if every_turn:
        turns = [(text.render_chat(said, given), text.render_answer(said, turn, given)) for said, turn in item.turns]
        texts["turns"] = turns
        if turns:
            return texts | {"prompt": turns[-1][0], "completion": turns[-1][1]}
    if not item.answers:
        raise DataError(f"{prompt.key}: its last turn has weight 0, so nothing is left to learn; leave the row out")
    answers = {name: answer_text(prompt, answer, text) for name, answer in item.answers.items()}
    return texts | {"prompt": prompt_text(prompt, text), **answers}

"""Turns as tokens: a conversation grows by what is new, and what was generated is never tokenized again.

A template is asked for what it writes *after* the policy's turn, in which a mark takes the place of what was generated; that
text alone is encoded and appended. Whether the template leaves earlier turns as they were is not assumed: at each turn its
rendering of the whole conversation is compared with what the policy has read and written, white space aside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from penstock.core.blobs import Blob
from penstock.core.errors import EnvError, ModelError, SpecError
from penstock.core.messages import Message, assistant
from penstock.core.types import IntArray, Prompt
from penstock.data.texts import arguments_of, prompt_tokens, reader
from penstock.envs.spec import History
from penstock.models.chat import GUARD

MARK = "(what was generated)"
"""Takes the place of a turn; no template changes it."""
THOUGHT = "<think>\nfirst\n</think>\n\nsecond"
NO_CHAT = "messages need a prompt that is a chat; set data.chat=true, or say a text"
REWRITTEN = (
    "the chat template changes earlier turns (as Qwen3's leaves out thoughts), so that later ones are conditioned on another "
    'text than was generated; set environment.history="split" (each rendering is trained) or "mask" (the last alone)'
)
UNLISTED = 'the chat template lists no tools for calls="{}"; set calls="hermes", or show_tools=false'


class Rendering:
    """One episode as tokens. Single-use: ``open`` once, then ``extend`` after each turn of the policy."""

    def __init__(self, text: Any, prompt: Prompt, history: History, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        self.text, self.prompt, self.history = text, prompt, history
        self.messages: list[Message] = list(prompt.messages)
        self.arguments = {**arguments_of(prompt), **({"tools": [dict(tool) for tool in tools]} if tools else {})}
        self._read = ""
        """All that the policy has read and written since the last rendering, as text."""

    @property
    def chat(self) -> bool:
        return bool(self.messages)

    def open(self, said: str | Sequence[Message] = (), blobs: Sequence[Blob] = ()) -> IntArray:
        """Tokens of the first request: the prompt, with a text in the place of its (last) message, or with other messages, and
        with what these show besides the prompt's media. Raises EnvError, and ModelError where media and marks do not agree."""
        self.prompt = replace(self.prompt, blobs=(*self.prompt.blobs, *blobs))
        if isinstance(said, str):
            said = [*self.messages[:-1], {**self.messages[-1], "content": said}] if self.chat else said
        if not self.chat and said and not isinstance(said, str):
            raise EnvError(NO_CHAT)
        if not self.chat:
            return prompt_tokens(replace(self.prompt, text=said) if isinstance(said, str) and said else self.prompt, self.text)
        self.messages = [dict(message) for message in said if not isinstance(message, str)] or self.messages
        return self._anew(self._written(self.messages))

    def extend(
        self, tokens_T: IntArray, raw: str, said: str | Sequence[Message], role: str = "user", blobs: Sequence[Blob] = ()
    ) -> IntArray:
        """Tokens of the next request: ``tokens_T`` (read and generated so far) and what was said, which shows ``blobs`` at its
        marks, or the whole conversation rendered anew, where the template has changed earlier turns and ``history`` allows it.

        Raises:
            EnvError: messages in a conversation that is no chat; the template refuses them; or it rewrites earlier turns.
            ModelError: media and marks do not agree, or a text spells a token of media.
        """
        self.prompt = replace(self.prompt, blobs=(*self.prompt.blobs, *blobs))
        if not self.chat:
            if not isinstance(said, str):
                raise EnvError(NO_CHAT)
            return _joined(tokens_T, self.text.showing(blobs).expanded(said) if blobs else self.text.following(said))
        new = [{"role": role, "content": said}] if isinstance(said, str) else [dict(message) for message in said]
        _, mark, tail = self._written([*self.messages, assistant(MARK), *new]).rpartition(MARK)
        if not mark:
            raise EnvError("the chat template leaves the policy's turn out once another has followed; mend chat_template")
        self.messages += [assistant(raw), *new]
        whole, expected = self._written(self.messages), self._read + raw + tail
        if _squashed(whole) != _squashed(expected):
            if self.history == "refuse":
                raise EnvError(REWRITTEN)
            return self._anew(whole)
        self._read = expected
        tokens = self.text.rendered.showing(blobs).expanded(tail) if blobs else reader(self.prompt, self.text).encode(tail)
        ended = len(tokens) > 0 and tokens[0] in self.text.ends and int(tokens_T[-1]) == tokens[0]
        return _joined(tokens_T, tokens[1:] if ended else tokens)

    def _anew(self, written: str) -> IntArray:
        self._read = written
        return np.asarray(reader(self.prompt, self.text).prompt(written), np.int32)

    def _written(self, messages: Sequence[Message]) -> str:
        try:
            return str(self.text.render_chat(messages, self.arguments))
        except ModelError as error:
            raise EnvError(str(error)) from error


def require_kept(text: Any, prompt: Prompt, role: str, tools: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a chat template that writes earlier turns in another way once turns of ``role`` have followed, seen by a
    conversation whose answers hold thoughts, as a reasoning model's do.

    Raises:
        SpecError: it does; the message is what to set.
    """
    probe = Rendering(text, prompt, "refuse", tools)
    tokens_T = probe.open()
    for said in ("third", "fourth"):
        try:
            tokens_T = probe.extend(tokens_T, THOUGHT, said, role)
        except EnvError as error:
            raise SpecError(str(error)) from error


def _joined(tokens_T: IntArray, more: Sequence[int]) -> IntArray:
    return np.concatenate([tokens_T, np.asarray(more, np.int32)]).astype(np.int32)


def _squashed(text: str) -> str:
    return "".join(text.replace(GUARD, "").split())

"""Asking a language model behind an OpenAI-compatible API for one word."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from typing import Any

from penstock.core.errors import GenerationError
from penstock.serve.http_client import HttpClient

LONGEST_ANSWER = 8
"""Tokens that the answer of a model that does not think first may take; one word needs three or fewer."""


class OneWord:
    """Questions to one model, answered greedily. ``chat`` asks through the chat API, else as a text to be continued."""

    def __init__(
        self, url: str, variable: str, seconds: float, model: str = "", chat: bool = True, tokens: int = LONGEST_ANSWER
    ) -> None:
        """See :class:`HttpClient`; ``model`` is the server's name of the model, empty for its first one; ``tokens`` are those
        that its thought and answer may take together."""
        self._talk, self._model, self._chat, self._tokens = HttpClient(url, variable, seconds), model, chat, tokens
        self._finding = asyncio.Lock()

    async def _name(self) -> str:
        """The model's name, found once if none was given; again after a failure, because a server may come up later."""
        async with self._finding:
            if not self._model:
                listed = (await self._talk.get("/v1/models")).get("data")
                if not isinstance(listed, list) or not listed or not isinstance(listed[0], dict):
                    raise GenerationError(f"{self._talk.url}/v1/models: lists no model; name it in model=")
                self._model = str(listed[0].get("id", ""))
            return self._model

    async def ask(self, question: str, shown: Sequence[tuple[str, bytes]] = ()) -> str:
        """The model's answer to a question about images and sounds, (media type, file) each, which come before it.

        Of a model that thinks first, what follows its last ``</think>``; a thought that the server keeps apart
        (``reasoning_content``) is not read. Empty where it gave none.

        Raises what :meth:`HttpClient.post` raises, :class:`AnswerCut`, and GenerationError for an answer that is no text,
        where there are media and it is not asked in a chat, and where the server lists no model and none was named.
        """
        common = {"model": await self._name(), "temperature": 0, "max_tokens": self._tokens}
        if self._chat:
            parts = [*map(_part, shown), {"type": "text", "text": question}]
            body = {**common, "messages": [{"role": "user", "content": parts if shown else question}]}
            found = await self._talk.post("/v1/chat/completions", body)
        elif shown:
            raise GenerationError(f"{self._talk.url}: images and sounds are shown in chats alone; set chat=true")
        else:
            found = await self._talk.post("/v1/completions", {**common, "prompt": question})
        try:
            choice = found["choices"][0]
            said = choice["message"]["content"] if self._chat else choice["text"]
            text = _text(said)
        except (KeyError, IndexError, TypeError) as error:
            raise GenerationError(
                f"{self._talk.url}: an answer without text ({error!r}); is it an OpenAI-compatible API?"
            ) from error
        if choice.get("finish_reason") == "length":
            raise AnswerCut(f"{self._talk.url}: the answer was cut after {self._tokens} tokens; raise the option tokens")
        if "<think>" in text.rpartition("</think>")[2]:
            raise GenerationError(f"{self._talk.url}: an answer whose thought has not ended: {text[-60:]!r}")
        return text.rpartition("</think>")[2].rpartition("[/THINK]")[2]

    async def close(self) -> None:
        await self._talk.close()


class AnswerCut(GenerationError):
    """An answer was longer than the tokens that it may take."""


def _text(said: Any) -> str:
    """The text of a message, of one in parts that of those which are no thought. Raises TypeError for anything else."""
    if said is None or isinstance(said, str):
        return said or ""
    return "".join(part["text"] for part in said if part["type"] not in ("thinking", "reasoning"))


def _part(shown: tuple[str, bytes]) -> dict[str, Any]:
    """A file as a part of a message."""
    kind, content = shown
    encoded = base64.b64encode(content).decode()
    if kind.startswith("audio/"):
        return {"type": "input_audio", "input_audio": {"data": encoded, "format": kind.removeprefix("audio/")}}
    return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{encoded}"}}

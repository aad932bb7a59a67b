"""Asking a language model behind an OpenAI-compatible API for one word."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from penstock.core.errors import GenerationError
from penstock.serve.http_client import HttpClient

LONGEST_ANSWER = 8
"""Tokens that the answer may take; one word needs three or fewer."""


class OneWord:
    """Questions to one model, answered greedily. ``chat`` asks through the chat API, else as a text to be continued."""

    def __init__(self, url: str, variable: str, seconds: float, model: str = "", chat: bool = True) -> None:
        """See :class:`HttpClient`; ``model`` is the server's name of the model, empty for its first one."""
        self._talk, self._model, self._chat = HttpClient(url, variable, seconds), model, chat

    async def open(self) -> None:
        """Find the model's name if none was given.

        Raises:
            GenerationError: the server lists no models.
            ConnectionLost, DeadlinePassed: it does not answer.
        """
        if not self._model:
            listed = (await self._talk.get("/v1/models")).get("data")
            if not isinstance(listed, list) or not listed or not isinstance(listed[0], dict):
                raise GenerationError(f"{self._talk.url}/v1/models: lists no model; name it in model=")
            self._model = str(listed[0].get("id", ""))

    async def ask(self, question: str, shown: Sequence[tuple[str, bytes]] = ()) -> str:
        """The model's answer to a question about images and sounds, (media type, file) each, which come before it.

        Raises what :meth:`HttpClient.post` raises, and GenerationError for an answer without text, or where there are media
        and it is not asked in a chat.
        """
        common = {"model": self._model, "temperature": 0, "max_tokens": LONGEST_ANSWER}
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
            text = choice["message"]["content"] if self._chat else choice["text"]
        except (KeyError, IndexError, TypeError) as error:
            raise GenerationError(
                f"{self._talk.url}: an answer without text ({error!r}); is it an OpenAI-compatible API?"
            ) from error
        return text if isinstance(text, str) else ""

    async def close(self) -> None:
        await self._talk.close()


def _part(shown: tuple[str, bytes]) -> dict[str, Any]:
    """A file as a part of a message."""
    kind, content = shown
    encoded = base64.b64encode(content).decode()
    if kind.startswith("audio/"):
        return {"type": "input_audio", "input_audio": {"data": encoded, "format": kind.removeprefix("audio/")}}
    return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{encoded}"}}

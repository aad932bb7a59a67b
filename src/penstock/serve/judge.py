"""Asking a language model behind an OpenAI-compatible API for one word."""

from __future__ import annotations

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

    async def ask(self, question: str) -> str:
        """The model's answer. Raises what :meth:`HttpClient.post` raises, and GenerationError for an answer without text."""
        common = {"model": self._model, "temperature": 0, "max_tokens": LONGEST_ANSWER}
        if self._chat:
            body = {**common, "messages": [{"role": "user", "content": question}]}
            found = await self._talk.post("/v1/chat/completions", body)
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

"""Requests to an inference server on HTTP, with errors that name the server and what was asked of it."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx

from penstock.core.errors import ConnectionLost, DeadlinePassed, GenerationError, SpecError, WeightError

CONNECT_SECONDS = 10.0


class HttpClient:
    """Connections to one server. ``seconds`` is the longest silence while an answer is due."""

    def __init__(self, url: str, variable: str, seconds: float) -> None:
        """``variable`` names the environment variable with the server's token; empty: it asks for none.

        Raises:
            SpecError: there is no such variable.
        """
        headers = {}
        if variable:
            secret = os.environ.get(variable, "").strip()
            if not secret:
                raise SpecError(f"engine.key={variable!r}: there is no environment variable {variable} with the server's token")
            headers["Authorization"] = f"Bearer {secret}"
        self.url, self.variable, self.seconds = url.rstrip("/"), variable, seconds
        self._client = httpx.AsyncClient(
            base_url=self.url,
            headers=headers,
            timeout=httpx.Timeout(seconds, connect=CONNECT_SECONDS, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),  # as many as samples are in flight
            trust_env=False,
            verify=self.url.startswith("https"),  # reading the machine's certificates takes a while
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def get(self, path: str) -> dict[str, Any]:
        return await self._answer("GET", path)

    async def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return await self._answer("POST", path, json=body)

    async def put(self, path: str, body: AsyncIterator[bytes]) -> dict[str, Any]:
        return await self._answer("PUT", path, content=body, headers={"Content-Type": "application/octet-stream"})

    async def _answer(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        """The JSON object of an answer; an empty one where there is none.

        Raises:
            GenerationError: the server says no.
            WeightError: it says no to an update.
            ConnectionLost: it cannot be reached, or the connection broke.
            DeadlinePassed: it did not answer in time.
        """
        async with self._blamed(path):
            response = await self._client.request(method, path, **more)
            self._check(path, response)
            value = _json(response.content)
            return value if isinstance(value, dict) else {}

    async def lines(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[str, None]:
        """The lines of an answer as they come; raises what :meth:`post` raises."""
        async with self._blamed(path), self._client.stream("POST", path, json=body) as response:
            if response.status_code != httpx.codes.OK:
                await response.aread()
                self._check(path, response)
            async for line in response.aiter_lines():
                if line:
                    yield line

    @asynccontextmanager
    async def _blamed(self, path: str) -> AsyncIterator[None]:
        try:
            yield
        except httpx.TimeoutException as error:
            raise DeadlinePassed(f"{self.url}{path}: no answer within {self.seconds:g} s ({type(error).__name__})") from error
        except httpx.HTTPError as error:
            raise ConnectionLost(
                f"{self.url}{path}: {error or type(error).__name__}; is the server still running there?"
            ) from error

    def _check(self, path: str, response: httpx.Response) -> None:
        if response.is_success:
            return
        raise self.error(path, response.status_code, _json(response.content))

    def error(self, path: str, status: int, body: Any) -> GenerationError | WeightError:
        """What a refusal means here."""
        found = body.get("error") if isinstance(body, dict) else None
        message = found.get("message") if isinstance(found, dict) else found or (body or {}).get("message")
        text = f"{message or f'status {status}'}"
        if status == httpx.codes.CONFLICT:
            return WeightError(text)
        if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            hint = f"{self.variable} holds another token" if self.variable else "name its token's variable: engine.key"
            return GenerationError(f"{self.url}{path}: {text} ({hint})")
        if status == httpx.codes.BAD_REQUEST:
            return GenerationError(text)
        return GenerationError(f"{self.url}{path}: {text} (status {status})")


def _json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return {}

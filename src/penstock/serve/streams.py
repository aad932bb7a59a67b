"""Answers to clients that may leave at any moment, or read slowly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from penstock.serve.service import Service
from penstock.web.app import unless_gone


class Lines(Response):
    """Bytes as they come about, while ``samples`` places are taken; given up when the client leaves or does not read."""

    def __init__(self, made: AsyncGenerator[bytes, None], service: Service, samples: int, media_type: str) -> None:
        super().__init__(media_type=media_type, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self.made, self.service = made, service
        self._places = service.places(samples)
        self._places.__enter__()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with suppress(ClientDisconnect):
                await unless_gone(receive, self._send(send))
        finally:
            self._places.__exit__(None, None, None)

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with aclosing(self.made) as parts:
            async for part in parts:
                try:
                    async with asyncio.timeout(self.service.limits.send_seconds):
                        await send({"type": "http.response.body", "body": part, "more_body": True})
                except TimeoutError:
                    raise ClientDisconnect from None
        await send({"type": "http.response.body", "body": b"", "more_body": False})

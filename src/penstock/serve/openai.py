"""The routes that OpenAI's clients know: models, completions, chat completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from penstock.serve import parsing
from penstock.serve.answers import Answer
from penstock.serve.parsing import ParsedRequest
from penstock.serve.service import Service, generate_all, token_events
from penstock.serve.streams import Lines
from penstock.web.app import unless_gone
from penstock.web.chat import event
from penstock.web.guard import read_json
from penstock.web.refusals import Refusal, refusal_of


class OpenAIRoutes:
    """Handlers over one service."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name != self.service.name:
            raise Refusal(404, f'there is no model "{name[:100]}" here', param="model", code="model_not_found")
        return JSONResponse(self._model())

    async def completions(self, request: Request) -> Response:
        return await self._answer(request, parsing.completion)

    async def chat(self, request: Request) -> Response:
        return await self._answer(request, parsing.chat)

    async def _answer(self, request: Request, parse: Callable[[dict[str, Any], Service], Awaitable[ParsedRequest]]) -> Response:
        wanted = await parse(await read_json(request, self.service.limits), self.service)
        answer, requests = Answer(wanted, self.service), wanted.requests()
        if wanted.stream:
            return Lines(self._stream(answer), self.service, len(requests), "text/event-stream")
        with self.service.places(len(requests)):
            samples = await unless_gone(request.receive, generate_all(self.service, requests))
        return JSONResponse(answer.whole(samples))

    async def _stream(self, answer: Answer) -> AsyncGenerator[bytes, None]:
        """Server-sent events: chunks as tokens are generated, an error in their place if there is one, and the end mark."""
        try:
            for chunk in answer.opening():
                yield event(chunk)
            async with aclosing(token_events(self.service, answer.request.requests())) as events:
                async for batch in events:
                    for chunk in answer.chunks(batch):
                        yield event(chunk)
            for chunk in answer.closing():
                yield event(chunk)
        except Exception as error:
            yield event(refusal_of(error).body)
        yield event("[DONE]")

    def _model(self) -> dict[str, Any]:
        service = self.service
        return {
            "id": service.name,
            "object": "model",
            "created": service.created,
            "owned_by": "penstock",
            "max_model_len": service.context,
            "weight_version": service.version,
        }

"""Routes of the generator contract and of weight updates: for trainers, and for a generator of ours on another machine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from importlib.metadata import version as version_of
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from penstock.core.errors import Superseded, WeightError
from penstock.core.types import CachePolicy, WeightUpdate
from penstock.core.types import Request as Wanted
from penstock.serve.service import Receiver, Service, Token, token_events
from penstock.serve.streams import Lines
from penstock.serve.transport import key_of, request_of, sample_to, tokens_of
from penstock.web.app import unless_gone
from penstock.web.fields import Fields, object_of
from penstock.web.guard import parts, read_json
from penstock.web.metrics import KIND
from penstock.web.refusals import Refusal, refusal_of

KV = ("keep", "recompute", "abort")
MANIFEST_BYTES = 16 << 20
"""Of the line before an image of weights."""


class Routes:
    """Handlers over one service."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._updating = asyncio.Lock()

    # ---- to look at

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "paused" if self.service.paused else "ok", "model": self.service.name})

    async def version(self, request: Request) -> Response:
        return JSONResponse(
            {
                "version": self.service.version,
                "learner_epoch": self.service.learner_epoch,
                "model": self.service.name,
                "context": self.service.context,
                "vocabulary": self.service.vocabulary,
                "penstock": version_of("penstock"),
            }
        )

    async def metrics(self, request: Request) -> Response:
        text = self.service.metrics.text(self.service.engine.stats(), self.service.paused)
        return PlainTextResponse(text, media_type=KIND)

    async def sums(self, request: Request) -> Response:
        """Checksums of the weights in use."""
        before = self.service.version
        sums = await asyncio.to_thread(self._receiver().sums)
        if self.service.version != before:
            raise Refusal(409, "new weights came while the checksums were taken; ask again", code="superseded")
        return JSONResponse({"version": before, "learner_epoch": self.service.learner_epoch, "sums": sums})

    # ---- the generator contract

    async def generate(self, request: Request) -> Response:
        """One sample: a line for every token, and one with the whole sample."""
        wanted = request_of(await read_json(request, self.service.limits), self.service.vocabulary)
        return Lines(self._tokens(wanted), self.service, 1, "application/x-ndjson")

    async def _tokens(self, wanted: Wanted) -> AsyncGenerator[bytes, None]:
        try:
            async with aclosing(token_events(self.service, [wanted])) as events:
                async for batch in events:
                    yield b"".join(
                        _line([event.token, event.logp, event.version])
                        if isinstance(event, Token)
                        else _line({"sample": sample_to(event.sample)})
                        for event in batch
                    )
        except Exception as error:
            refusal = refusal_of(error)
            yield _line(refusal.body | {"status": refusal.status})

    async def score(self, request: Request) -> Response:
        """Log-probs of given tokens."""
        fields = Fields(await read_json(request, self.service.limits))
        tokens = tokens_of(fields.take("tokens"), "tokens", self.service.vocabulary)
        temperature = fields.number("temperature", 1.0, 0.0)
        prompt = fields.whole("prompt", 0, 0, len(tokens)) or None
        fields.done()
        with self.service.places(1):
            logp_T = await unless_gone(request.receive, _score(self.service, tokens, temperature, prompt))
        return JSONResponse({"logp": logp_T.tolist()})

    async def abort(self, request: Request) -> Response:
        """Stop samples; gives what was generated of them."""
        fields = Fields(await read_json(request, self.service.limits))
        keys = fields.take("keys")
        fields.done()
        if not isinstance(keys, list):
            raise Refusal(400, "keys: give a list of [source, epoch, ordinal, sample]", param="keys")
        samples = await self.service.engine.abort([key_of(key) for key in keys])
        return JSONResponse({"samples": [sample_to(sample) for sample in samples]})

    # ---- updates

    async def pause(self, request: Request) -> Response:
        """Draw no more tokens until ``resume``. Samples stay where they are (``keep``) or end as they are (``abort``)."""
        fields = Fields(await read_json(request, self.service.limits))
        mode = fields.text("mode", "keep", ("keep", "abort"))
        fields.done()
        if not hasattr(self.service.engine, "pause"):
            raise Refusal(501, f"{type(self.service.engine).__name__} cannot be paused between two tokens")
        self.service.engine.pause()
        self.service.paused = True
        if mode == "abort":
            await self.service.engine.abort(list(self.service.keys))
        return JSONResponse({"status": "paused"})

    async def resume(self, request: Request) -> Response:
        Fields(await read_json(request, self.service.limits)).done()
        self.service.engine.resume()
        self.service.paused = False
        return JSONResponse({"status": "ok"})

    async def group(self, request: Request) -> Response:
        """Take part in a channel: its kind, its publisher's folder, and this generator's name in it."""
        fields = Fields(await read_json(request, self.service.limits))
        channel, folder, name = fields.text("channel"), fields.text("folder"), fields.text("name", "served")
        fields.done()
        self._receiver().group(channel, folder, name)
        return JSONResponse({"channel": channel, "name": name})

    async def receive(self, request: Request) -> Response:
        """Load what a manifest of the channel announces, between two tokens."""
        (manifest, kv), receiver = _announced(await read_json(request, self.service.limits)), self._receiver()
        if manifest.get("kind") == "alias":
            return await self._load(lambda: _bare(manifest), kv)
        return await self._load(lambda: receiver.open(manifest), kv)

    async def upload(self, request: Request) -> Response:
        """Load an image that comes in the body itself: a line of JSON (manifest, kv), then the image's bytes."""
        receiver, limits = self._receiver(), self.service.limits
        async with asyncio.timeout(limits.request_seconds):
            head, image = await _parcel(parts(request, limits, MANIFEST_BYTES + receiver.image_bytes), receiver.image_bytes)
        manifest, kv = _announced(object_of(head))
        return await self._load(lambda: receiver.unpack(manifest, image), kv)

    async def _load(self, opened: Any, kv: CachePolicy) -> Response:
        """Verify in a thread while tokens are generated, then load; one update at a time."""
        service = self.service
        try:
            async with asyncio.timeout(service.limits.request_seconds), self._updating:
                update: WeightUpdate = await asyncio.to_thread(opened)
                version = await service.engine.load(replace(update, kv=kv))
        except WeightError as error:
            service.metrics.updates["refused"] += 1
            code = "superseded" if isinstance(error, Superseded) else "weights_refused"
            raise Refusal(409, str(error), code=code) from error
        service.learner_epoch = update.learner_epoch
        service.metrics.updates["loaded"] += 1
        return JSONResponse({"version": version, "learner_epoch": update.learner_epoch})

    def _receiver(self) -> Receiver:
        if self.service.receiver is None:
            raise Refusal(501, "this server takes no weights")
        return self.service.receiver


def _announced(body: dict[str, Any]) -> tuple[dict[str, Any], CachePolicy]:
    """The manifest in a body, and what becomes of the cache."""
    fields = Fields(body)
    manifest, kv = fields.object("manifest"), cast(CachePolicy, fields.text("kv", "keep", KV))
    fields.done()
    return manifest, kv


def _bare(manifest: dict[str, Any]) -> WeightUpdate:
    """An update without tensors: the weights are where they should be already."""
    fields = Fields(manifest)
    fields.take("kind")
    update = WeightUpdate(fields.whole("version", -1, 0), None, learner_epoch=fields.whole("learner_epoch", 0, 0))
    fields.done()
    return update


async def _score(service: Service, tokens: Any, temperature: float, prompt: int | None) -> Any:
    async with asyncio.timeout(service.limits.request_seconds):
        return await service.engine.score(tokens, temperature, prompt)


async def _parcel(body: AsyncIterator[bytes], most: int) -> tuple[bytearray, bytearray]:
    """The first line of a body, and the bytes after it, which it announces."""
    head, image, begun = bytearray(), bytearray(), False
    async for part in body:
        if begun:
            image += part
            continue
        line, begun_here, rest = part.partition(b"\n")
        head += line
        begun = bool(begun_here)
        image += rest
        if len(head) > MANIFEST_BYTES:
            raise Refusal(413, "the line before the image is too long", headers={"Connection": "close"})
    if len(image) > most:
        raise Refusal(413, f"the image is larger than {most} bytes", headers={"Connection": "close"})
    return head, image


def _line(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"

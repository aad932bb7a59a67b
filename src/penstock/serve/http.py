"""A server of ours on this or another machine as a generator: what ``penstock serve`` runs, behind the contract."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.config.engines import Served
from penstock.core.errors import GenerationError, SpecError
from penstock.core.types import FloatArray, IntArray, OnToken, Request, Sample, SampleKey, Version, WeightUpdate
from penstock.models.updates import require_newer
from penstock.serve.http_client import HttpClient
from penstock.serve.meter import ForeignGenerator
from penstock.serve.transport import request_to, sample_of

if TYPE_CHECKING:
    from penstock.models.text import Text

Pack = Callable[[WeightUpdate], tuple[dict[str, Any], memoryview]]
"""An update with tensors → its manifest and its image (``weights/snapshot.py``)."""
PART = 1 << 20
"""Bytes of an image that are sent at a time."""


class ServedGenerator(ForeignGenerator):
    """Implements the ``Generator`` contract over the routes of a server of ours.

    The draws are those that the embedded engine would make here: a request carries its key and seed. Counts are those of this
    client's own requests.
    """

    def __init__(self, client: HttpClient, text: Text, pack: Pack, version: Version = -1, base: int = 0) -> None:
        """``base`` is added to the learner_epochs that the server is sent: it may hold weights of an earlier run."""
        super().__init__(text, version)
        self.client, self.pack, self.base = client, pack, base

    # ---- the contract

    async def generate(self, request: Request, on_token: OnToken | None = None) -> Sample:
        """Draw one sample on the server, telling ``on_token`` of each token as it arrives.

        Raises:
            GenerationError: the server refuses the request, or its engine failed.
            ConnectionLost: the server is gone.
        """
        self.tape.submit(request.key)
        self.meter.enter(self.spans.clock())
        try:
            async with aclosing(self.client.lines("/generate", request_to(request))) as lines:
                async for line in lines:
                    value = json.loads(line)
                    if isinstance(value, list):
                        self.meter.drew(1, self.spans)
                        if on_token is not None:
                            on_token(*value)
                    elif "sample" in value:
                        return sample_of(value["sample"])
                    else:
                        raise self.client.error("/generate", value.get("status", 500), value)
        finally:
            self.meter.leave(self.spans)
        raise GenerationError(f"{request.key}: {self.client.url} ended its answer before the sample was whole")

    async def score(self, tokens_T: IntArray, temperature: float = 1.0, prompt: int | None = None) -> FloatArray:
        """Log-prob of every token after the first ``prompt``, given those before it."""
        asked = {"tokens": tokens_T.tolist(), "temperature": temperature, "prompt": prompt}
        return np.asarray((await self.client.post("/score", asked))["logp"], np.float32)

    async def load(self, update: WeightUpdate) -> Version:
        """Send new weights, which the server takes between two tokens, wholly or not at all.

        Raises:
            WeightError: the server refused them; the old ones are still in place.
        """
        require_newer(update, (self.learner_epoch, self.version))
        kv = "keep" if update.kv == "drain" else update.kv  # draining has let every group end
        begun, learner_epoch = self.spans.clock(), self.base + update.learner_epoch
        if update.tensors is None:
            manifest = {"kind": "alias", "version": update.version, "learner_epoch": learner_epoch}
            answer = await self.client.post("/weights", {"manifest": manifest, "kv": kv})
        else:
            manifest, image = await asyncio.to_thread(self.pack, replace(update, learner_epoch=learner_epoch))
            head = json.dumps({"manifest": manifest, "kv": kv}).encode()
            answer = await self.client.put("/weights", _body(head, image))
        self._took(replace(update, version=int(answer["version"])))
        self.spans.add("update", begun, self.spans.clock(), version=self.version)
        return self.version

    async def abort(self, keys: Collection[SampleKey]) -> list[Sample]:
        """Stop the named samples; gives what was generated of them."""
        answer = await self.client.post("/abort", {"keys": [[*key.prompt, key.sample] for key in keys]})
        return [sample_of(sample) for sample in answer["samples"]]

    # ---- beyond it

    async def sums(self) -> list[str]:
        """Checksums of the weights that the server uses, by bucket."""
        return list((await self.client.get("/weights/sums"))["sums"])


async def _body(head: bytes, image: memoryview) -> AsyncIterator[bytes]:
    yield head + b"\n"
    for offset in range(0, len(image), PART):
        yield bytes(image[offset : offset + PART])


@asynccontextmanager
async def served_generator(spec: Served, text: Text, pack: Pack, name: str = "") -> AsyncIterator[ServedGenerator]:
    """The generator of a server; connections end with the block. ``name`` ends with the generator's number.

    Raises:
        ConnectionLost: nothing answers there.
        SpecError: what answers is no such server, or has another model's vocabulary; or there are too few servers.
    """
    client = HttpClient(pick(spec.url, name), spec.key, spec.timeout)
    try:
        server = await client.get("/version")
        if not {"version", "learner_epoch", "vocabulary"} <= server.keys():
            raise SpecError(f"{client.url} is no penstock serve; start one there, or use another engine")
        if server["vocabulary"] < len(text):
            raise SpecError(f"{client.url} serves a model with {server['vocabulary']} tokens, and this run's has {len(text)}")
        yield ServedGenerator(client, text, pack, base=int(server["learner_epoch"]) + 1)
    finally:
        await client.close()


def pick(urls: str, name: str) -> str:
    """The server of the generator whose ``name`` ends with its number: each has one to itself, because it sets its weights.

    Raises:
        SpecError: there are more generators than servers.
    """
    every = [url.strip() for url in urls.split(",") if url.strip()]
    number = name.rpartition("-")[2]
    place = int(number) if number.isdigit() else 0
    if place >= len(every):
        raise SpecError(f"engine.url names {len(every)} servers, and {name} needs one to itself; name one for each generator")
    return every[place]

"""SGLang behind the ``Generator`` contract, over the native HTTP API of its server.

Tokens go in and come out (``/generate`` as a stream with log-probs); a request carries an extra cache key that names the
weights, so that a new request never reads a prefix that older weights have computed. Weights change while the server is
paused in place, between two of its steps. Written after SGLang's documentation and sources (``io_struct.py``,
``http_server.py``); tested against recorded exchanges only, because it does not run without an accelerator.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from penstock.core.engines import SGLang
from penstock.core.errors import GenerationError, PenstockError, WeightError
from penstock.core.spans import NO_SPANS, Spans
from penstock.core.tape import Tape
from penstock.core.types import (
    FinishReason,
    FloatArray,
    GeneratorStats,
    IntArray,
    OnToken,
    Request,
    Sample,
    SampleKey,
    Sampling,
    Version,
    WeightUpdate,
)
from penstock.models.drawn import Drawn, require_room
from penstock.models.text import Text
from penstock.models.updates import require_newer, verified
from penstock.serve.http import pick
from penstock.serve.meter import Meter
from penstock.serve.talk import Talk

FINISHES: Mapping[str, FinishReason] = {"stop": "stop", "length": "length", "abort": "abort"}


class Delivery(Protocol):
    """How tensors reach the server's processes (:mod:`penstock.serve.sglang_weights`)."""

    async def send(self, talk: Talk, tensors: Mapping[str, Any], label: str, flush: bool) -> None:
        """Hand over the weights called ``label``; ``flush`` drops the cache. WeightError: the old ones are still in use."""
        ...


@dataclass(eq=False, kw_only=True)
class Flight(Drawn):
    """One request on its way through the server."""

    name: str = ""
    """What the server calls it; another one after every restart."""
    again: bool = False
    """It is to be begun again, under newer weights."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class SGLangGenerator:
    """Implements the ``Generator`` contract over one server, which is opened by :func:`sglang_generator`."""

    def __init__(
        self, talk: Talk, text: Text, own: Mapping[str, Any], delivery: Delivery, *, context: int, version: Version = -1
    ) -> None:
        """``own``: name to shape and type of the weights; ``context``: the longest sequence."""
        self.talk, self.text, self.own, self.delivery, self.context = talk, text, own, delivery, context
        self.version = self._first = version
        self.incarnation = 0
        self.spans: Spans = NO_SPANS
        self.tape = Tape()
        self.meter = Meter()
        self._flights: dict[int, Flight] = {}
        self._serial = 0
        self._loading = asyncio.Lock()
        self._open = asyncio.Event()
        """Set unless weights are being changed: then requests wait at the door."""
        self._open.set()
        self._broken: GenerationError | None = None

    # ---- the contract

    async def generate(self, request: Request, on_token: OnToken | None = None) -> Sample:
        """Draw one sample; ``on_token`` is told the version in use when a token arrives here.

        Raises:
            GenerationError: the prompt is empty or does not fit the context, or the server refuses the request.
            ConnectionLost: the server is gone.
        """
        require_room(request, self.context)
        if request.sampling.beta:
            raise GenerationError(f"{request.key}: beta={request.sampling.beta} needs Q heads; SGLang has none, use beta=0")
        flight = Flight(
            request=request,
            limit=min(request.sampling.max_new_tokens, self.context - len(request.tokens_T)),
            stop_tokens=frozenset({self.text.end, *request.sampling.stop_tokens}),
            on_token=on_token,
        )
        reason = flight.finish_reason(self.text) or await self._fly(flight)
        return flight.sample(reason, self.text)

    async def score(self, tokens_T: IntArray, temperature: float = 1.0, prompt: int | None = None) -> FloatArray:
        """Log-prob of every token after the first ``prompt`` (1), given those before it, and 0 for these.

        Raises:
            GenerationError: the temperature is neither 1 nor 0; SGLang gives a prompt's log-probs at 1.
        """
        if temperature not in (0.0, 1.0):
            raise GenerationError(f"SGLang scores given tokens at temperature 1, not {temperature}; score with the learner")
        asked = {
            "input_ids": tokens_T.tolist(),
            "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
            "return_logprob": True,
            "logprob_start_len": 0,
        }
        found = (await self.talk.post("/generate", asked))["meta_info"]["input_token_logprobs"]
        scored_T = np.array([entry[0] or 0.0 for entry in found], np.float32)
        if len(scored_T) != len(tokens_T):
            raise GenerationError(f"{self.talk.url} scored {len(scored_T)} of {len(tokens_T)} tokens")
        scored_T[: prompt or 1] = 0.0
        return scored_T

    async def load(self, update: WeightUpdate) -> Version:
        """Take new weights between two steps of the server. With ``kv="recompute"`` requests are begun again, with what they
        have drawn; requests of which no token is drawn yet begin again in any case.

        Raises:
            WeightError: the update was refused; the old weights and version are still in place.
            GenerationError: the server failed in the middle of the switch; it must be started anew.
        """
        async with self._loading:
            require_newer(update, (self.incarnation, self.version))
            if update.tensors is None:
                raise WeightError(f"weight update {update.version} refused: it brings no tensors, and SGLang shares no memory")
            tensors = await asyncio.to_thread(verified, self.own, update)
            stalled = self.spans.clock()
            self._open.clear()
            try:
                await self._switch(update, tensors)
            finally:
                self._open.set()
            self.spans.add("update", stalled, self.spans.clock(), version=update.version)
        return self.version

    async def abort(self, keys: Collection[SampleKey]) -> list[Sample]:
        """Stop the named samples; gives what was drawn so far, fit to resume from."""
        wanted = set(keys)
        found = [flight for flight in self._flights.values() if flight.request.key in wanted]
        await asyncio.gather(*(self.talk.post("/abort_request", {"rid": flight.name}) for flight in found))
        await asyncio.gather(*(flight.ended.wait() for flight in found))
        return [flight.sample("abort", self.text) for flight in found if flight.finish_reason(self.text) is None]

    def stats(self) -> GeneratorStats:
        return GeneratorStats(
            version=self.version,
            running=len(self._flights),
            waiting=0,
            cache_use=0.0,
            generated_tokens=self.meter.tokens,
            busy_seconds=self.meter.busy,
        )

    # ---- requests

    async def _fly(self, flight: Flight) -> FinishReason:
        """From the server's queue to the last token; as often as the request is begun again."""
        self.tape.submit(flight.request.key)
        self.meter.enter(self.spans.clock())
        self._flights[id(flight)] = flight
        try:
            while True:
                await self._open.wait()
                if self._broken is not None:
                    raise self._broken
                flight.again = False
                reason = await self._pass(flight)
                if reason != "abort" or not flight.again:
                    return reason
        finally:
            flight.ended.set()
            del self._flights[id(flight)]
            self.meter.leave(self.spans)

    async def _pass(self, flight: Flight) -> FinishReason:
        """One request of the server's: append what it draws, set the versions that it reports, say why it ended."""
        self._serial += 1
        flight.name = f"{flight.request.key}/{self._serial}"
        begun = len(flight.tokens)
        async with aclosing(self.talk.lines("/generate", self._body(flight))) as lines:
            async for line in lines:
                said = line.removeprefix("data:").strip()
                if said == "[DONE]":
                    break
                event = json.loads(said)
                if "error" in event:
                    raise GenerationError(f"{flight.request.key}: {self.talk.url}: {event['error'].get('message', event)}")
                information = event["meta_info"]
                ended = self._take(flight, begun, information)
                if ended is not None:
                    return ended
        return "abort"

    def _take(self, flight: Flight, begun: int, information: Mapping[str, Any]) -> FinishReason | None:
        """Append the tokens of a stream's event, which lists all since the request began."""
        fresh = information.get("output_token_logprobs", ())[len(flight.tokens) - begun :]
        reason: FinishReason | None = None
        for logp, token, *_ in fresh:
            flight.append(int(token), float(logp), self._number(information.get("weight_version", "")))
            reason = flight.finish_reason(self.text)
            if reason is not None:
                break
        self.meter.drew(len(fresh), len(self._flights), self.spans)
        if spans := information.get("weight_versions"):
            drawn = [self._number(span["version"]) for span in spans for _ in range(span["start"], span["end"])]
            flight.versions[begun:] = drawn[: len(flight.tokens) - begun]
        finish = information.get("finish_reason")
        return reason or (FINISHES.get(finish["type"], "stop") if finish else None)

    def _number(self, label: str) -> Version:
        """The version in a label of ours; of another name are the weights that the server was started with."""
        if not label:  # an older server, which does not tell
            return self.version
        number = str(label).partition(".")[2]
        return int(number) if number.isdigit() else self._first

    def _body(self, flight: Flight) -> dict[str, Any]:
        return {
            "rid": flight.name,
            "input_ids": [*map(int, flight.request.tokens_T), *flight.tokens],
            "sampling_params": self._parameters(flight),
            "return_logprob": True,
            "logprob_start_len": -1,
            "stream": True,
            "extra_key": f"{self.incarnation}.{self.version}",
        }

    def _parameters(self, flight: Flight) -> dict[str, Any]:
        sampling: Sampling = flight.request.sampling
        return {
            "max_new_tokens": flight.limit - len(flight.tokens),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1,
            "min_p": sampling.min_p,
            "stop": list(sampling.stop),
            "stop_token_ids": sorted(flight.stop_tokens),
            "no_stop_trim": True,
            "sampling_seed": seed_of(sampling.seed, flight.request.key),
        }

    # ---- weights

    async def _switch(self, update: WeightUpdate, tensors: Mapping[str, Any]) -> None:
        """Stop between two steps, hand over, go on."""
        keep = update.kv in ("keep", "drain")  # whoever drains has let every group end
        for flight in self._flights.values():
            flight.again = update.kv == "recompute"
        await self.talk.post("/pause_generation", {"mode": "in_place" if keep else "abort"})
        try:
            await self.delivery.send(self.talk, tensors, f"{update.incarnation}.{update.version}", not keep)
            self.tape.load(update.version, update.incarnation)
            self.incarnation, self.version = update.incarnation, update.version
            if keep:
                await self._restart([flight for flight in self._flights.values() if not flight.tokens])
        except PenstockError as error:
            if not isinstance(error, WeightError):
                self._broken = GenerationError(f"weight update {update.version}: SGLang failed in the middle of it: {error}")
                raise self._broken from error
            raise
        finally:
            await self.talk.post("/continue_generation", {})

    async def _restart(self, flights: Sequence[Flight]) -> None:
        for flight in flights:
            flight.again = True
        await asyncio.gather(*(self.talk.post("/abort_request", {"rid": flight.name}) for flight in flights))


def seed_of(seed: int, key: SampleKey) -> int:
    """A seed of 31 bits of its own for every sample. SGLang's draw depends on it and on the position, so that a resumed sample
    goes on as it would have, where the server runs with ``--enable-deterministic-inference``."""
    return int.from_bytes(hashlib.blake2b(f"{seed}|{key}".encode(), digest_size=4).digest(), "little") >> 1


@asynccontextmanager
async def sglang_generator(
    spec: SGLang, text: Text, own: Mapping[str, Any], delivery: Delivery, context: int, name: str = ""
) -> AsyncIterator[SGLangGenerator]:
    """The generator of a running server; connections end with the block. ``name`` ends with the generator's number.

    Raises:
        ConnectionLost: nothing answers there.
    """
    talk = Talk(pick(spec.url, name), spec.key, spec.timeout)
    try:
        await talk.get("/health")
        yield SGLangGenerator(talk, text, own, delivery, context=context)
    finally:
        await talk.close()

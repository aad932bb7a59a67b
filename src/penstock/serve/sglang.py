"""SGLang behind the ``Generator`` contract, over the native HTTP API of its server.

Tokens go in and come out (``/generate`` as a stream with log-probs); a request carries an extra cache key that names the
weights, so that a new request never reads a prefix that older weights have computed. Weights change while the server is
paused in place, between two of its steps. Written after SGLang's documentation and sources (``io_struct.py``,
``http_server.py``); tested against recorded exchanges, and for weights against worker processes in a real process group,
because SGLang itself does not run without an accelerator.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Protocol

import numpy as np

from penstock.config.engines import SGLang
from penstock.core.errors import GenerationError, PenstockError, WeightError
from penstock.core.types import (
    FinishReason,
    FloatArray,
    IntArray,
    SampleKey,
    Sampling,
    Version,
    WeightUpdate,
)
from penstock.models.text import Text
from penstock.serve.http import pick
from penstock.serve.http_client import HttpClient
from penstock.serve.in_flight import InFlightRequest, InFlightRequests, number_of

FINISHES: Mapping[str, FinishReason] = {"stop": "stop", "length": "length", "abort": "abort"}


class Delivery(Protocol):
    """How tensors reach the server's processes (:mod:`penstock.serve.sglang_weights`)."""

    async def send(self, client: HttpClient, tensors: Mapping[str, Any], label: str, flush: bool) -> None:
        """Hand over the weights called ``label``; ``flush`` drops the cache. WeightError: the old ones are still in use."""
        ...

    async def close(self, client: HttpClient) -> None:
        """Nothing more is sent."""
        ...


class SGLangGenerator(InFlightRequests):
    """Implements the ``Generator`` contract over one server, which is opened by :func:`sglang_generator`."""

    engine_name = "SGLang"

    def __init__(
        self, client: HttpClient, text: Text, own: Mapping[str, Any], delivery: Delivery, *, context: int, version: Version = -1
    ) -> None:
        """``own``: name to shape and type of the weights; ``context``: the longest sequence."""
        super().__init__(text, own, context=context, version=version)
        self.client, self.delivery, self._first = client, delivery, version

    # ---- the contract

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
        found = (await self.client.post("/generate", asked))["meta_info"]["input_token_logprobs"]
        scored_T = np.array([entry[0] or 0.0 for entry in found], np.float32)
        if len(scored_T) != len(tokens_T):
            raise GenerationError(f"{self.client.url} scored {len(scored_T)} of {len(tokens_T)} tokens")
        scored_T[: prompt or 1] = 0.0
        return scored_T

    # ---- requests

    async def _pass(self, flight: InFlightRequest) -> FinishReason:
        begun = len(flight.tokens)
        async with aclosing(self.client.lines("/generate", self._body(flight))) as lines:
            async for line in lines:
                said = line.removeprefix("data:").strip()
                if said == "[DONE]":
                    break
                event = json.loads(said)
                if "error" in event:
                    raise GenerationError(f"{flight.request.key}: {self.client.url}: {event['error'].get('message', event)}")
                information = event["meta_info"]
                ended = self._take(flight, begun, information)
                if ended is not None:
                    return ended
        return "abort"

    def _take(self, flight: InFlightRequest, begun: int, information: Mapping[str, Any]) -> FinishReason | None:
        """Append the tokens of a stream's event, which lists all since the request began."""
        fresh = information.get("output_token_logprobs", ())[len(flight.tokens) - begun :]
        version = self._number(information.get("weight_version", ""))
        reason = flight.take(((token, logp) for logp, token, *_ in fresh), lambda: version, self.text)
        self.meter.drew(len(fresh), self.spans)
        if spans := information.get("weight_versions"):
            flight.relabel(begun, ((self._number(span["version"]), span["end"] - span["start"]) for span in spans))
        finish = information.get("finish_reason")
        return reason or (FINISHES.get(finish["type"], "stop") if finish else None)

    async def _stop(self, names: Sequence[str]) -> None:
        await asyncio.gather(*(self.client.post("/abort_request", {"rid": name}) for name in names))

    def _number(self, label: str) -> Version:
        """The version in a label of ours; of another name are the weights that the server was started with."""
        if not label:  # an older server, which does not tell
            return self.version
        number = number_of(str(label))
        return self._first if number is None else number

    def _body(self, flight: InFlightRequest) -> dict[str, Any]:
        return {
            "rid": flight.name,
            "input_ids": [*map(int, flight.request.tokens_T), *flight.tokens],
            "sampling_params": self._parameters(flight),
            "return_logprob": True,
            "logprob_start_len": -1,
            "stream": True,
            "extra_key": self.label(),
        }

    def _parameters(self, flight: InFlightRequest) -> dict[str, Any]:
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

    async def _change(self, update: WeightUpdate, tensors: Mapping[str, Any]) -> None:
        """Stop between two steps, hand over, go on. With ``kv="recompute"`` requests are begun again, with what they have
        generated."""
        keep = update.kv in ("keep", "drain")  # draining has let every group end
        with self._shut(update):
            for flight in self._flights.values():
                flight.again = update.kv == "recompute"
            await self.client.post("/pause_generation", {"mode": "in_place" if keep else "abort"})
            try:
                await self.delivery.send(self.client, tensors, f"{update.learner_epoch}.{update.version}", not keep)
                self._took(update)
                if keep:
                    await self._restart([flight for flight in self._flights.values() if not flight.tokens])
            except PenstockError as error:
                with contextlib.suppress(PenstockError):  # what went wrong first is the cause
                    await self.client.post("/continue_generation", {})
                if not isinstance(error, WeightError):
                    problem = f"weight update {update.version}: SGLang failed in the middle of it: {error}"
                    raise GenerationError(problem) from error
                raise
            await self.client.post("/continue_generation", {})


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
    client = HttpClient(pick(spec.url, name), spec.key, spec.timeout)
    try:
        await client.get("/health")
        yield SGLangGenerator(client, text, own, delivery, context=context)
        await delivery.close(client)
    finally:
        await client.close()

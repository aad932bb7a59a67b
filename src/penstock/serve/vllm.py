"""vLLM behind the ``Generator`` contract: its asynchronous engine, our draws, weights that change in flight.

Tokens go in and come out; vLLM never sees text. A request carries a salt that names the weights, so that a new request never
reads a prefix that older weights have computed. vLLM's outputs say which tokens were drawn under which weights. Only this file
and those beside it named ``vllm_*`` import vLLM, in the process that opens it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from penstock.core.errors import GenerationError, WeightError, blame
from penstock.core.spans import NO_SPANS, Spans
from penstock.core.tape import Tape
from penstock.core.types import (
    CachePolicy,
    FinishReason,
    FloatArray,
    GeneratorStats,
    IntArray,
    OnToken,
    PromptKey,
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
from penstock.serve.meter import Meter


class Carrier(Protocol):
    """How an update's image reaches vLLM's workers (:class:`penstock.weights.handover.Handover`)."""

    def write(self, order: tuple[int, Version], tensors: Mapping[str, Tensor]) -> dict[str, Any]: ...

    def clear(self) -> None: ...


@dataclass(eq=False, kw_only=True)
class Flight(Drawn):
    """One request on its way through vLLM."""

    forced: Sequence[int] = ()
    """Tokens to score instead of drawing."""
    name: str = ""
    """What vLLM calls it; another one after every restart."""
    again: bool = False
    """It is to be begun again, under newer weights."""
    ended: asyncio.Future[FinishReason] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Resolved once nothing more is drawn for it."""
    aborted: bool = False


class VLLMGenerator:
    """Implements the ``Generator`` contract over vLLM's ``AsyncLLM``, which ``vllm_open.py`` opens."""

    def __init__(
        self, engine: Any, text: Text, own: Mapping[str, Tensor], carrier: Carrier, *, slots: int, version: Version,
        queue: int = 1 << 16,
    ) -> None:  # fmt: skip
        """``own``: name to shape and type of the weights; ``slots`` sequences at once; ``queue`` requests at most."""
        self.engine, self.text, self.own, self.carrier = engine, text, own, carrier
        self.slots, self.queue = slots, queue
        self.version: Version = version
        self.incarnation = 0
        self.spans: Spans = NO_SPANS
        self.tape = Tape()
        config = engine.vllm_config
        self.context = int(config.model_config.max_model_len)
        self.room = int(config.cache_config.num_gpu_blocks or 1) * int(config.cache_config.block_size)
        """Tokens that the cache holds."""
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
        """Draw one sample; ``on_token`` is told the version that is in use when a token arrives here.

        Raises:
            GenerationError: the prompt is empty or does not fit the context, too many requests wait, or vLLM has failed.
        """
        require_room(request, self.context)
        if request.sampling.beta:
            raise GenerationError(f"{request.key}: beta={request.sampling.beta} needs Q heads, which vLLM has not; use beta=0")
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

        The tokens are decoded one after the other, each in place of a draw: slow, but by the same numbers as ``generate``.
        """
        if len(tokens_T) > self.context:
            raise GenerationError(f"{len(tokens_T)} tokens do not fit the context of {self.context}")
        first = prompt or 1
        scored_T = np.zeros(len(tokens_T), np.float32)
        forced = [int(token) for token in tokens_T[first:]]
        if forced:
            key = SampleKey(PromptKey("score", 0, 0), 0)
            sampling = Sampling(temperature=temperature, max_new_tokens=len(forced))
            flight = Flight(request=Request(key, tokens_T[:first], sampling), limit=len(forced), forced=forced)
            await self._fly(flight)
            scored_T[first:] = flight.logps
        return scored_T

    async def load(self, update: WeightUpdate) -> Version:
        """Take new weights between two steps of vLLM; what becomes of the cache is the update's ``kv``.

        Requests of which no token is drawn yet begin again, so that they read no prefix of the old weights.

        Raises:
            WeightError: the update was refused; the old weights and version are still in place.
            GenerationError: vLLM failed in the middle of the switch; the engine must be opened anew.
        """
        async with self._loading:
            require_newer(update, (self.incarnation, self.version))
            if update.tensors is None:
                raise WeightError(
                    f"weight update {update.version} refused: it brings no tensors, and vLLM shares no memory with the learner"
                )
            tensors = await asyncio.to_thread(verified, self.own, update)
            manifest = await asyncio.to_thread(self.carrier.write, (update.incarnation, update.version), tensors)
            try:
                await self._hand_over(manifest)
                await self._switch(update)
            finally:
                self.carrier.clear()
        return self.version

    async def abort(self, keys: Collection[SampleKey]) -> list[Sample]:
        """Stop the named samples; gives what was drawn so far, fit to resume from."""
        wanted = set(keys)
        found = [f for f in self._flights.values() if f.request.key in wanted and not f.forced]
        await self._stop(found, aborted=True)
        reasons = await asyncio.gather(*(flight.ended for flight in found), return_exceptions=True)
        return [flight.sample("abort", self.text) for flight, reason in zip(found, reasons, strict=True) if reason == "abort"]

    def stats(self) -> GeneratorStats:
        flying = len(self._flights)
        held = sum(len(f.request.tokens_T) + len(f.tokens) for f in self._flights.values())
        return GeneratorStats(
            version=self.version,
            running=min(flying, self.slots),
            waiting=max(0, flying - self.slots),
            cache_use=min(1.0, held / self.room),
            generated_tokens=self.meter.tokens,
            busy_seconds=self.meter.busy,
        )

    async def sums(self) -> list[str]:
        """Checksums of the image that the weights in use were loaded from, by bucket, as the first worker has it."""
        with blame(GenerationError, "asking vLLM's workers for checksums"):
            return list((await self.engine.collective_rpc("penstock_sums"))[0])

    # ---- requests

    async def _fly(self, flight: Flight) -> FinishReason:
        """From vLLM's queue to the last token; as often as the request is begun again."""
        if len(self._flights) >= self.queue:
            raise GenerationError(f"{flight.request.key}: {self.queue} requests are waiting already")
        self.meter.enter(self.spans.clock())
        self._flights[id(flight)] = flight
        try:
            while True:
                await self._open.wait()
                if self._broken is not None:
                    raise self._broken
                flight.again = False
                reason: FinishReason = "abort" if flight.aborted else await self._pass(flight)
                if reason != "abort" or not flight.again:
                    break
            flight.ended.set_result(reason)
            return reason
        finally:
            flight.ended.cancel()  # whoever waits for its end need not, where it was cancelled or failed
            del self._flights[id(flight)]
            self.meter.leave(self.spans)

    async def _pass(self, flight: Flight) -> FinishReason:
        """One request of vLLM's: append what it draws, set the versions that it reports, say why it ended."""
        self._serial += 1
        flight.name = f"{flight.request.key}/{self._serial}"
        if flight.forced:
            flight.tokens, flight.logps, flight.versions = [], [], []
        begun, reason = len(flight.tokens), None
        prompt = {"prompt_token_ids": [*map(int, flight.request.tokens_T), *flight.tokens], "cache_salt": self.label()}
        with blame(GenerationError, f"{flight.request.key}: vLLM"):
            async for output in self.engine.generate(prompt, self._parameters(flight), flight.name):
                completion = output.outputs[0]
                if reason is None:
                    reason = self._take(flight, completion)
                if completion.weight_versions is not None:
                    spans = completion.weight_versions
                    drawn = [int(span.version.partition(".")[2]) for span in spans for _ in range(span.start, span.end)]
                    flight.versions[begun:] = drawn[: len(flight.tokens) - begun]
                if not output.finished and (reason or flight.again or flight.aborted):
                    await self.engine.abort(flight.name)
        return reason or ("abort" if flight.again or flight.aborted or completion.finish_reason == "abort" else "length")

    def _take(self, flight: Flight, completion: Any) -> FinishReason | None:
        """Append the tokens of an output up to where the sample ends, if it does."""
        reason: FinishReason | None = None
        known = len(flight.tokens)
        logps = completion.logprobs.logprobs if completion.token_ids else ()
        for token, logp in zip(completion.token_ids, logps, strict=True):
            flight.append(int(token), float(logp), self.version)
            reason = flight.finish_reason(self.text)
            if reason is not None:
                break
        if not flight.forced:
            self.meter.drew(len(flight.tokens) - known, len(self._flights), self.spans)
        return reason

    def _parameters(self, flight: Flight) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        from penstock.serve.vllm_draws import asked

        return SamplingParams(
            temperature=0.0,  # vLLM takes the one token that our draw has left
            max_tokens=flight.limit - len(flight.tokens),
            stop_token_ids=sorted(token for token in flight.stop_tokens if token >= 0),  # a tokenizer without an end says -1
            ignore_eos=True,  # the stop tokens are all that there are
            detokenize=False,
            logprobs=0,
            flat_logprobs=True,
            output_kind=RequestOutputKind.DELTA,
            extra_args=asked(flight.request.sampling, str(flight.request.key), len(flight.tokens), flight.forced),
        )

    async def _stop(self, flights: Sequence[Flight], *, aborted: bool = False, again: bool = False) -> None:
        """Have flights end: their tokens so far stay."""
        for flight in flights:
            flight.aborted, flight.again = flight.aborted or aborted, again
        names = [flight.name for flight in flights if flight.name]
        if names:
            await self.engine.abort(names)

    # ---- weights

    def label(self) -> str:
        """How vLLM calls the weights in use."""
        return f"{self.incarnation}.{self.version}"

    async def _hand_over(self, manifest: Mapping[str, Any]) -> None:
        """Let the workers take and verify an image while they still run with the old weights."""
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        with blame(WeightError, f"weight update {manifest['version']} refused by vLLM's workers"):
            await self.engine.start_weight_update()
            await self.engine.update_weights(WeightTransferUpdateRequest(update_info={"manifest": dict(manifest)}))

    async def _switch(self, update: WeightUpdate) -> None:
        """Stop between two steps, switch, go on."""
        stalled = self.spans.clock()
        self._open.clear()
        self.tape.load(update.version, update.incarnation)
        try:
            with blame(GenerationError, f"weight update {update.version}: vLLM failed in the middle of the switch"):
                for flight in self._flights.values():
                    flight.again = bool(flight.forced)  # what is scored is scored by one version, also where all are aborted
                await self._pause(update.kv)
                await self.engine.finish_weight_update(weight_version=f"{update.incarnation}.{update.version}")
                self.incarnation, self.version = update.incarnation, update.version
                await self._stop(
                    [flight for flight in self._flights.values() if flight.forced or not flight.tokens], again=True
                )
                await self.engine.resume_generation()
        except GenerationError as error:
            self._broken = error
            raise
        finally:
            self._open.set()
        self.spans.add("update", stalled, self.spans.clock(), version=update.version)

    async def _pause(self, kv: CachePolicy) -> None:
        if kv == "abort":
            await self.engine.pause_generation(mode="abort", clear_cache=True)
        else:  # whoever drains has let every group end
            await self.engine.pause_generation(mode="keep", clear_cache=kv == "recompute")

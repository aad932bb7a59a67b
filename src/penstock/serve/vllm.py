"""vLLM behind the ``Generator`` contract: its asynchronous engine, our draws, weights that change in flight.

Tokens go in and come out; vLLM never sees text. A request carries a salt that names the weights, so that a new request never
reads a prefix that older weights have computed. vLLM says which tokens were generated under which weights. Only this file
and those beside it named ``vllm_*`` import vLLM, in the process that opens it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from penstock.core.errors import GenerationError, WeightError, blame
from penstock.core.types import (
    FinishReason,
    FloatArray,
    GeneratorStats,
    IntArray,
    PromptKey,
    Request,
    SampleKey,
    Sampling,
    Version,
    WeightUpdate,
)
from penstock.models.files import Adapter
from penstock.models.media import MEDIA, MediaText
from penstock.models.text import Text
from penstock.serve.in_flight import InFlightRequest, InFlightRequests, number_of

PATIENCE = 600.0
"""Seconds in which vLLM's workers must all have an update."""


class Carrier(Protocol):
    """How an update's snapshot reaches vLLM's workers (``weights.worker_loader.WorkerLoader``): ``backend`` and ``extension``
    name what runs in them."""

    backend: str
    extension: str

    def write(self, order: tuple[int, Version], tensors: Mapping[str, Tensor]) -> dict[str, Any]: ...

    def clear(self) -> None: ...


class VLLMGenerator(InFlightRequests):
    """Implements the ``Generator`` contract over vLLM's ``AsyncLLM``, which ``vllm_open.py`` opens."""

    engine_name = "vLLM"

    def __init__(
        self, engine: Any, text: Text, own: Mapping[str, Tensor], carrier: Carrier, *, max_running: int,
        adapter: Adapter | None = None,
    ) -> None:  # fmt: skip
        """``own``: name to shape and type of the weights that updates bring; ``max_running`` sequences at once; ``adapter``:
        the low-rank adapters that all requests go through, if there are any."""
        config = engine.vllm_config
        super().__init__(text, own, context=int(config.model_config.max_model_len))
        self.engine, self.carrier, self.max_running, self.adapter = engine, carrier, max_running, adapter
        self.vocabulary = int(config.model_config.get_vocab_size())
        self.reads_media = isinstance(text, MediaText)
        self.never = sorted(getattr(text, "media", ()))
        """Tokens that show media, which no distribution contains."""
        self.room = int(config.cache_config.num_gpu_blocks or 1) * int(config.cache_config.block_size)
        """Tokens that the cache holds."""

    # ---- the contract

    async def score(self, tokens_T: IntArray, temperature: float = 1.0, prompt: int | None = None) -> FloatArray:
        """Log-prob of every token after the first ``prompt`` (1), given those before it, and 0 for these.

        The tokens are decoded one after the other, each in place of a draw: slow, but by the same numbers as ``generate``.
        """
        if len(tokens_T) > self.context:
            raise GenerationError(f"{len(tokens_T)} tokens do not fit the context of {self.context}")
        if np.isin(tokens_T, self.never).any():
            raise GenerationError("tokens that show media are not scored without them; score with the learner's model")
        first = prompt or 1
        scored_T = np.zeros(len(tokens_T), np.float32)
        forced = [int(token) for token in tokens_T[first:]]
        if forced:
            key = SampleKey(PromptKey("score", 0, 0), 0)
            sampling = Sampling(temperature=temperature, max_new_tokens=len(forced))
            flight = InFlightRequest(request=Request(key, tokens_T[:first], sampling), limit=len(forced), forced=forced)
            await self._fly(flight)
            scored_T[first:] = flight.logps
        return scored_T

    def stats(self) -> GeneratorStats:
        seen = super().stats()
        held = sum(len(f.request.tokens_T) + len(f.tokens) for f in self._flights.values())
        running, waiting = min(seen.running, self.max_running), max(0, seen.running - self.max_running)
        return replace(seen, running=running, waiting=waiting, cache_use=min(1.0, held / self.room))

    async def sums(self) -> list[str]:
        """Checksums of the image that the weights in use were loaded from, by bucket, as the first worker has it."""
        with blame(GenerationError, "asking vLLM's workers for checksums"):
            return list((await self.engine.collective_rpc("penstock_sums"))[0])

    # ---- requests

    async def _pass(self, flight: InFlightRequest) -> FinishReason:
        if flight.forced:
            flight.tokens, flight.logps, flight.versions = [], [], []
        begun, reason = len(flight.tokens), None
        with blame(GenerationError, f"{flight.request.key}: vLLM"):
            async for output in self.engine.generate(
                self._prompt(flight), self._parameters(flight), flight.name, lora_request=self._through()
            ):
                completion = output.outputs[0]
                if reason is None:
                    reason = self._take(flight, completion)
                if completion.weight_versions is not None:
                    spans = completion.weight_versions
                    flight.relabel(begun, ((number_of(span.version) or 0, span.end - span.start) for span in spans))
                if not output.finished and (reason or flight.again or flight.aborted):
                    await self.engine.abort(flight.name)
        return reason or ("abort" if flight.again or flight.aborted or completion.finish_reason == "abort" else "length")

    def _prompt(self, flight: InFlightRequest) -> Any:
        request, tokens = flight.request, [*map(int, flight.request.tokens_T), *flight.tokens]
        if not request.blobs:
            return {"prompt_token_ids": tokens, "cache_salt": self.label()}
        from penstock.serve.vllm_media import shown

        assert isinstance(self.text, MediaText)
        return shown(self.engine, self.text, request, tokens, flight.prompt_columns[MEDIA], self.label())

    async def _stop(self, names: Sequence[str]) -> None:
        if names:
            await self.engine.abort(names)

    def _through(self) -> Any:
        """The adapter that a request goes through. Its number stays: an update changes what lies under it."""
        if self.adapter is None:
            return None
        from vllm.lora.request import LoRARequest

        return LoRARequest("policy", 1, str(self.adapter.folder))

    def _take(self, flight: InFlightRequest, completion: Any) -> FinishReason | None:
        """Append the tokens of an output up to where the sample ends, if it does."""
        known = len(flight.tokens)
        logps = completion.logprobs.logprobs if completion.token_ids else ()
        reason = flight.take(zip(completion.token_ids, logps, strict=True), lambda: self.version, self.text)
        if not flight.forced:
            self.meter.drew(len(flight.tokens) - known, self.spans)
        return reason

    def _parameters(self, flight: InFlightRequest) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        from penstock.serve.vllm_draws import asked

        return SamplingParams(
            temperature=0.0,  # vLLM takes the one token that our draw has left
            max_tokens=flight.limit - len(flight.tokens),
            stop_token_ids=sorted(token for token in flight.stop_tokens if 0 <= token < self.vocabulary),  # vLLM refuses others
            ignore_eos=True,  # the stop tokens are all that there are
            detokenize=False,
            logprobs=0,
            flat_logprobs=True,
            output_kind=RequestOutputKind.DELTA,
            extra_args=asked(flight.request.sampling, str(flight.request.key), len(flight.tokens), flight.forced, self.never),
        )

    # ---- weights

    async def _change(self, update: WeightUpdate, tensors: Mapping[str, Tensor]) -> None:
        manifest = await asyncio.to_thread(self.carrier.write, (update.learner_epoch, update.version), tensors)
        try:
            await self._hand_over(manifest, update.version)
            await self._switch(update)
        finally:
            self.carrier.clear()

    async def _hand_over(self, manifest: Mapping[str, Any], version: Version) -> None:
        """Let the workers take and verify an image while they still run with the old weights.

        Raises:
            WeightError: one of them has not got it; all of them have forgotten it.
        """
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        with blame(WeightError, f"weight update {version} refused by vLLM's workers"):
            await self.engine.start_weight_update()
            scale = {} if self.adapter is None else {"rank": self.adapter.rank, "alpha": self.adapter.alpha}
            sent = {"manifest": dict(manifest), "adapter": scale}
            try:
                async with asyncio.timeout(PATIENCE):
                    await self.engine.update_weights(WeightTransferUpdateRequest(update_info=sent))
                    refusals = await self.engine.collective_rpc("penstock_refusal")
                for rank, reason in enumerate(refusals):
                    if reason:
                        raise WeightError(f"weight update {version} refused by worker {rank} of {len(refusals)}: {reason}")
            except WeightError:
                await self.engine.collective_rpc("penstock_drop")
                raise
            except TimeoutError:
                await self.engine.collective_rpc("penstock_drop")
                raise WeightError(f"weight update {version}: vLLM's workers did not get it in {PATIENCE:.0f} s") from None

    async def _switch(self, update: WeightUpdate) -> None:
        """Stop between two steps, switch, go on."""
        with (
            self._shut(update),
            blame(GenerationError, f"weight update {update.version}: vLLM failed in the middle of the switch"),
        ):
            for flight in self._flights.values():
                flight.again = bool(flight.forced)  # what is scored is scored by one version, also where all are aborted
            clear = update.kv in ("abort", "recompute")  # draining has let every group end
            await self.engine.pause_generation(mode="abort" if update.kv == "abort" else "keep", clear_cache=clear)
            await self.engine.finish_weight_update()
            if self.adapter is not None:  # vLLM forgets adapters when weights have changed, so they come last
                await self.engine.collective_rpc("penstock_replace_adapter")
            self._took(update)
            await self.engine.update_weight_version(self.label())
            await self._restart([flight for flight in self._flights.values() if flight.forced or not flight.tokens])
            await self.engine.resume_generation()

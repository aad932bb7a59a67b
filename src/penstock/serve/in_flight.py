"""What generators over an engine in other processes have in common: requests on their way, and a door that is shut while
weights change."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from penstock.core.errors import GenerationError, ModelError, WeightError
from penstock.core.types import FinishReason, OnToken, Request, Sample, SampleKey, Version, WeightUpdate
from penstock.models.sequence_state import SequenceState, require_room
from penstock.models.text import Text
from penstock.models.updates import require_newer, verified
from penstock.serve.meter import ForeignGenerator

QUEUE = 1 << 16
"""Requests at most."""


@dataclass(eq=False, kw_only=True)
class InFlightRequest(SequenceState):
    """One request on its way through an engine."""

    forced: Sequence[int] = ()
    """Tokens to score instead of generating."""
    name: str = ""
    """What the engine calls it; another one after every restart."""
    again: bool = False
    """It is to be begun again, under newer weights."""
    ended: asyncio.Future[FinishReason] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Resolved once nothing more is generated for it."""
    aborted: bool = False

    def take(self, generated: Iterable[tuple[int, float]], version: Callable[[], Version], text: Text) -> FinishReason | None:
        """Append (token, log-prob) pairs up to where the sample ends, and say why, if it does."""
        for token, logp in generated:
            self.append(int(token), float(logp), version())
            reason = self.finish_reason(text)
            if reason is not None:
                return reason
        return None

    def relabel(self, begun: int, spans: Iterable[tuple[Version, int]]) -> None:
        """Set the versions of the tokens from ``begun`` on, as (version, tokens) of spans that the engine reports."""
        generated = [version for version, count in spans for _ in range(count)]
        self.versions[begun:] = generated[: len(self.tokens) - begun]


class InFlightRequests(ForeignGenerator, ABC):
    """A generator whose requests fly; subclasses say how one passes through the engine, and how it is stopped there.

    ``engine_name`` is for errors.
    """

    engine_name = ""
    reads_media = False

    def __init__(self, text: Text, own: Mapping[str, Any], *, context: int, version: Version = -1) -> None:
        """``own``: name to shape and type of the weights that updates bring; ``context``: the longest sequence."""
        super().__init__(text, version)
        self.own, self.context = own, context
        self._flights: dict[int, InFlightRequest] = {}
        self._serial = 0
        self._loading = asyncio.Lock()
        self._open = asyncio.Event()
        """Set unless weights are being changed: then requests wait at the door."""
        self._open.set()
        self._broken: GenerationError | None = None

    @abstractmethod
    async def _pass(self, flight: InFlightRequest) -> FinishReason:
        """One request of the engine's: append what it draws, set the versions that it reports, say why it ended.

        "abort" where it was stopped; what it drew so far stays.
        """

    @abstractmethod
    async def _stop(self, names: Sequence[str]) -> None:
        """Have the engine end requests of these names."""

    @abstractmethod
    async def _change(self, update: WeightUpdate, tensors: Mapping[str, Any]) -> None:
        """Bring verified tensors to the engine and switch over. Raises what :meth:`load` raises."""

    async def generate(self, request: Request, on_token: OnToken | None = None) -> Sample:
        """Draw one sample; ``on_token`` hears the version that is in use when a token arrives here.

        Raises:
            GenerationError: the prompt is empty, does not fit the context or has media, too many requests wait, or the engine
                failed or refuses the request.
            ConnectionLost: a server is gone.
        """
        require_room(request, self.context)
        if request.blobs and not self.reads_media:
            raise GenerationError(f"{request.key}: the prompt has media, which {self.engine_name} is not sent; use Embedded")
        try:
            columns = self.text.media_columns(request.tokens_T, request.blobs)
        except ModelError as error:
            raise GenerationError(f"{request.key}: {error}") from error
        if request.sampling.beta:
            raise GenerationError(
                f"{request.key}: beta={request.sampling.beta} needs Q heads, which {self.engine_name} has not; use beta=0"
            )
        flight = InFlightRequest(
            request=request,
            prompt_columns=columns,
            limit=min(request.sampling.max_new_tokens, self.context - len(request.tokens_T)),
            stop_tokens=self.text.stops(request.sampling),
            on_token=on_token,
        )
        reason = flight.finish_reason(self.text) or await self._fly(flight)
        return flight.sample(reason, self.text)

    async def abort(self, keys: Collection[SampleKey]) -> list[Sample]:
        """Stop the named samples; gives what was generated so far, fit to resume from."""
        wanted = set(keys)
        found = [flight for flight in self._flights.values() if flight.request.key in wanted and not flight.forced]
        for flight in found:
            flight.aborted, flight.again = True, False
        await self._stop(_named(found))
        reasons = await asyncio.gather(*(flight.ended for flight in found), return_exceptions=True)
        return [flight.sample("abort", self.text) for flight, reason in zip(found, reasons, strict=True) if reason == "abort"]

    async def _fly(self, flight: InFlightRequest) -> FinishReason:
        """From the engine's queue to the last token; as often as the request is begun again."""
        if len(self._flights) >= QUEUE:
            raise GenerationError(f"{flight.request.key}: {QUEUE} requests are waiting already")
        self.meter.enter(self.spans.clock())
        self._flights[id(flight)] = flight
        try:
            while True:
                await self._open.wait()
                if self._broken is not None:
                    raise self._broken
                flight.again = False
                self._serial += 1
                flight.name = f"{flight.request.key}/{self._serial}"
                reason: FinishReason = "abort" if flight.aborted else await self._pass(flight)
                if reason != "abort" or not flight.again:
                    break
            flight.ended.set_result(reason)
            return reason
        finally:
            flight.ended.cancel()  # who waits for its end need not, where it was cancelled or failed
            del self._flights[id(flight)]
            self.meter.leave(self.spans)

    async def _restart(self, flights: Sequence[InFlightRequest]) -> None:
        """Have flights begin again; their tokens so far stay."""
        for flight in flights:
            flight.again = True
        await self._stop(_named(flights))

    # ---- weights

    async def load(self, update: WeightUpdate) -> Version:
        """Take new weights between two steps of the engine; what becomes of the cache is the update's ``kv``.

        Requests of which no token is generated yet begin again, so that they read no prefix of the old weights.

        Raises:
            WeightError: the update was refused; the old weights and version are still in place.
            GenerationError: the engine failed in the middle of the switch; it must be started anew.
        """
        async with self._loading:
            require_newer(update, (self.learner_epoch, self.version))
            if update.tensors is None:
                raise WeightError(
                    f"weight update {update.version} refused: it brings no tensors, and {self.engine_name} shares no memory "
                    f"with the learner"
                )
            await self._change(update, await asyncio.to_thread(verified, self.own, update))
        return self.version

    def label(self) -> str:
        """How the engine calls the weights in use."""
        return f"{self.learner_epoch}.{self.version}"

    @contextmanager
    def _shut(self, update: WeightUpdate) -> Iterator[None]:
        """Within it requests wait at the door; what fails but the update's refusal leaves a generator that refuses all."""
        stalled = self.spans.clock()
        self._open.clear()
        try:
            yield
        except GenerationError as error:
            self._broken = error
            raise
        finally:
            self._open.set()
        self.spans.add("update", stalled, self.spans.clock(), version=update.version)


def number_of(label: str) -> Version | None:
    """The version in a label of ours (``learner_epoch.version``); None for another's."""
    number = label.partition(".")[2]
    return int(number) if number.isdigit() else None


def _named(flights: Iterable[InFlightRequest]) -> list[str]:
    return [flight.name for flight in flights if flight.name]

"""What a server serves: one engine with its tokenizer, its limits, and the places in it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from penstock.core.contracts import StreamingGenerator
from penstock.core.types import Request, Sample, SampleKey, Version, WeightUpdate
from penstock.serve.media import RequestMedia
from penstock.serve.metrics import Metrics
from penstock.web.crowd import Bodies
from penstock.web.guard import BodyLimits
from penstock.web.refusals import Refusal

if TYPE_CHECKING:
    from penstock.models.text import Text


@dataclass(frozen=True)
class Limits(BodyLimits):
    """What one client may ask of a server. Bytes, seconds, samples."""

    room: int = 256
    """Samples that may run and wait at once; more are refused until some have ended."""
    samples: int = 128
    """Samples of one request: its prompts times ``n``. Never more than ``room``: it could not be answered at any time."""
    send_seconds: float = 30.0
    """In which a client must take what is sent to it."""
    request_seconds: float = 600.0
    """In which a request is answered, or a weight update is in."""
    bodies: Bodies = field(default_factory=lambda: Bodies(1 << 30, 1 << 30), compare=False)
    """More than other servers take: a trainer has hundreds of requests under way, and who may generate is known."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "samples", min(self.samples, self.room))


class Receiver(Protocol):
    """Where weights come from; its methods but ``group`` block, so they are called in a thread."""

    def group(self, kind: str, folder: str, name: str) -> None:
        """Take part in a channel from now on."""
        ...

    def open(self, manifest: Mapping[str, Any]) -> WeightUpdate:
        """The verified update that a manifest of the channel announces."""
        ...

    def unpack(self, manifest: Mapping[str, Any], image: bytearray) -> WeightUpdate:
        """The verified update in an image that came with its manifest."""
        ...

    def sums(self) -> list[str]:
        """Checksums of the weights in use."""
        ...

    @property
    def image_bytes(self) -> int:
        """How large an image of this model's weights may be."""
        ...


@dataclass
class Service:
    """One model behind an API. ``context`` and ``vocabulary`` are the model's, in tokens."""

    name: str
    engine: StreamingGenerator
    text: Text
    context: int
    vocabulary: int
    limits: Limits = field(default_factory=Limits)
    receiver: Receiver | None = None
    media: RequestMedia | None = None
    """The media of requests, of a model that reads some; its ``text`` is made to find them there."""
    created: int = field(default_factory=lambda: int(time.time()))
    metrics: Metrics = field(default_factory=Metrics)
    paused: bool = False
    taken: int = 0
    """Samples that hold a place."""
    keys: list[SampleKey] = field(default_factory=list)
    """Samples that the engine is at."""
    learner_epoch: int = 0
    """The learner's, of the last update."""

    def __post_init__(self) -> None:
        if self.media is not None:
            self.text.store = self.media

    @property
    def version(self) -> Version:
        return self.engine.stats().version

    @contextmanager
    def places(self, samples: int) -> Iterator[None]:
        """Within it so many samples are under way. Raises Refusal where there is no room for them."""
        if self.taken + samples > self.limits.room:
            raise Refusal(
                429, f"{self.taken} samples are under way and the server takes {self.limits.room}; try again later",
                code="queue_full", headers={"Retry-After": "1"},
            )  # fmt: skip
        self.taken += samples
        try:
            yield
        finally:
            self.taken -= samples


@dataclass(frozen=True)
class Token:
    """A token of one of the samples of a request."""

    index: int
    token: int
    logp: float
    version: Version


@dataclass(frozen=True)
class Ended:
    """One of the samples of a request, whole."""

    index: int
    sample: Sample


async def token_events(service: Service, requests: Sequence[Request]) -> AsyncGenerator[list[Token | Ended], None]:
    """What becomes of requests that run side by side, as it happens; those that are left are given up when it is closed.

    Raises what the engine raises for any of them, and TimeoutError where they take longer than a request may.
    """
    room = sum(request.sampling.max_new_tokens + 1 for request in requests)
    events: asyncio.Queue[Token | Ended | Exception] = asyncio.Queue(maxsize=room)

    async def one(index: int, request: Request) -> None:
        try:
            sample = await service.engine.generate(
                request, lambda token, logp, version: events.put_nowait(Token(index, token, logp, version))
            )
            events.put_nowait(Ended(index, sample))
        except Exception as error:
            events.put_nowait(error)

    began, first = time.perf_counter(), True
    tasks = [asyncio.create_task(one(index, request)) for index, request in enumerate(requests)]
    left = len(tasks)
    deadline = asyncio.get_running_loop().time() + service.limits.request_seconds
    service.keys += [request.key for request in requests]
    try:
        while left:
            async with asyncio.timeout_at(deadline):
                batch = [await events.get()]
            while not events.empty():
                batch.append(events.get_nowait())
            happened: list[Token | Ended] = []
            for event in batch:
                if isinstance(event, Exception):
                    raise event
                happened.append(event)
                left -= isinstance(event, Ended)
            if first:
                service.metrics.first_token.observe(time.perf_counter() - began)
                first = False
            yield happened
    finally:
        for request, task in zip(requests, tasks, strict=True):
            service.keys.remove(request.key)
            task.cancel()


async def generate_all(service: Service, requests: Sequence[Request]) -> list[Sample]:
    """The samples of requests that run side by side, in their order."""
    found: dict[int, Sample] = {}
    async for events in token_events(service, requests):
        found |= {event.index: event.sample for event in events if isinstance(event, Ended)}
    return [found[index] for index in range(len(requests))]

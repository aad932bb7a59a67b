"""Events on their way to those who listen to a run: never slower than the run, never its end."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from penstock.core.errors import PenstockError
from penstock.core.events import Event
from penstock.runtime.bootstrap import Bootstrap
from penstock.stream.verbs import remote, verb

Listener = Callable[[Event], None]

CAPACITY = 10_000
"""Events that wait for one listener; those beyond it never hear of."""
DRAINING = 10.0
"""Seconds in which a listener may take what still waits when the run is over."""


class Delivery:
    """One listener, called in a thread of its own with one event after the other. What it raises becomes a warning."""

    def __init__(self, listener: Listener, capacity: int = CAPACITY) -> None:
        self.listener = listener
        self._waiting: queue.Queue[Event | None] = queue.Queue(capacity)
        self._missed = 0
        self._thread = threading.Thread(target=self._deliver, name="listener", daemon=True)
        self._thread.start()

    def __call__(self, event: Event) -> None:
        """Have an event delivered. Never waits: where too many wait already, this one is missed."""
        try:
            self._waiting.put_nowait(event)
        except queue.Full:
            self._missed += 1

    def close(self, seconds: float = DRAINING) -> None:
        """Wait until everything is delivered, at most so many seconds; warns of what was missed."""
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=seconds)
        self._thread.join(seconds)
        missed = self._missed + (self._waiting.qsize() if self._thread.is_alive() else 0)
        if missed:
            self._warn(f"is too slow and missed {missed} events; the run's log has them all")

    def _deliver(self) -> None:
        failed = False
        while (event := self._waiting.get()) is not None:
            try:
                self.listener(event)
            except Exception as error:
                if not failed:
                    self._warn(f"failed ({type(error).__name__}: {error}); the run goes on")
                failed = True

    def _warn(self, what: str) -> None:
        warnings.warn(f"the listener {self.listener!r} {what}", stacklevel=3)


@contextlib.contextmanager
def delivering(listeners: Iterable[Listener]) -> Any:
    """Deliveries to all of ``listeners``, which have everything when the block ends."""
    deliveries = [Delivery(listener) for listener in listeners]
    try:
        yield deliveries
    finally:
        for delivery in deliveries:
            delivery.close()


class EventVerbs:
    """What the learner's process tells the one that launched the run. ``ended`` hears how the learner ended."""

    def __init__(self, listeners: Iterable[Listener], ended: Callable[[str, str], None]) -> None:
        self.listeners, self.ended = listeners, ended

    @verb()
    async def event(self, event: Event) -> None:
        """An event of the learner's log, for the listeners here."""
        for listener in self.listeners:
            listener(event)

    @verb()
    async def outcome(self, kind: str, message: str) -> None:
        """How the learner ended: the kind of its error and what it says; none if ``kind`` is empty."""
        self.ended(kind, message)


class EventSender:
    """A listener in the learner's process: sends events to the hub, and with it to the process that launched the run.

    In a thread with an event loop of its own, because stages are made ready without one. Where the hub is gone, nothing is
    sent; the run's log holds everything. The thread ends with the block, whatever ends that.
    """

    def __init__(self, bootstrap: Bootstrap) -> None:
        self.bootstrap = bootstrap
        self._waiting: queue.Queue[Event | None] = queue.Queue(CAPACITY)
        self._outcome: dict[str, str] | None = None
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)
        self._thread.start()

    def __call__(self, event: Event) -> None:
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(event)

    def __enter__(self) -> EventSender:
        return self

    def __exit__(self, *exc: object) -> None:
        """Send what still waits, and how the run ended if it has; at most :data:`DRAINING` seconds."""
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=DRAINING)
        self._thread.join(DRAINING)

    def ended(self, error: BaseException | None = None) -> None:
        """The run is over, by ``error`` if there was one; a learner that will be started again does not say so."""
        self._outcome = {"kind": type(error).__name__, "message": str(error)} if error else {"kind": "", "message": ""}

    def _run(self) -> None:
        with contextlib.suppress(PenstockError):
            asyncio.run(self._send())

    async def _send(self) -> None:
        from penstock.runtime.remote import joined

        async with joined(self.bootstrap, "learner-events", "events", dict) as hub:
            events = remote(EventVerbs, hub.client)
            while (event := await asyncio.to_thread(self._waiting.get)) is not None:
                await events.event(event)
            if self._outcome is not None:
                await events.outcome(**self._outcome)

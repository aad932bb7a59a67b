"""Events on their way to those who listen to a run: never slower than the run, never its end."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from penstock.core.errors import PenstockError
from penstock.core.events import Event
from penstock.observe.monitors import Monitor
from penstock.runtime.bootstrap import Bootstrap
from penstock.stream.verbs import remote, verb

Listener = Callable[[Event], None]

CAPACITY = 10_000
"""Events that wait for one listener; those beyond it never hear of."""
DRAINING = 10.0
"""Seconds in which a listener may take what still waits when the run is over."""
PAUSE = 10.0
"""Seconds that the thread of a monitor sleeps between two batches: waking up at each step would cost more than the work."""


class EventQueue:
    """Events that wait for ``take``, which has a thread of its own and is given batch after batch until they end. After each
    batch the thread sleeps for ``pause`` seconds."""

    def __init__(self, take: Callable[[Iterator[list[Event]]], None], capacity: int = CAPACITY, pause: float = 0.0) -> None:
        self._waiting = queue.SimpleQueue[Event | None]()
        self._capacity, self._pause, self._closing = capacity, pause, threading.Event()
        self._accepted = self._taken = 0
        self.missed = 0
        """Events for which there was no room."""
        self._thread = threading.Thread(target=take, args=[self._batches()], name="events", daemon=True)
        self._thread.start()

    def __call__(self, event: Event) -> None:
        """Never waits: where too many wait already, this one is missed."""
        if self._accepted - self._taken < self._capacity:
            self._accepted += 1
            self._waiting.put(event)
        else:
            self.missed += 1

    def _batches(self) -> Iterator[list[Event]]:
        ended = False
        while not ended:
            batch = [self._waiting.get()]
            batch += [self._waiting.get() for _ in range(self._waiting.qsize())]
            ended = None in batch
            yield (events := [event for event in batch if event is not None])
            self._taken += len(events)
            self._closing.wait(self._pause)

    def close(self, seconds: float = DRAINING) -> None:
        """There are no more; wait until all are taken, at most so many seconds. Those that are not by then are missed."""
        self._waiting.put(None)
        self._closing.set()
        self._thread.join(seconds)
        self.missed += self._accepted - self._taken if self._thread.is_alive() else 0


class Delivery(EventQueue):
    """One listener, called in its own thread; a ``monitor``'s ``flush`` comes after each batch, ``ended`` after the last one.
    What any of them raises becomes one warning, and so does how much of the run it has missed."""

    def __init__(self, listener: Listener, capacity: int = CAPACITY, monitor: Monitor | None = None) -> None:
        self.listener, self.monitor, self._failed = listener, monitor, False
        super().__init__(self._deliver, capacity, PAUSE if monitor else 0.0)

    def close(self, seconds: float = DRAINING) -> None:
        super().close(seconds)
        if self.missed:
            self._warn(f"is too slow and missed {self.missed} events; the run's log has them all")

    def _deliver(self, batches: Iterator[list[Event]]) -> None:
        for events in batches:
            for event in events:
                self._attempt(self.listener, event)
            if self.monitor:
                self._attempt(self.monitor.flush)
        if self.monitor:
            self._attempt(self.monitor.ended)

    def _attempt(self, call: Callable[..., None], *given: Event) -> None:
        try:
            call(*given)
        except Exception as error:
            if not self._failed:
                self._warn(f"failed ({type(error).__name__}: {error}); the run goes on")
            self._failed = True

    def _warn(self, what: str) -> None:
        """Past the filters, which are those of the whole process: another thread may have silenced all warnings just now."""
        warnings.showwarning(f"the listener {self.listener!r} {what}", UserWarning, __name__, 0)  # type: ignore[arg-type]


@contextlib.contextmanager
def delivering(listeners: Iterable[Listener], monitors: Iterable[Monitor] = ()) -> Any:
    """Deliveries to all of ``listeners`` and ``monitors``, which have everything when the block ends; they end side by side."""
    made = [*map(Delivery, listeners), *(Delivery(one, monitor=one) for one in monitors)]
    try:
        yield made
    finally:
        with ThreadPoolExecutor(max(1, len(made))) as closing:
            list(closing.map(Delivery.close, made))


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


class EventSender(EventQueue):
    """A listener in the learner's process: sends events to the hub, and with it to the process that launched the run.

    In a thread with an event loop of its own, because stages are made ready without one. Where the hub is gone, nothing is
    sent; the run's log holds everything. The thread ends with the block, whatever ends that.
    """

    def __init__(self, bootstrap: Bootstrap) -> None:
        self.bootstrap = bootstrap
        self._outcome: dict[str, str] | None = None
        super().__init__(self._run)

    def __enter__(self) -> EventSender:
        return self

    def __exit__(self, *exc: object) -> None:
        """Send what still waits, and how the run ended if it has; at most :data:`DRAINING` seconds."""
        self.close()

    def ended(self, error: BaseException | None = None) -> None:
        """The run is over, by ``error`` if there was one; a learner that will be started again does not say so."""
        self._outcome = {"kind": type(error).__name__, "message": str(error)} if error else {"kind": "", "message": ""}

    def _run(self, batches: Iterator[list[Event]]) -> None:
        with contextlib.suppress(PenstockError):
            asyncio.run(self._send(batches))

    async def _send(self, batches: Iterator[list[Event]]) -> None:
        from penstock.runtime.remote import joined

        async with joined(self.bootstrap, "learner-events", "events", dict) as hub:
            launcher = remote(EventVerbs, hub.client)
            while (events := await asyncio.to_thread(next, batches, None)) is not None:
                for event in events:
                    await launcher.event(event)
            if self._outcome is not None:
                await launcher.outcome(**self._outcome)

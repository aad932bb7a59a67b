"""Checkpoints written next to training: the loop waits for a copy of the states in memory, a thread does the rest.

One save is under way at most: the next one waits for it. What the threads have to say, errors among it, is heard by the loop's
thread, at its next step. A state in pieces on several ranks (FSDP, ZeRO) is written before training goes on, as its parts are
gathered one by one and change with the next step.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from penstock.ckpt.mirror import FINAL_SECONDS, STOPPED_SECONDS, Mirror
from penstock.ckpt.store import CheckpointStore, Pending, Position
from penstock.core.contracts import State
from penstock.core.errors import CheckpointError


class Saver:
    """Saves into ``store``, and asks the ``mirror`` to upload. ``report`` hears of it in the thread that made this; within a
    ``with`` block, whose end waits for everything."""

    def __init__(self, store: CheckpointStore, report: Callable[..., None], mirror: Mirror | None = None) -> None:
        self.store, self.report, self.mirror = store, report, mirror
        self._home = threading.current_thread()
        self._notes: deque[tuple[str, dict[str, Any]]] = deque()
        self._worker = ThreadPoolExecutor(1, "checkpoint")
        self._under_way: list[Future[None]] = []
        self._writing: int | None = None
        """Step of the checkpoint that the thread writes."""
        self._durable: Position | None = None
        store.report = self._note

    def __enter__(self) -> Saver:
        if self.mirror is not None:
            self.mirror.start(self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            self.wait()
        except CheckpointError as failure:
            if kind is None:
                raise
            self.report("checkpoint failed", reason=str(failure))  # the error that ends the run is the other one
        finally:
            self._worker.shutdown()
            missing = self.mirror.close(STOPPED_SECONDS if kind else FINAL_SECONDS) if self.mirror is not None else ""
            self._deliver()
        if missing and kind is None:
            raise CheckpointError(missing)
        if missing:
            self.report("store failed", reason=missing)

    def save(self, position: Position, states: Mapping[str, State], **about: Any) -> None:
        """Begin to save as :meth:`CheckpointStore.save` does; on return nothing refers to the states any more.

        Raises:
            CheckpointError: what cannot be kept exactly; or the save before failed.
        """
        self.wait()
        pending = self.store.prepare(position, states, **about)
        if pending.in_pieces:
            self._write(pending)
        else:
            self._under_way.append(self._worker.submit(self._write, pending.copied()))

    def rate(self, position: Position, score: float | None) -> None:
        """As :meth:`CheckpointStore.rate`, once what is under way is written."""
        self._under_way.append(self._worker.submit(self.store.rate, position, score))

    def look(self) -> Position | None:
        """Say what was heard; gives the checkpoint that became durable since the last look.

        Raises:
            CheckpointError: a save failed, or another process writes the run to the object store.
        """
        self._deliver()
        for done in [one for one in self._under_way if one.done()]:
            self._under_way.remove(done)
            done.result()
        if self.mirror is not None:
            self.mirror.check()
        durable, self._durable = self._durable, None
        return durable

    def wait(self) -> None:
        """Wait until everything under way is durable on the local disk. Raises CheckpointError where it is not."""
        while self._under_way:
            self._under_way.pop(0).result()
        self._deliver()

    def begun(self) -> None:
        """The run's folder stays: it may be mirrored."""
        if self.mirror is not None:
            self.mirror.ask()

    def _write(self, pending: Pending) -> None:
        self._writing = pending.position.step
        try:
            self.store.write(pending)
        finally:
            self._writing = None
        self._durable = pending.position
        self.begun()

    def _note(self, what: str, **fields: Any) -> None:
        """Called in any thread."""
        about = fields if self._writing is None else {**fields, "step": self._writing}
        self._notes.append((what, about))
        if threading.current_thread() is self._home:
            self._deliver()

    def _deliver(self) -> None:
        while self._notes:
            what, fields = self._notes.popleft()
            self.report(what, **fields)

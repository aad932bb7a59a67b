"""Deadlines for functions that may hang: plain ones run in daemon threads, so that a hung one costs a thread, not the run."""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
from collections.abc import Callable
from typing import Any

from penstock.core.errors import PenstockError


class DeadlineError(Exception):
    """A function passed its deadline of so many seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"timed out after {seconds:g} s")


class StuckError(PenstockError):
    """Too many threads are stuck in functions that passed their deadline; a run cannot go on like this."""


class _Worker:
    """One daemon thread that runs jobs one after another; owned by a pool and touched on its event loop only."""

    def __init__(self, name: str) -> None:
        self.jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.abandoned = False
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        while (job := self.jobs.get()) is not None:
            job()


class Threads:
    """Runs plain functions in at most ``size`` daemon threads at once.

    A job that passes its deadline is abandoned: its thread cannot be stopped, so another takes its place until the job
    ends by itself. With ``most_abandoned`` threads stuck, everything asked from then on is refused.
    """

    def __init__(self, name: str, size: int = 32, most_abandoned: int = 8) -> None:
        self.abandoned = 0
        self._name = name
        self._size = size
        self._most_abandoned = most_abandoned
        self._idle: list[_Worker] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._places = asyncio.Semaphore(size)

    async def run(self, function: Callable[[], Any], deadline: float | None) -> Any:
        """Give what ``function`` returns or raises, within ``deadline`` seconds (None: no end).

        Waits for a free thread first, which the deadline does not count.

        Raises:
            DeadlineError: the deadline passed.
            StuckError: too many threads are stuck; nothing can be trusted to finish any more.
        """
        async with self._place():
            if self.abandoned >= self._most_abandoned:
                raise StuckError(
                    f"{self.abandoned} threads of {self._name} are stuck in functions that passed their deadline; "
                    "give the function a time limit of its own, or raise its deadline"
                )
            worker = self._idle.pop() if self._idle else _Worker(self._name)
            loop = asyncio.get_running_loop()
            answer: asyncio.Future[Any] = loop.create_future()

            def job() -> None:
                try:
                    outcome: Any = function()
                    failed = False
                except BaseException as error:
                    # A thread must survive what would end the process: sys.exit() in a reward fails that reward.
                    outcome = error if isinstance(error, Exception) else PenstockError(f"raised {type(error).__name__}")
                    failed = True
                try:
                    loop.call_soon_threadsafe(self._finish, worker, answer, outcome, failed)
                except RuntimeError:  # the loop is closed: an abandoned function has ended at last
                    self._retire(worker)

            worker.jobs.put(job)
            try:
                # asyncio.wait, unlike wait_for, prefers an answer that arrived while the loop was busy elsewhere.
                await asyncio.wait({answer}, timeout=deadline)
            finally:
                if not answer.done():
                    worker.abandoned = True
                    self.abandoned += 1
                    answer.cancel()
            if answer.cancelled():
                raise DeadlineError(deadline or 0)
            outcome, failed = answer.result()
            if failed:
                raise outcome
            return outcome

    def _finish(self, worker: _Worker, answer: asyncio.Future[Any], outcome: Any, failed: bool) -> None:
        if worker.abandoned:
            self._retire(worker)
        else:
            self._idle.append(worker)
            answer.set_result((outcome, failed))

    def _retire(self, worker: _Worker) -> None:
        self.abandoned -= worker.abandoned
        worker.jobs.put(None)

    def _place(self) -> asyncio.Semaphore:
        """The semaphore of the running loop: one pool may serve several loops, one after another."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._places = loop, asyncio.Semaphore(self._size)
        return self._places

    def close(self) -> None:
        """Let idle threads end; stuck ones die with the process."""
        while self._idle:
            self._idle.pop().jobs.put(None)


def is_asynchronous(function: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine: a function, or an object with such a ``__call__``."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


async def bounded(call: Any, deadline: float | None) -> Any:
    """Await a coroutine for at most ``deadline`` seconds; one that ignores its cancellation is left behind.

    Raises:
        DeadlineError: the deadline passed.
    """
    task = asyncio.ensure_future(call)
    try:
        await asyncio.wait({task}, timeout=deadline)
    finally:
        finished = task.done()
        if not finished:
            task.cancel()
    if not finished:
        raise DeadlineError(deadline or 0)
    return task.result()

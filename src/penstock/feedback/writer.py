"""Group commit: what many threads want written at once is written by one of them in turn and made durable by one commit.

A commit that waits for the disk costs milliseconds, a vote a fraction of one. While one commit is under way the next verbs
gather, and then go together.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from typing import Any, NamedTuple, TypeVar

from sqlalchemy.engine import Connection

from penstock.feedback.errors import StoreUnavailable
from penstock.feedback.statements import driver

T = TypeVar("T")

MOST_WAITING = 1024
"""Verbs that may wait for the writer; who comes on top waits for a place first."""
MOST_TOGETHER = 64
"""Verbs in one transaction: so long may others, in this process or another, have to wait."""

UNKNOWN = "it may have been written: send it again under its key"


class Job(NamedTuple):
    """A verb that waits for the writer, and where its outcome goes."""

    verb: Callable[[Connection], Any]
    outcome: Future[Any]


class GroupWriter:
    """A thread that runs verbs, each all or nothing, and answers once they are durable. It starts with the first verb."""

    def __init__(self, transaction: Callable[[], AbstractContextManager[Connection]], name: str, seconds: float) -> None:
        """
        Args:
            transaction: begins a transaction that is durable when its block ends, and leaves nothing when that raises.
            name: the store's, for errors.
            seconds: after which a caller gives up.
        """
        self.name = name
        self._transaction = transaction
        self._seconds = seconds
        self._waiting: queue.Queue[Job | None] = queue.Queue(MOST_WAITING)
        self._start = threading.Lock()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self._end = ""
        """Why later verbs are refused; empty while the writer serves."""
        self._last = False
        """Whether no further batch comes."""

    def run(self, verb: Callable[[Connection], T]) -> T:
        """What the verb gives or raises, after it is durable or undone. The verb must not call :meth:`run` itself.

        Raises:
            StoreUnavailable: it could not be made durable, its turn did not come in time, or the writer has ended.
        """
        self._require_alive()
        job = Job(verb, Future())
        try:
            self._waiting.put(job, timeout=self._seconds)
        except queue.Full:
            raise self._error(f"{MOST_WAITING} acts wait already; nothing was written, try again later") from None
        if self._last:  # it ended between the first look and the put, and may not see this job
            self._refuse_waiting()
        try:
            return job.outcome.result(self._seconds)
        except TimeoutError:
            if job.outcome.done():  # the verb's own
                raise
            if job.outcome.cancel():
                raise self._error(f"no turn in {self._seconds:g} seconds; nothing was written, try again later") from None
            raise self._error(f"no answer in {self._seconds:g} seconds; {UNKNOWN}") from None

    def close(self) -> None:
        """Write what waits, as long as callers would wait for it, then end. Later verbs are refused."""
        with self._start:
            self._end, thread = self._end or "it is closed", self._thread
        if thread is not None and self._process == os.getpid():
            with suppress(queue.Full):  # a database that does not answer must not keep the process from ending
                self._waiting.put(None, timeout=self._seconds)
            thread.join(self._seconds)

    def _require_alive(self) -> None:
        if self._process != os.getpid():
            raise self._error("it was opened by another process, before a fork; open it again in this one")
        if threading.current_thread() is self._thread:
            raise self._error("a verb asks for another verb; call its function with the connection instead")
        if self._thread is None:
            with self._start:
                if self._thread is None and not self._end:
                    self._thread = threading.Thread(target=self._serve, name=f"writer of {self.name}", daemon=True)
                    self._thread.start()
        if self._end:
            raise self._error(self._end)

    def _serve(self) -> None:
        try:
            while not self._last:
                self._write(self._gather())
        except BaseException as error:
            self._end = f"its writer has died ({error!r:.200}); open the store again"
            raise
        finally:
            self._last = True
            self._refuse_waiting()

    def _gather(self) -> list[Job]:
        """The verbs that wait, at least one unless the writer is told to end."""
        batch: list[Job] = []
        job = self._waiting.get()
        while job is not None:
            batch.append(job)
            if len(batch) == MOST_TOGETHER:
                return batch
            try:
                job = self._waiting.get_nowait()
            except queue.Empty:
                return batch
        self._last = True
        return batch

    def _write(self, batch: list[Job]) -> None:
        """Run the verbs in one transaction. A verb that raises leaves nothing; if the transaction fails none does."""
        ran: list[tuple[Job, Any, Exception | None]] = []
        failure: BaseException | None = None
        told = "nothing was written"
        if not batch:
            return
        try:
            with self._transaction() as connection:
                for job in batch:
                    # Only now: until here its caller may still give up, and then nothing is written.
                    if job.outcome.set_running_or_notify_cancel():
                        alone = len(batch) == 1
                        ran.append((job, job.verb(connection), None) if alone else (job, *_attempt(connection, job.verb)))
                if connection.dialect.name != "sqlite":  # a server may have committed before the connection was lost
                    told = UNKNOWN
        except BaseException as error:
            failure = error
        if isinstance(failure, Exception) and len(batch) == 1 and batch[0].outcome.running() and told != UNKNOWN:
            batch[0].outcome.set_exception(failure)
            return
        if failure is not None:
            for job in batch:
                self._refuse(job, f"{told}: {failure}", failure)
            if not isinstance(failure, Exception):
                raise failure
            return
        for job, given, refusal in ran:
            if refusal is None:
                job.outcome.set_result(given)
            else:
                job.outcome.set_exception(refusal)

    def _refuse_waiting(self) -> None:
        while True:
            try:
                job = self._waiting.get_nowait()
            except queue.Empty:
                return
            if job is not None:
                self._refuse(job, self._end)

    def _refuse(self, job: Job, why: str, cause: BaseException | None = None) -> None:
        outcome = job.outcome
        if not outcome.cancelled() and (outcome.running() or outcome.set_running_or_notify_cancel()):
            refusal = self._error(why)
            refusal.__cause__ = cause
            outcome.set_exception(refusal)

    def _error(self, what: str) -> StoreUnavailable:
        return StoreUnavailable(f"feedback store {self.name}: {what}")


def _attempt(connection: Connection, verb: Callable[[Connection], T]) -> tuple[T | None, Exception | None]:
    """Run a verb behind a savepoint, and go back to it if it raises.

    A database that has given up the whole transaction refuses to go back: that error ends the batch.
    """
    statements = driver(connection)
    statements.execute("SAVEPOINT verb")
    try:
        given = verb(connection)
    except Exception as error:
        statements.execute("ROLLBACK TO SAVEPOINT verb")
        statements.execute("RELEASE SAVEPOINT verb")
        return None, error
    if connection.dialect.name == "sqlite":  # elsewhere a message; the next savepoint of the name hides this one
        statements.execute("RELEASE SAVEPOINT verb")
    return given, None

"""The ranks of this process's learners: this process is rank 0, the others are started, and all carry out the same verbs.

Several learners may live on one fleet, one part of each in every rank. A process has one fleet at a time.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import torch

from penstock.core import errors
from penstock.core.errors import ConnectionLost, DeadlinePassed, PenstockError, RanksLost, TrainingError
from penstock.train import world
from penstock.train.launcher import Launcher, RankHandle
from penstock.train.part import RefusedElsewhere
from penstock.train.verbs import UNANSWERED, Parts

SECONDS = 600.0
"""How long one verb may take on any rank before the learner gives up."""
STARTING = 180.0
"""How long the ranks may take to start and to find each other."""
GRACE = 5.0
"""Seconds in which ranks that broke off together may say why."""

_current: Fleet | None = None
_launcher: Launcher | None = None


class Fleet:
    """``size`` ranks of which this process is the first. ``threads`` are those of each.

    Raises:
        RanksLost: a rank does not start; names it and its last words.
    """

    def __init__(self, size: int, device: torch.device, launcher: Launcher | None = None, seconds: float = SECONDS) -> None:
        self.size, self.device, self.seconds = size, device, seconds
        self.launcher = launcher or Launcher()
        self.threads = self.launcher.threads(size)
        self.broken = ""
        self.holders = 0
        self._kept = self._member = False
        self._left: list[int] = []
        """Learners that are gone; their parts are dropped before the next verb, never in the middle of one."""
        self._lock = threading.RLock()
        self._folder = self.launcher.folder()
        self.handles: list[RankHandle] = []
        bootstrap: dict[str, Any] = {
            "size": size, "device": device.type, "threads": self.threads, "seconds": seconds, "across": self.launcher.across,
            "store": os.path.join(self._folder, "store"), "path": [path for path in sys.path if path],
        }  # fmt: skip
        try:
            with self.launcher.launching():
                for rank in range(1, size):
                    self.handles.append(self.launcher.launch({**bootstrap, "rank": rank}))
            self.parts = Parts(self._join(bootstrap["store"]))
            self._answers("start", STARTING)
        except BaseException:
            self.close()
            raise

    def _join(self, store: str) -> world.World:
        for rank, handle in enumerate(self.handles, 1):  # all must live before this process waits for them
            self._heard(rank, handle, "start", STARTING)
        torch.set_num_threads(self.threads)
        device = torch.device("cuda:0") if self.device.type == "cuda" else self.device
        joined = world.join(0, self.size, device, store, self.seconds, self.launcher.across)
        self._member = True
        return joined

    def call(self, verb: str, mine: dict[str, Any], others: Sequence[dict[str, Any]] | None = None) -> list[Any]:
        """Carry a verb out on all ranks; gives their answers in order, if it has any.

        ``others`` are the arguments of ranks 1 ….

        Raises:
            RanksLost: a rank died, failed or did not answer; the fleet is closed.
            PenstockError: what all ranks refuse together (a loss that is not finite); the fleet goes on.
        """
        with self._lock:
            while self._left and verb != "drop":
                self.call("drop", {"learner": self._left.pop()})
            if self.broken:
                raise RanksLost(self.broken)
            try:
                for handle, given in zip(self.handles, others or [mine] * len(self.handles), strict=True):
                    handle.link.send([verb, given])
                found = self.parts.perform(verb, **mine)
            except ConnectionLost as error:
                raise self._fail(verb, error) from error
            except RefusedElsewhere:
                self._answers(verb, self.seconds)  # raises what that rank says
                raise
            except PenstockError:
                self._answers(verb, self.seconds, refused=True)
                raise
            except BaseException as error:
                raise self._fail(verb, error) from error
            return [found, *(self._answers(verb, self.seconds) if verb not in UNANSWERED else ())]

    def _answers(self, verb: str, seconds: float, refused: bool = False) -> list[Any]:
        answers = [self._heard(rank, handle, verb, seconds) for rank, handle in enumerate(self.handles, 1)]
        problems = [answer for answer in answers if answer.get("error", RefusedElsewhere.__name__) != RefusedElsewhere.__name__]
        if problems and not refused:
            answer = problems[0]
            kind = getattr(errors, answer["error"], None)
            if isinstance(kind, type) and issubclass(kind, PenstockError):
                raise kind(answer["text"])
            raise self._fail(verb, None)
        return [answer.get("value") for answer in answers]

    def _heard(self, rank: int, handle: RankHandle, verb: str, seconds: float) -> Any:
        try:
            return handle.link.receive(seconds)
        except ConnectionLost as error:
            raise self._fail(verb, error) from error
        except DeadlinePassed as error:
            text = f"learner rank {rank} did not answer within {seconds:.0f} s (asked to {verb}); its machine may be overloaded"
            self._end(text)
            raise RanksLost(text) from error

    def _fail(self, verb: str, error: BaseException | None) -> BaseException:
        """What is to be raised after a failure in this rank or another; ends the fleet."""
        until = time.monotonic() + GRACE
        dead: dict[int, str] = {}
        while not dead and time.monotonic() < until:
            dead = {rank: handle.ended() for rank, handle in enumerate(self.handles, 1) if handle.ended()}
            if not dead and error is not None and not _of_collectives(error):
                break
            threading.Event().wait(0.02)
        if not dead:
            text = f"learner ranks {', '.join(map(str, range(1, self.size)))} did not keep up in {verb}: {error}"
            self._end(text)
            return RanksLost(text) if error is None or _of_collectives(error) else error
        # A rank that lost its peers ends after the one that was the cause.
        rank = min(dead, key=lambda r: (not dead[r].startswith("killed"), _of_words(self.handles[r - 1].last_words()), r))
        words = self.handles[rank - 1].last_words() or "nothing"
        text = f"learner rank {rank} of {self.size} is gone ({dead[rank]}) in {verb}; it last said: {words}"
        self._end(text)
        return RanksLost(text)

    def _end(self, reason: str) -> None:
        self.broken = reason
        self.close()

    def close(self) -> None:
        """End the other ranks and this process's membership."""
        global _current
        self.broken = self.broken or "the learner's ranks were ended"
        if _current is self:
            _current = None
        if self._member:  # not twice: by then this process may belong to the ranks of another fleet
            self._member = False
            with contextlib.suppress(Exception):
                world.leave()
        for handle in self.handles:
            handle.stop()
        self.launcher.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def hold(self) -> None:
        """Note one more user."""
        self.holders += 1

    def keep(self) -> None:
        """Let the ranks live as long as this process: DeepSpeed has one group of ranks in its life."""
        if not self._kept:
            self._kept = True
            self.hold()

    def release(self, learner: int | None = None) -> None:
        """Note that a user has gone, with its learner if it had one; the last one ends the fleet."""
        if learner is not None:
            self._left.append(learner)
        self.holders -= 1
        if self.holders == 0 and not self.broken:
            self.close()


def _of_collectives(error: BaseException) -> bool:
    return isinstance(error, RuntimeError | ConnectionLost)


def _of_words(words: str) -> bool:
    return "Connection closed" in words or "gloo" in words.lower()


def fleet_of(size: int, device: torch.device) -> Fleet:
    """The process's fleet of ``size`` ranks: the one that is there, or a new one in its place.

    Raises:
        TrainingError: learners still use one of another size.
    """
    global _current
    if _current is not None and (_current.size, _current.device.type) != (size, device.type):
        raise TrainingError(f"a learner with {_current.size} ranks is still in use in this process; close it first")
    if _current is None:
        _current = Fleet(size, device, _launcher)
    return _current


def launch_ranks_by(launcher: Launcher) -> None:
    """Where this process's learners have their other ranks from now on; usually they are its children."""
    global _launcher
    _launcher = launcher

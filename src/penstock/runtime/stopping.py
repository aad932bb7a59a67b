"""Ctrl-C and SIGTERM: once finishes the step and saves, twice stops at once."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

STOPPING = b"\npenstock: finishing the step, then saving; once more stops at once\n"


class Interrupted(Exception):
    """The run was stopped by Ctrl-C or SIGTERM; the message says how to go on."""


class StopSignal:
    """Counts Ctrl-C (and SIGTERM, which clusters send) while the block runs, in the main thread only.

    Once: finish the step, save, stop. Twice, or while no step runs: KeyboardInterrupt at once. ``elsewhere``: the work is
    done in another thread, which sees ``asked`` at its next step, so that the first signal never interrupts. A run of
    processes sets ``on_ask`` and hears of every signal instead.
    """

    def __init__(self, elsewhere: bool = False) -> None:
        self.asked = 0
        self.elsewhere = elsewhere
        self.on_ask: Callable[[], object] | None = None
        self._stepping = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignal:
        with contextlib.suppress(ValueError):  # not the main thread: its owner handles signals
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exc: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, signal.SIG_DFL if before is None else before)

    @contextlib.contextmanager
    def between_saves(self) -> Iterator[None]:
        """Within it there is something to save, so the first signal only asks."""
        self._stepping = True
        try:
            yield
        finally:
            self._stepping = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.asked += 1
        if self.on_ask is not None:
            self.on_ask()
        elif self.asked > 1 or not (self._stepping or self.elsewhere):
            raise KeyboardInterrupt
        else:
            with contextlib.suppress(OSError):  # no print: a handler may interrupt one
                os.write(2, STOPPING)

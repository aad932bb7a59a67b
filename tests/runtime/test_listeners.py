"""How events reach a listener: in batches where it is a monitor, and what is said of one that fails."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.core.events import Event
from penstock.observe.monitors.monitor import At, Monitor, Step, Watched
from penstock.runtime import listeners
from penstock.runtime.listeners import Delivery


class Hearing(Monitor):
    """Keeps the steps of each batch."""

    def __init__(self, folder: Path) -> None:
        super().__init__(Watched("run", folder, {}, {"sft": 0}, {"sft": 1}, {}), "hearing", "")
        self.heard: list[list[int]] = []
        self.any = threading.Event()

    def open(self) -> None:
        """There is no service."""

    def metrics(self, steps: Sequence[Step]) -> None:
        self.heard.append([at.step for at, _ in steps])
        self.any.set()

    def alarm(self, at: At, event: Event) -> None:
        """Not kept."""


def metrics(step: int) -> Event:
    return {"kind": "metrics", "time": 0.0, "stage": "sft", "step": step, "values": {"loss": 1.0}}


def test_what_happens_while_a_monitor_sleeps_is_one_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "PAUSE", 600.0)
    monitor = Hearing(tmp_path)
    delivery = Delivery(monitor, monitor=monitor)
    delivery(metrics(0))
    assert monitor.any.wait(60)
    for step in (1, 2, 3):
        delivery(metrics(step))
    delivery.close(60)
    assert monitor.heard == [[0], [1, 2, 3]]
    assert delivery.missed == 0


def test_a_batch_that_is_not_taken_by_the_end_is_missed() -> None:
    release, began = threading.Event(), threading.Event()

    def stuck(event: Event) -> None:
        began.set()
        release.wait(60)

    with warnings.catch_warnings(record=True):
        delivery = Delivery(stuck, capacity=3)
        delivery(metrics(0))
        assert began.wait(60)
        for step in range(1, 10):
            delivery(metrics(step))
        delivery.close(0.01)
    release.set()
    assert delivery.missed == 10  # seven had no room, and three were not taken


def test_a_failure_is_heard_while_another_thread_silences_all_warnings() -> None:
    """As models do for a moment when they are loaded."""

    def failing(event: Event) -> None:
        raise ConnectionError("nobody there")

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("ignore")
        delivery = Delivery(failing)
        delivery(metrics(0))
        delivery(metrics(1))
        delivery.close()
    (warned,) = (str(one.message) for one in said)
    assert warned.endswith("failed (ConnectionError: nobody there); the run goes on")

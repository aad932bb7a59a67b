"""Saves next to training: what the loop does meanwhile changes nothing, errors are heard, an end waits."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock.ckpt import files
from penstock.ckpt.background import Saver
from penstock.ckpt.mirror import Mirror
from penstock.ckpt.objects import Objects
from penstock.ckpt.store import CheckpointStore, Position
from penstock.core.contracts import State
from penstock.core.errors import CheckpointError


class Recorded:
    """Reports that were heard, and the threads that heard them."""

    def __init__(self) -> None:
        self.said: list[tuple[str, dict[str, Any]]] = []
        self.threads: set[threading.Thread] = set()

    def __call__(self, what: str, **fields: Any) -> None:
        self.said.append((what, fields))
        self.threads.add(threading.current_thread())


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """A disk that writes nothing until the event is set."""
    opened, write = threading.Event(), files.write_state

    def slow(*arguments: Any) -> None:
        assert opened.wait(60)
        write(*arguments)

    monkeypatch.setattr(files, "write_state", slow)
    return opened


def test_what_changes_after_a_save_began_is_not_in_it(tmp_path: Path, gate: threading.Event) -> None:
    weight, numbers, counts = torch.zeros(3), np.zeros(3), [0]
    with Saver(CheckpointStore(tmp_path), Recorded()) as saver:
        saver.save(Position(0, "s", 1), {"model": State({"w": weight, "n": numbers}, {"counts": counts})})
        weight += 1
        numbers += 1
        counts[0] = 1
        assert saver.look() is None
        gate.set()
    loaded = CheckpointStore(tmp_path).load_newest()
    assert loaded is not None
    assert loaded.states["model"].values == {"counts": [0]}
    assert [float(loaded.states["model"].arrays[name].sum()) for name in ("w", "n")] == [0, 0]


def test_a_checkpoint_is_named_once_it_is_durable(tmp_path: Path, gate: threading.Event) -> None:
    with Saver(CheckpointStore(tmp_path), Recorded()) as saver:
        saver.save(Position(0, "s", 1), {"model": State({"w": torch.zeros(3)}, {})})
        before = saver.look()
        gate.set()
        saver.wait()
        assert (before, saver.look(), saver.look()) == (None, Position(0, "s", 1), None)


def test_the_next_save_waits_for_the_one_under_way(tmp_path: Path, gate: threading.Event) -> None:
    with Saver(CheckpointStore(tmp_path), Recorded()) as saver:
        saver.save(Position(0, "s", 1), {"model": State({}, {})})
        threading.Timer(0.1, gate.set).start()
        saver.save(Position(0, "s", 2), {"model": State({}, {})})
        assert (tmp_path / "stage-00-s-step-000001").is_dir()


def test_reports_come_in_the_loops_thread_with_the_step_that_was_saved(tmp_path: Path) -> None:
    heard = Recorded()
    with Saver(CheckpointStore(tmp_path), heard) as saver:
        saver.save(Position(0, "s", 7), {"model": State({}, {})})
    assert [(what, fields["step"]) for what, fields in heard.said] == [("checkpoint", 7)]
    assert heard.threads == {threading.current_thread()}


def test_a_score_that_comes_while_its_checkpoint_is_written_is_kept(tmp_path: Path, gate: threading.Event) -> None:
    with Saver(CheckpointStore(tmp_path), Recorded()) as saver:
        saver.save(Position(0, "s", 1), {"model": State({}, {})})
        saver.rate(Position(0, "s", 1), 0.5)
        gate.set()
    assert [entry.score for entry in CheckpointStore(tmp_path).entries()] == [0.5]


def break_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(files, "write_state", fail)


def test_a_write_that_fails_is_heard_by_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    break_disk(monkeypatch)
    with pytest.raises(CheckpointError, match="Input/output error"), Saver(CheckpointStore(tmp_path), Recorded()) as saver:
        saver.save(Position(0, "s", 1), {"model": State({}, {})})
    assert list(tmp_path.glob("*stage*")) == []


def test_a_write_that_fails_does_not_hide_the_error_that_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    break_disk(monkeypatch)
    heard = Recorded()

    def fail_while_saving() -> None:
        with Saver(CheckpointStore(tmp_path), heard) as saver:
            saver.save(Position(0, "s", 1), {"model": State({}, {})})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_while_saving()
    assert [what for what, _ in heard.said] == ["checkpoint failed"]


def test_a_run_that_is_taken_over_in_the_store_ends(tmp_path: Path) -> None:
    objects = Objects(f"file://{tmp_path}/bucket/run")
    mirror = Mirror(f"file://{tmp_path}/bucket", tmp_path / "run", 2, {})
    saver = Saver(CheckpointStore(tmp_path / "run/checkpoints"), Recorded(), mirror)

    def train() -> None:
        with saver:
            for step in range(600):
                saver.save(Position(0, "s", step), {"model": State({}, {})})
                if step == 1:
                    objects.write("attempts/000009.json", b'{"host": "elsewhere", "process": 7}')
                time.sleep(0.1)
                saver.look()

    (tmp_path / "run").mkdir()
    with pytest.raises(CheckpointError, match="process 7 on elsewhere has taken this run over"):
        train()


class InPieces(dict[str, torch.Tensor]):
    """Arrays that are gathered from elsewhere when they are read."""

    table = {"w": ("float32", (3,))}  # noqa: RUF012


def test_a_state_in_pieces_is_durable_before_training_goes_on(tmp_path: Path) -> None:
    pieces: Any = InPieces(w=torch.ones(3))
    with Saver(CheckpointStore(tmp_path), Recorded()) as saver:
        saver.save(Position(0, "s", 1), {"model": State(pieces, {})})
        assert saver.look() == Position(0, "s", 1)


def test_what_cannot_be_kept_is_refused_before_training_goes_on(tmp_path: Path) -> None:
    with Saver(CheckpointStore(tmp_path), Recorded()) as saver:
        with pytest.raises(CheckpointError, match="is a list"):
            saver.save(Position(0, "s", 1), {"model": State({"w": [1.0]}, {})})
        assert saver.look() is None

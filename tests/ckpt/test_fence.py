"""A run has one writer: the attempt that began last."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from penstock.ckpt.fence import ATTEMPT, Fence, locked
from penstock.ckpt.store import CheckpointStore, Position
from penstock.core.contracts import State
from penstock.core.errors import CheckpointError

STATES = {"model": State({"w": np.zeros(2)}, {})}


def taken(folder: Path, attempt: int, monkeypatch: pytest.MonkeyPatch) -> Fence:
    monkeypatch.setenv(ATTEMPT, str(attempt))
    return Fence.taken(folder / "attempt.json")


@pytest.mark.parametrize("later", [1, 2], ids=["a restart of the same attempt", "a later attempt"])
def test_a_process_whose_run_was_taken_writes_no_checkpoint(
    later: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", fence=taken(tmp_path, 1, monkeypatch))
    store.save(Position(0, "s", 1), STATES)
    taken(tmp_path, later, monkeypatch)
    with pytest.raises(CheckpointError, match=f"attempt {later} of this run has begun, so attempt 1 writes no more"):
        store.save(Position(0, "s", 2), STATES)
    assert [path.name for path in (tmp_path / "checkpoints").glob("*stage*")] == ["stage-00-s-step-000001"]


def test_an_earlier_attempt_that_starts_late_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newest = taken(tmp_path, 3, monkeypatch)
    with pytest.raises(CheckpointError, match="attempt 3 of this run has begun, so attempt 2"):
        taken(tmp_path, 2, monkeypatch)
    newest.check()


def test_an_attempt_that_is_no_number_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ATTEMPT, "second")
    with pytest.raises(CheckpointError, match="PENSTOCK_ATTEMPT=second is no number"):
        Fence.taken(tmp_path / "attempt.json")


def test_in_a_cluster_an_attempt_waits_for_the_end_of_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / ".lock"
    file.touch()
    code = (
        "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_EX); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as before:
        assert before.stdout is not None
        assert before.stdin is not None
        before.stdout.readline()
        with open(file) as handle:
            monkeypatch.delenv(ATTEMPT, raising=False)
            assert not locked(handle)
            monkeypatch.setenv(ATTEMPT, "1")
            threading.Timer(0.3, before.stdin.close).start()
            assert locked(handle)

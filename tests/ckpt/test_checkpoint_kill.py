"""A process that saves without pause is killed at random moments; nothing that it acknowledged is ever lost."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

from penstock.ckpt.store import CheckpointStore

SAVES_FOR_EVER = """
import sys, torch
from penstock.ckpt.store import CheckpointStore, Position
from penstock.core.contracts import State
store = CheckpointStore(sys.argv[1], keep=2)
step = int(sys.argv[2])
while True:
    step += 1
    weight = torch.full((200_000,), float(step))
    store.save(Position(0, "s", step // 2), {"learner": State({"weight": weight}, {"step": step})}, score=-float(step))
    print(step, flush=True)
"""


def test_twenty_five_kills(tmp_path: Path) -> None:
    """Two saves a position, so that replacing is killed too. ``step`` counts saves over all lives of the process."""
    moments, step, lives_that_saved = random.Random(0), 0, 0
    for life in range(25):
        process = subprocess.Popen(
            [sys.executable, "-c", SAVES_FOR_EVER, str(tmp_path), str(step)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        acknowledged = [int(process.stdout.readline())]
        time.sleep(moments.random() * 0.15)
        process.kill()
        acknowledged += [int(line) for line in process.stdout.read().split("\n") if line]
        process.wait(timeout=120)
        loaded = CheckpointStore(tmp_path).load_newest()
        assert loaded is not None
        assert loaded.warnings == (), f"life {life}"
        saved = loaded.states["learner"]
        assert saved.values["step"] >= acknowledged[-1]
        assert bool((saved.arrays["weight"] == saved.values["step"]).all())
        assert not list(tmp_path.glob(".writing-*"))
        lives_that_saved += len(acknowledged) > 1
        step = saved.values["step"]
    assert lives_that_saved > 5
    assert not (tmp_path / "quarantine").exists()

"""From ``penstock.train`` to the optimizer's step: as few functions as ``docs/concepts.md`` says."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from small_runs import ROWS

import penstock
from penstock.train.learner import DeviceLearner

PACKAGE = str(Path(penstock.__file__).parent)


def test_eight_hops_lead_from_train_to_the_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step, seen = DeviceLearner.step, []

    def stepped(self: DeviceLearner, *caution: object) -> object:
        frames = [frame for frame in inspect.stack()[1:] if frame.filename.startswith(PACKAGE)]
        seen.append([f"{Path(frame.filename).stem}.{frame.function}" for frame in reversed(frames)])
        return step(self, *caution)  # type: ignore[arg-type]

    monkeypatch.setattr(DeviceLearner, "step", stepped)
    rows = [{"prompt": row["prompt"]} for row in ROWS]
    penstock.train(  # type: ignore[operator]
        "1m", prompts=rows, reward=lambda sample, columns: len(sample.text), folder=tmp_path / "run", progress=False,
        steps=1, batch=2, samples=2, max_new_tokens=2, device="cpu", threads=1,
    )  # fmt: skip
    assert seen[0] == [
        "__init__.__call__",
        "api.train",
        "launching.launch",
        "session.execute",
        "session.execute",
        "online.steps",
        "learn.learn",
        "learn.step",
    ]

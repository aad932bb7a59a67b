"""Run folders as a run would write them, with numbers that are known by heart."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.core.events import EventLog, packed
from penstock.core.sentinels import Alarm
from penstock.core.spans import Spans

SAMPLING = {"kind": "Sampling", "temperature": 0.7, "max_new_tokens": 8}


def spec(name: str, *stages: str, seed: int = 0, steps: int = 10) -> dict[str, Any]:
    listed = [{"kind": "Online", "name": stage, "steps": steps, "sampling": SAMPLING} for stage in stages]
    return {"kind": "Run", "name": name, "seed": seed, "stages": listed, "sentinels": "on"}


def run_folder(root: Path, name: str, *stages: str, seed: int = 0, steps: int = 10) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(spec(name, *stages, seed=seed, steps=steps)))
    return folder


def log_of(folder: Path, stage: str) -> EventLog:
    log = EventLog(folder / "events.jsonl")
    log.stage = stage
    return log


def row(prompt: str, text: str, **fields: Any) -> dict[str, Any]:
    """A sample as the log holds it."""
    return {
        "prompt": prompt,
        "text": text,
        "reward": 0.5,
        "rewards": {"exact": 0.5},
        "length": 2,
        "finish": "stop",
        "error": None,
        **fields,
    }


TOKENS = {
    "ids": packed([7, 1, 2], "<i4"),
    "logp": packed([-1.5, -0.25], "<f4"),
    "pieces": ["A", "\u00e9"],
    "gap": [0.0004, -0.3],
}


def small_run(root: Path, name: str = "small", seed: int = 0, values: Mapping[str, float] | None = None) -> Path:
    """Ten steps of ``grpo``: the reward is a tenth of the step, samples at each, one alarm, spans of the learner."""
    folder = run_folder(root, name, "sft", "grpo", seed=seed)
    log = log_of(folder, "grpo")
    log.lifecycle(0, "stage started", steps=10)
    for step in range(1, 11):
        log.metrics(step, {"reward/mean": step / 10 + seed, "loss": float("nan") if step == 4 else 1 / step, **(values or {})})
        log.samples(step, samples(step))
    log.sentinel(Alarm("log-prob gap", "warning", 3, "mean gap 0.002", 0.002, 0.001))
    log.close()
    spans = Spans(folder / "spans" / "learner.jsonl", "learner")
    spans.add("wait", 100.0, 101.0)
    spans.add("train", 101.0, 104.0, step=0, lag={0: 30, 1: 10})
    spans.close()
    return folder


def samples(step: int) -> Sequence[dict[str, Any]]:
    """Two answers to one prompt and, at every second step, one to another."""
    first = [
        row("2 + 2 =", f"The answer is {step}.", key=f"sums/0/{step}#0", version=step - 1, held_out=False, tokens=TOKENS),
        row("2 + 2 =", "The answer is four.", key=f"sums/0/{step}#1", version=step - 1, held_out=False),
    ]
    return first + ([row("<b>3 + 3</b> =", "six", key=f"sums/1/{step}#0", version=step - 1)] if step % 2 == 0 else [])

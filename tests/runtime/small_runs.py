"""The smallest runs, in this process on one thread, and what their logs tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import penstock
from penstock.algos import GRPO, SFT
from penstock.config.run import ModelSpec, Offline, Online, RewardSpec, Run
from penstock.core.events import read_events
from penstock.core.types import Sampling

ROWS = [{"prompt": letters, "completion": "b"} for letters in ("ab", "bc", "cd")]
MODEL = ModelSpec(preset="1m", layers=1, vocabulary=300, context=32)


def sft(**fields: Any) -> Offline:
    usual = {"name": "sft", "model": MODEL, "data": penstock.rows(ROWS), "algorithm": SFT(), "batch": 2, "steps": 2}
    return Offline(**(usual | fields))


def grpo(reward: str = "exact_match", tokens: int = 2, **fields: Any) -> Online:
    usual: dict[str, Any] = {
        "name": "grpo", "model": MODEL, "data": penstock.rows(ROWS), "rewards": (RewardSpec(function=reward),),
        "algorithm": GRPO(), "sampling": Sampling(max_new_tokens=tokens), "samples": 2, "batch": 2, "steps": 1,
    }  # fmt: skip
    return Online(**(usual | fields))


def run_of(*stages: Any, **fields: Any) -> Run:
    return Run(**({"name": "run", "stages": stages, "device": "cpu", "threads": 1} | fields))


def told(folder: Path, **fields: Any) -> list[dict[str, Any]]:
    """The events of a run's log that have these fields."""
    events = read_events(folder / "events.jsonl")
    return [event for event in events if all(event.get(name) == value for name, value in fields.items())]


def values(folder: Path, name: str) -> list[tuple[int, Any]]:
    """Step and value of a metric each time that the log tells it."""
    return [(event["step"], event["values"][name]) for event in told(folder, kind="metrics") if name in event["values"]]

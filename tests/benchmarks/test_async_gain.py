"""The benchmark of asynchrony: its conditions are what they say, and every arm runs under them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from penstock.core.events import read_events
from penstock.core.types import PromptKey, SampleKey

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from async_gain import CONDITIONS, arms_under, place  # noqa: E402
from async_gain_task import Conditions, Lengths  # noqa: E402

KEYS = [SampleKey(PromptKey("drawn", 0, ordinal), sample) for ordinal in range(500) for sample in range(4)]


@pytest.mark.parametrize(("lengths", "deviation"), [("constant", 0.0), ("uniform", 16 / 3**0.5), ("lognormal", 21.0)])
def test_lengths_have_the_mean_and_the_spread_of_their_distribution(lengths: Lengths, deviation: float) -> None:
    drawn = [Conditions(lengths, mean=16.0, longest=10**6).length(key) for key in KEYS]
    assert np.mean(drawn) == pytest.approx(16.0, rel=0.06)
    assert np.std(drawn) == pytest.approx(deviation, rel=0.15)


def test_lengths_and_waits_depend_on_key_and_seed_alone() -> None:
    first, again, other = (Conditions("lognormal", seed=seed, wait=0.3) for seed in (1, 1, 2))
    some = KEYS[:100]
    assert [(first.length(key), first.waits(key)) for key in some] == [(again.length(key), again.waits(key)) for key in some]
    assert [first.length(key) for key in some] != [other.length(key) for key in some]
    assert np.mean([first.waits(key) for key in KEYS]) == pytest.approx(0.3, rel=0.05)


@pytest.mark.parametrize("condition", ["lognormal", "environment latency"])
def test_every_arm_trains_on_samples_of_the_same_lengths_and_stands_in_the_table(condition: str, tmp_path: Path) -> None:
    arms = [arm for arm in arms_under(condition) if arm.threads == 1]  # two threads on a busy machine wait for each other
    words = ["--conditions", condition, "--arms", *(arm.name for arm in arms), "--seeds", "0", "--steps", "5"]
    said = subprocess.run(
        [sys.executable, str(BENCHMARKS / "async_gain.py"), *words, "--imitate", "2", "--runs", str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    chosen = next(each for each in CONDITIONS if each.name == condition)
    lengths = [trained_lengths(place(tmp_path, chosen, arm, 0)) for arm in arms]
    assert all(found == lengths[0] and len(found) == 5 for found in lengths)
    assert all(f"| {condition} | {arm.name} |" in said.stdout for arm in arms)
    kept = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert all(run["samples_per_second"] > 0 for entry in kept for run in entry["runs"])


def trained_lengths(folder: Path) -> list[float]:
    """Mean tokens of a sample in each batch of a run."""
    events = read_events(folder / "events.jsonl")
    return [event["values"]["length/mean"] for event in events if "length/mean" in event.get("values", {})]

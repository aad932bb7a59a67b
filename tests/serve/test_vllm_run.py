"""A whole run whose generator is a real vLLM: ``penstock train quickstart --generator vllm``, a few steps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
STEPS = ("--steps", "6", "--grpo.max_lag", "2", "--grpo.evaluation.every", "6")


def values(run: Path, name: str) -> list[Any]:
    """A metric of the online stage, step by step."""
    events = [json.loads(line) for line in (run / "events.jsonl").read_text(encoding="utf-8").splitlines()]
    rows = [event["values"] for event in events if event["kind"] == "metrics" and event["stage"] == "grpo"]
    return [row[name] for row in rows if name in row]


def assert_trained(folder: Path, *words: str) -> Path:
    """A run of six online steps, of which every one learned, from log-probs that are the learner's."""
    pytest.importorskip("vllm", reason="vLLM is not installed here; make test-vllm has it")
    command = [sys.executable, "-m", "penstock.cli.main", "train", *words, "--runs", str(folder), "--name", "run"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=800, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False
    )
    run = folder / "run"
    log = (run / "logs" / "generator-0.log").read_text() if (run / "logs" / "generator-0.log").exists() else ""
    assert done.returncode == 0, done.stdout + done.stderr + log
    assert len(values(run, "loss")) == 6
    fresh = [gap for gap, tokens in zip(values(run, "mismatch/max"), values(run, "mismatch/tokens"), strict=False) if tokens]
    assert fresh
    assert max(fresh) < 1e-3, "log-probs are the learner's"
    return run


@pytest.mark.parametrize("channel", ["shared memory", "process group"])
def test_a_run_trains_on_what_vllm_draws_while_updates_come(tmp_path: Path, channel: str) -> None:
    run = assert_trained(tmp_path, "quickstart", "--generator", "vllm", *STEPS, "--sft.steps", "10", "--roles.channel", channel)
    assert max(values(run, "lag/max")) == 2, "generation ran ahead of learning"
    assert "role restarted" not in (run / "events.jsonl").read_text()
    assert "weights refused" not in (run / "events.jsonl").read_text()
    assert not any(sum(values(run, f"flow/{what}")) for what in ("returned", "refused", "dropped")), "nothing is dropped"


def test_a_model_that_sees_and_whose_tower_moves_trains_on_what_vllm_draws(tmp_path: Path) -> None:
    assert_trained(tmp_path, "see", "--generator", "vllm", "--pictures", "shapes", *STEPS, "--imitated", "10")

"""Real sweeps as processes: killed and resumed, a population's weights, Ctrl-C, failures, and the report."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from safetensors.numpy import load_file
from sweep_examples import RECIPES, penstock, results

from penstock.runtime.folder import RunFolder

SEARCH = ("sweep", f"{RECIPES}:tiny", "--grpo.learner.learning_rate", "1e-4..1e-2", "--seeds", "2", "--out", "s")


def until(ready: Callable[[], bool], seconds: float = 240.0) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.05)


def free(folder: Path) -> bool:
    """Whether no process trains in a run's folder."""
    try:
        RunFolder(folder).hold().close()
    except Exception:
        return False
    return True


def test_a_sweep_that_is_killed_resumes_and_runs_nothing_twice(tmp_path: Path) -> None:
    sweep = penstock(tmp_path, *SEARCH, "--trials", "2", "--parallel", "2", wait=False)
    runs = tmp_path / "s"
    until(lambda: len(list(runs.glob("trial-*/seed-*/model"))) >= 1 and len(list(runs.glob("trial-*/seed-1/run.json"))) >= 1)
    sweep.kill()
    sweep.communicate()
    until(lambda: all(free(spec.parent) for spec in runs.glob("*/*/run.json")))  # who trained has saved and ended by itself
    done = {path: path.stat().st_mtime_ns for path in runs.glob("trial-*/seed-*/model/model.safetensors")}
    assert 1 <= len(done) < 4
    resumed = penstock(tmp_path, "sweep", "--resume", "s")
    assert resumed.returncode == 0, resumed.stderr
    assert {path: path.stat().st_mtime_ns for path in done} == done
    trials = results(runs)["trials"]
    assert [(one["state"], len(one["runs"])) for one in trials] == [("complete", 2), ("complete", 2)]
    for events in runs.glob("trial-*/seed-*/events.jsonl"):
        steps = [
            (e["stage"], e["step"]) for e in map(json.loads, events.open()) if e["kind"] == "metrics" and "loss" in e["values"]
        ]
        assert sorted(steps) == [("grpo", 1), ("grpo", 2), ("grpo", 3), ("grpo", 4), *(("sft", step) for step in range(1, 5))]
    again = penstock(tmp_path, "sweep", "--resume", "s")
    assert again.returncode == 0
    assert "trial" not in again.stdout.partition("best: ")[0]
    compared = penstock(tmp_path, "compare", "s/trial-001", "s/trial-002")
    assert compared.returncode == 0, compared.stderr


def test_ctrl_c_saves_every_run_and_says_how_to_go_on(tmp_path: Path) -> None:
    sweep = penstock(tmp_path, *SEARCH, "--trials", "2", "--steps", "400", wait=False)
    log = tmp_path / "s/trial-001/seed-0/events.jsonl"
    until(lambda: log.exists() and b'"stage": "grpo", "step": 3, "values"' in log.read_bytes())
    sweep.send_signal(signal.SIGINT)
    said = sweep.communicate(timeout=120)[1]
    assert sweep.returncode == 130
    assert "go on with: penstock sweep --resume s" in said
    assert list((tmp_path / "s/trial-001/seed-0/checkpoints").glob("stage-01-grpo-*"))
    assert free(tmp_path / "s/trial-001/seed-0")
    assert (tmp_path / "s/sweep.html").is_file()


def test_the_same_failure_of_three_trials_ends_the_sweep_with_it(tmp_path: Path) -> None:
    ended = penstock(tmp_path, *SEARCH[:4], "--reward", "too_few_arguments", "--trials", "9", "--parallel", "2", "--out", "s")
    assert ended.returncode == 2
    assert "3 trials in a row failed with the same error" in ended.stderr
    assert "too_few_arguments" in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert "fail" in {one["state"] for one in results(tmp_path / "s")["trials"]}


def test_a_member_goes_on_with_the_weights_and_optimizer_of_its_donor(tmp_path: Path) -> None:
    words = ("sweep", f"{RECIPES}:tiny", "--grpo.learner.learning_rate", "1e-4..1e-1", "--out", "p")
    sweep = penstock(tmp_path, *words, "--population", "3", "--slices", "2", "--parallel", "2", wait=False)
    log = tmp_path / "p/slices.jsonl"
    until(lambda: log.exists() and log.read_bytes().endswith(b"\n"))
    (copy,) = json.loads(log.read_text())["copies"]
    ours, theirs = (tmp_path / f"p/member-{copy[who]}" for who in ("member", "donor"))
    until((ours / "slice-2").exists)
    sweep.kill()  # before the copy is trained, and before the donor's slice is removed
    sweep.communicate()
    name = "checkpoints/stage-01-grpo-step-000002"
    assert os.path.samefile(ours / "slice-2" / name / "learner.safetensors", theirs / "slice-1" / name / "learner.safetensors")
    before = load_file(theirs / "slice-1/model/model.safetensors")
    ended = penstock(tmp_path, "sweep", "--resume", "p")
    assert ended.returncode == 0, ended.stderr
    assert "slice 1 of" not in ended.stdout
    after = load_file(ours / "slice-2/model/model.safetensors")
    assert any((before[tensor] != after[tensor]).any() for tensor in before)
    rates = [
        (event["step"], event["values"]["learning_rate"])
        for event in map(json.loads, (ours / "slice-2/events.jsonl").open())
        if event["stage"] == "grpo" and "learning_rate" in event.get("values", {})
    ]
    trials = results(tmp_path / "p")["trials"]
    donor = next(one for one in trials if (one["member"], one["slice"]) == (copy["donor"], 1))
    old, new = (one["values"]["grpo.learner.learning_rate"] for one in (donor, copy))
    assert rates == [(1, old), (2, old), (3, new), (4, new)]
    assert len(trials) == 6

"""A run goes on from an object store where its machine, disk and all, is gone."""

from __future__ import annotations

import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.ckpt.objects import Objects
from penstock.core.events import read_events
from penstock.runtime import launch
from s3_server import S3Server

TINY = f"{Path(__file__).resolve().parents[1] / 'cli' / 'tiny_recipes.py'}:tiny"
TRAIN, STORED = ("train", TINY, "--name", "run"), ("--checkpoint.store", "s3://runs/team")
LONG = ("--grpo.steps", "30", "--checkpoint.every", "5")
MAIN = "import sys; from penstock.cli.main import main; sys.exit(main())"
PENSTOCK = [sys.executable, "-c", MAIN]
# A machine on which a step takes half a second more, so that a run of 30 is not over before its store has a checkpoint.
SLOW = [
    sys.executable,
    "-c",
    "import time; from penstock.train.learner import DeviceLearner; step = DeviceLearner.step; "
    "DeviceLearner.step = lambda *given: (time.sleep(0.5), step(*given))[1]; " + MAIN,
]


def begin(machine: Path, *words: str, command: list[str] = PENSTOCK) -> subprocess.Popen[str]:
    """Start a command on a machine: in a folder, in a process of its own."""
    machine.mkdir(exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    quiet: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([*command, *words], cwd=machine, env=environment, **quiet)


def run(machine: Path, *words: str, code: int = 0) -> str:
    process = begin(machine, *words)
    said = process.communicate(timeout=300)[0]
    assert process.returncode == code, said
    return said


def until(process: subprocess.Popen[str], ready: Callable[[], object]) -> None:
    deadline = time.monotonic() + 180
    while not ready():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def committed(s3: S3Server) -> list[str]:
    return sorted(name for name in s3.files().find("runs/team/run/checkpoints") if name.endswith("/manifest.json"))


def weights(machine: Path) -> dict[str, bytes]:
    found = [machine / "runs/run/model/model.safetensors", machine / "runs/run/models/sft/model.safetensors"]
    newest = machine / "runs/run/checkpoints/stage-01-grpo-step-000030/learner.safetensors"
    return {path.name + path.parent.name: path.read_bytes() for path in [*found, newest]}


def losses(machine: Path) -> list[tuple[str, int, float]]:
    events = [event for event in read_events(machine / "runs/run/events.jsonl") if event["kind"] == "metrics"]
    return [(event["stage"], event["step"], event["values"]["loss"]) for event in events if "loss" in event["values"]]


def test_a_run_whose_machine_is_lost_ends_on_another_as_if_nothing_had_happened(tmp_path: Path, s3: S3Server) -> None:
    whole, lost, other = (tmp_path / name for name in ("whole", "lost", "other"))
    run(whole, *TRAIN, *LONG)
    killed = begin(lost, *TRAIN, *LONG, *STORED, command=SLOW)
    until(killed, lambda: any("stage-01-grpo" in name for name in committed(s3)))
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=60)
    assert not (lost / "runs/run/model").exists(), "the run was over before it could be killed"
    shutil.rmtree(lost)
    said = run(other, "train", "--resume", "s3://runs/team/run")
    assert "penstock: run fetched: store s3://runs/team/run, checkpoint stage-01-grpo-step-0000" in said
    resumed = [event for event in read_events(other / "runs/run/events.jsonl") if event.get("what") == "resumed"]
    assert len(resumed) == 1
    assert resumed[0]["step"] >= 5
    assert weights(other) == weights(whole)
    assert losses(other) == losses(whole)
    # The end is in the store as well, so a third machine has the trained model.
    run(tmp_path / "third", "train", "--resume", "s3://runs/team/run")
    assert weights(tmp_path / "third") == weights(whole)


def test_a_store_that_hangs_holds_no_step_up_and_has_everything_in_the_end(tmp_path: Path, s3: S3Server) -> None:
    machine = tmp_path / "machine"
    training = begin(machine, *TRAIN, *LONG, *STORED)
    until(training, lambda: committed(s3))
    assert s3.process is not None
    s3.process.send_signal(signal.SIGSTOP)
    until(training, lambda: (machine / "runs/run/model/model.safetensors").exists())
    s3.process.send_signal(signal.SIGCONT)
    said = training.communicate(timeout=180)[0]
    assert training.returncode == 0, said
    assert any("stage-01-grpo-step-000030" in name for name in committed(s3))
    assert (
        Objects("s3://runs/team/run").read("model/model.safetensors")
        == (machine / "runs/run/model/model.safetensors").read_bytes()
    )


def test_a_run_whose_store_is_gone_at_its_end_says_what_is_missing_and_sends_it_later(tmp_path: Path, s3: S3Server) -> None:
    machine = tmp_path / "machine"
    code = "from penstock.ckpt import background; background.FINAL_SECONDS = 1; "
    hasty = [PENSTOCK[0], PENSTOCK[1], code + PENSTOCK[2]]
    s3.stop()
    machine.mkdir()
    done = subprocess.run([*hasty, *TRAIN, *STORED], cwd=machine, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert "s3://runs/team/run lacks checkpoint stage-01-grpo-step-000004" in done.stderr
    assert "store failed" in done.stdout
    s3.start()
    run(machine, "train", "--resume", "runs/run")
    assert any("stage-01-grpo-step-000004" in name for name in committed(s3))


def test_a_launch_goes_on_from_the_store_where_the_folder_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    folder, spec = tmp_path / "run", runpy.run_path(TINY.rpartition(":")[0])["tiny"]()
    stored = replace(spec, checkpoint=replace(spec.checkpoint, store=f"file://{tmp_path}/bucket"))
    first = launch(stored, folder)
    shutil.rmtree(folder)
    again = launch(stored, folder, resume=True)
    assert again.summary == first.summary
    assert again.model_path.is_dir()


def test_a_cluster_that_starts_a_command_again_goes_on_from_the_store(tmp_path: Path, s3: S3Server) -> None:
    words = (*TRAIN, *LONG, "--or-resume", *STORED)
    stopped = begin(tmp_path / "first", *words, command=SLOW)
    until(stopped, lambda: any("stage-01-grpo" in name for name in committed(s3)))
    stopped.send_signal(signal.SIGTERM)
    assert stopped.wait(timeout=120) == 130
    said = run(tmp_path / "second", *words)
    assert "penstock: run fetched: store s3://runs/team/run" in said
    assert (tmp_path / "second/runs/run/model/model.safetensors").exists()

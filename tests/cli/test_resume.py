"""Folders of runs in every state: what can go on goes on, what cannot is refused in one line and left as it is."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_examples import RECIPES, Outcome, Penstock, contents
from processes import Server, Started, events, outcome, steps_of

from penstock.ckpt.store import CheckpointStore


def damage(checkpoint: Path) -> None:
    file = checkpoint / "learner.safetensors"
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)


# Names


def test_a_name_that_exists_is_refused_with_both_ways_out(penstock: Penstock, finished: Path) -> None:
    before = contents(finished)
    refused = penstock("train", f"{RECIPES}:tiny", "--name", "run")
    refused.assert_refused("runs/run: a run is there already", "train --resume runs/run", "another --name")
    assert contents(finished) == before


def test_without_a_name_the_next_number_is_taken(penstock: Penstock, tmp_path: Path) -> None:
    for taken in ("one", "one-2"):
        (tmp_path / "runs" / taken).mkdir(parents=True)
    assert "model runs/one-3/model" in penstock("train", f"{RECIPES}:one_step").out


def test_a_runs_folder_that_is_a_file(penstock: Penstock, tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("mine")
    penstock("train", f"{RECIPES}:one_step").assert_refused("runs/one", "cannot be written", "--runs")
    assert (tmp_path / "runs").read_text() == "mine"


def test_a_read_only_runs_folder(penstock: Penstock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *arguments: object, **more: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    penstock("train", f"{RECIPES}:one_step").assert_refused("runs/one", "cannot be written (Permission denied)", "--runs")


# Finished runs


@pytest.mark.parametrize("again", [(), (f"{RECIPES}:tiny",)])
def test_a_finished_run_says_so_and_changes_nothing(again: tuple[str, ...], penstock: Penstock, finished: Path) -> None:
    before = contents(finished)
    answer = penstock("train", *again, "--resume", "runs/run")
    assert answer.code == 0
    assert "this run is finished; its model is runs/run/model" in answer.out
    assert answer.out.splitlines()[-1] == json.loads((finished / "summary.json").read_text())["headline"]
    assert contents(finished) == before


# What is refused


def test_another_spec_shows_every_difference(penstock: Penstock, halted: Path) -> None:
    before = contents(halted)
    refused = penstock("train", f"{RECIPES}:tiny", "--grpo.steps", "99", "--seed", "1", "--resume", "runs/run")
    refused.assert_refused("stages[1].steps: 4 → 99", "seed: 0 → 1", "penstock train --resume runs/run")
    assert contents(halted) == before


def test_a_folder_that_is_no_run(penstock: Penstock, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    penstock("train", "--resume", ".").assert_refused(".: no run.json here; this is not a run folder")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"name": "run"}', "\udcff", '{"name": "run", "stages": [], "sede": 3}', '{"modules": 5}', '{"modules": [5]}'],
)
def test_a_damaged_spec(text: str, penstock: Penstock, halted: Path) -> None:
    (halted / "run.json").write_text(text, errors="surrogateescape")
    before = contents(halted)
    penstock("train", "--resume", "runs/run").assert_refused("runs/run/run.json: cannot be read")
    assert contents(halted) == before


def test_a_damaged_summary(penstock: Penstock, halted: Path) -> None:
    (halted / "summary.json").write_text("{")
    penstock("train", "--resume", "runs/run").assert_refused("runs/run/summary.json: cannot be read", "remove it")


def test_without_its_summary_a_run_ends_as_if_nothing_had_happened(
    penstock: Penstock, halted: Path, uninterrupted: Callable[..., Path]
) -> None:
    (halted / "summary.json").unlink()
    assert penstock("train", "--resume", "runs/run").code == 0
    assert outcome(halted) == outcome(uninterrupted("tiny"))


def test_a_run_in_which_another_process_trains(penstock: Penstock, server: Server, tmp_path: Path) -> None:
    """It is refused, until it is taken over: then the other one ends and the new one goes on from a checkpoint."""
    run = tmp_path / "runs/run"
    other = server.start(tmp_path, "train", f"{RECIPES}:tiny", "--steps", "5000", "--name", "run")
    other.until(lambda: steps_of(run, "grpo") > 2)
    penstock("train", "--resume", "runs/run").assert_refused("runs/run: process ", "is at work in it", "--take-over")
    taker = server.start(tmp_path, "train", "--resume", "runs/run", "--take-over")
    assert other.wait() == 2
    assert "has taken this run over, so this process writes no more" in other.text
    before = steps_of(run, "grpo")
    taker.until(lambda: steps_of(run, "grpo") > before + 2)
    assert "runs/run: taken over from process " in taker.text
    taker.kill()
    assert taker.code == -9


def test_to_take_over_there_must_be_a_run(penstock: Penstock) -> None:
    penstock("train", f"{RECIPES}:tiny", "--take-over").assert_refused(
        "--take-over is for a run that has begun; add --resume RUN"
    )


# Damaged checkpoints


def test_a_damaged_newest_checkpoint_is_passed_over_loudly(halted: Path, assert_goes_on: Callable[..., Outcome]) -> None:
    damage(halted / "checkpoints/stage-01-grpo-step-000002")
    resumed = assert_goes_on()
    assert "checkpoint quarantined name=stage-01-grpo-step-000002" in resumed.out
    assert "learner.safetensors does not match its checksum" in resumed.out
    told = [event for event in events(halted) if "quarantine" in event.get("what", "")]
    assert [event["name"] for event in told] == ["stage-01-grpo-step-000002"]
    assert (halted / "checkpoints/quarantine/stage-01-grpo-step-000002").is_dir()


def test_without_any_valid_checkpoint_the_run_is_refused(penstock: Penstock, halted: Path) -> None:
    for checkpoint in (halted / "checkpoints").glob("stage-*"):
        damage(checkpoint)
    penstock("train", "--resume", "runs/run").assert_refused("damaged checkpoints and no valid one", "quarantine")


# A full disk

FILL = """
def full():
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
arm("penstock.ckpt.files:write_state", 7, full)
"""
"""Files may hold no more than 1.5 MB from the third checkpoint on, the first of the second stage."""


@pytest.fixture(scope="module")
def full(server: Server, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Started]:
    """The folder of a run whose disk became full, and what it said; the folder is not to be changed."""
    home = tmp_path_factory.mktemp("full")
    ended = server.run(home, "train", f"{RECIPES}:tiny", "--name", "run", first=FILL)
    assert ended.code == 2
    return home / "runs" / "run", ended


def test_a_full_disk_names_the_folder_and_the_bytes(full: tuple[Path, Started]) -> None:
    line = next(line for line in full[1].text.splitlines() if line.startswith("penstock: error: "))
    assert "runs/run/checkpoints: no space for stage-01-grpo-step-000002: needs 2," in line
    assert "free" in line
    assert "older checkpoints are untouched" in line
    assert "penstock train --resume runs/run" in line


def test_after_a_full_disk_older_checkpoints_are_whole(full: tuple[Path, Started]) -> None:
    checkpoints = full[0] / "checkpoints"
    assert [entry.position.step for entry in CheckpointStore(checkpoints).entries()] == [2, 4]
    assert not list(checkpoints.glob(".writing-*"))


def test_after_a_full_disk_the_run_ends_as_if_nothing_had_happened(
    full: tuple[Path, Started], tmp_path: Path, assert_goes_on: Callable[..., Outcome]
) -> None:
    shutil.copytree(full[0], tmp_path / "runs" / "run")
    assert_goes_on()


@pytest.mark.parametrize(("place", "count", "file"), [
    ("penstock.core.events:EventLog.emit", 7, "runs/run"),
    ("penstock.runtime.stages:save_model", 1, "runs/run/models/sft: the model cannot be written"),
])  # fmt: skip
def test_a_full_disk_elsewhere_is_one_line(place: str, count: int, file: str, server: Server, tmp_path: Path) -> None:
    first = FILL.replace("1_500_000", "1_500").replace("penstock.ckpt.files:write_state", place).replace(", 7,", f", {count},")
    ended = server.run(tmp_path, "train", f"{RECIPES}:tiny", "--name", "run", "--checkpoint.every", "0", first=first)
    assert ended.code == 2
    assert "Traceback" not in ended.text
    assert f"penstock: error: {file}" in ended.text


# Moved and continued


def test_a_run_folder_may_be_moved(halted: Path, tmp_path: Path, assert_goes_on: Callable[..., Outcome]) -> None:
    (tmp_path / "elsewhere").mkdir()
    shutil.move(tmp_path / halted, tmp_path / "elsewhere")
    assert_goes_on(folder="elsewhere/run")


@pytest.mark.usefixtures("halted")
def test_resuming_by_recipe_and_flags_is_the_same(assert_goes_on: Callable[..., Outcome]) -> None:
    assert_goes_on(f"{RECIPES}:tiny", "--seed", "0")


def test_or_resume_goes_on_with_the_run_of_a_name_and_begins_it_where_there_is_none(
    penstock: Penstock, halted: Path, uninterrupted: Callable[..., Path]
) -> None:
    words = ("train", "runs/run/run.json", "--name", "run", "--or-resume")
    assert penstock(*words).code == 0
    assert outcome(halted) == outcome(uninterrupted("tiny"))
    assert "this run is finished" in penstock(*words).out
    assert penstock(*words[:3], "again", "--sft.steps", "1", "--grpo.steps", "1", "--or-resume").code == 0
    assert Path("runs/again/model").is_dir()
    penstock(*words[:2], "--or-resume").assert_refused("--or-resume", "add --name NAME")


def test_a_disk_that_is_full_for_the_log_says_how_much_is_left(penstock: Penstock, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("penstock.core.events.EventLog.metrics", full)
    penstock("train", f"{RECIPES}:tiny", "--name", "run").assert_refused(
        "runs/run: No space left on device: ", " bytes free; make room", "penstock train --resume runs/run"
    )

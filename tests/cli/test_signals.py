"""Ctrl-C and SIGTERM: once saves and says how to go on, twice stops at once; what follows is exact."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cli_examples import RECIPES, Outcome
from processes import Server, Started

STEP = "penstock.loops.learn:Trainer.step"


def start(server: Server, tmp_path: Path, first: str) -> Started:
    return server.run(tmp_path, "train", f"{RECIPES}:tiny", "--name", "run", first=first)


def in_step(count: int, name: str = "SIGINT") -> str:
    return f"arm({STEP!r}, {count}, signal.{name})"


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_one_signal_saves_and_says_how_to_go_on(
    name: str, server: Server, tmp_path: Path, assert_goes_on: Callable[..., Outcome]
) -> None:
    stopped = start(server, tmp_path, in_step(7, name))
    assert stopped.code == 130
    assert "finishing the step, then saving" in stopped.text
    assert "stopped after step 3 of 4 of stage grpo; everything is saved" in stopped.text
    assert "penstock train --resume runs/run" in stopped.text
    assert (tmp_path / "runs/run/checkpoints/stage-01-grpo-step-000003").is_dir()
    assert_goes_on()


@pytest.mark.parametrize(
    ("count", "said"),
    [(1, "stopped after step 1 of 4 of stage sft"), (4, "stopped after stage sft")],  # at its end, before the next
    ids=["1", "4"],
)
def test_a_stopped_run_ends_as_if_nothing_had_happened(
    count: int, said: str, server: Server, tmp_path: Path, assert_goes_on: Callable[..., Outcome]
) -> None:
    stopped = start(server, tmp_path, in_step(count))
    assert stopped.code == 130
    assert said in stopped.text
    assert "grpo" not in stopped.text
    assert_goes_on()


def test_a_second_signal_stops_at_once(server: Server, tmp_path: Path) -> None:
    save = "penstock.ckpt.background:Saver.save"
    stopped = start(server, tmp_path, f"{in_step(7)}; arm({save!r}, 4, signal.SIGINT)")
    assert stopped.code == 130
    assert "Traceback" not in stopped.text
    assert not (tmp_path / "runs/run/checkpoints/stage-01-grpo-step-000003").exists()
    assert "stopped; go on with: penstock train --resume runs/run" in stopped.text


def test_after_a_second_signal_the_run_ends_as_if_nothing_had_happened(
    server: Server, tmp_path: Path, assert_goes_on: Callable[..., Outcome]
) -> None:
    inside = "penstock.ckpt.files:write_manifest"
    assert start(server, tmp_path, f"{in_step(7)}; arm({inside!r}, 4, signal.SIGINT)").code == 130
    assert_goes_on()


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_before_the_first_stage_is_ready_leaves_no_folder(name: str, server: Server, tmp_path: Path) -> None:
    stopped = start(server, tmp_path, f"arm('penstock.runtime.stages.offline:prepare', 1, signal.{name})")
    assert stopped.code == 130
    assert "nothing was begun" in stopped.text
    assert not (tmp_path / "runs").exists()


def test_a_signal_in_the_very_last_step_lets_the_run_finish(server: Server, tmp_path: Path) -> None:
    ended = start(server, tmp_path, in_step(8))
    assert ended.code == 0
    assert (tmp_path / "runs/run/model").is_dir()

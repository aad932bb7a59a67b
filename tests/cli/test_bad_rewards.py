"""Rewards that fail: on every sample the run ends with one line and can go on; on some, the run goes on and counts them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_examples import RECIPES, Penstock
from processes import Server, events
from tiny_recipes import rewarded

from penstock.runtime import launch

ALWAYS = {
    "raising": ('reward "raising" raised ValueError', "no score today", "tiny_recipes.py:"),
    "not_a_number": ('reward "not_a_number" returned nan', "must be finite"),
    "too_few": ('reward "too_few" returned 1 scores', "return a list of 4"),
    "words": ('reward "words" returned str', "return a number"),
}


@pytest.mark.parametrize("reward", ALWAYS)
def test_a_reward_that_always_fails_ends_the_run(reward: str, penstock: Penstock) -> None:
    ended = penstock("train", f"{RECIPES}:rewarded", "--reward", reward)
    ended.assert_refused(
        *ALWAYS[reward], "all 16 samples of a batch failed", "go on with: penstock train --resume runs/rewarded"
    )


def test_a_reward_that_hangs_ends_the_run_at_its_deadline(penstock: Penstock) -> None:
    ended = penstock("train", f"{RECIPES}:rewarded", "--reward", "hanging", "--deadline", "0.5")
    ended.assert_refused('reward "hanging"', "go on with: penstock train --resume runs/rewarded")


def test_a_reward_that_fails_in_the_first_evaluation_ends_the_run(penstock: Penstock) -> None:
    ended = penstock("train", f"{RECIPES}:tiny", "--reward", "raising", "--fast")
    ended.assert_refused('reward "raising"', "none of 5 samples could be scored", "--resume runs/tiny")


def test_a_run_whose_reward_was_mended_goes_on(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "scores.py"
    file.write_text("def score(sample, columns): return {}\n")
    rewards = json.dumps([{"kind": "RewardSpec", "function": "scores.py:score"}])
    assert server.run(tmp_path, "train", f"{RECIPES}:rewarded", "--grpo.rewards", rewards).code == 2
    file.write_text("def score(sample, columns): return float(len(sample.text))\n")
    assert server.run(tmp_path, "train", "--resume", "runs/rewarded").code == 0


@pytest.fixture(scope="module")
def moody(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The log of a run to its end whose reward fails on some samples."""
    folder = tmp_path_factory.mktemp("moody") / "run"
    launch(rewarded("moody"), folder)
    return events(folder)


def test_a_reward_that_fails_on_some_samples_does_not_end_the_run(moody: list[dict[str, Any]]) -> None:
    first = next(event for event in moody if event["kind"] == "metrics")
    assert 0 < first["values"]["samples/failed"] < 16


def test_failed_samples_are_seen_in_the_event_log(moody: list[dict[str, Any]]) -> None:
    rows = [row for event in moody if event["kind"] == "samples" for row in event["rows"]]
    failed = [row for row in rows if row["error"]]
    assert failed
    assert all('reward "moody" raised ValueError' in row["error"] for row in failed)
    assert any(row["error"] is None for row in rows)

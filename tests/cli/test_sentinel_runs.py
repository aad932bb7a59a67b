"""Sentinels in whole runs: on the screen, in the log, in the report, and the end of a run that would train wrongly."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_examples import RECIPES, Penstock
from processes import events

from penstock.train.learner import DeviceLearner


def alarms(folder: Path) -> list[tuple[str, str, str, int]]:
    found = [event for event in events(folder) if event["kind"] == "sentinel"]
    return [(event["sentinel"], event["state"], event["severity"], event["step"]) for event in found]


@pytest.fixture
def wrong_temperature(monkeypatch: pytest.MonkeyPatch) -> None:
    """A learner that compares log-probs at another temperature than the generator draws at."""
    made = DeviceLearner.__init__

    @functools.wraps(made)
    def init(self: Any, policy: Any, spec: Any, plan: Any) -> None:
        policy.temperature = 3.0
        made(self, policy, spec, plan)

    monkeypatch.setattr(DeviceLearner, "__init__", init)


def test_a_reward_that_says_nothing_is_told_and_the_run_goes_on(penstock: Penstock, tmp_path: Path) -> None:
    (tmp_path / "scores.py").write_text("def score(sample, columns): return 1.0\n")
    rewards = json.dumps([{"kind": "RewardSpec", "function": "scores.py:score"}])
    ended = penstock("train", f"{RECIPES}:rewarded", "--grpo.rewards", rewards, "--grpo.steps", "6")
    assert ended.code == 0
    assert "grpo sentinel tripped: constant reward, step 5: every sample of the batch had the reward 1" in ended.out
    assert alarms(tmp_path / "runs/rewarded") == [
        ("trained nothing", "tripped", "warning", 3),
        ("constant reward", "tripped", "warning", 5),
    ]
    told = penstock("report", "runs/rewarded").out.splitlines()
    assert told[1].startswith("grpo: warning: trained nothing at step 3, not cleared: ")
    page = (tmp_path / "runs/rewarded/report.html").read_text(encoding="utf-8")
    assert "<dt>sentinels</dt><dd>2 tripped</dd>" in page


@pytest.mark.usefixtures("wrong_temperature")
def test_a_fatal_sentinel_ends_the_run_with_one_line_and_stays_in_its_log(penstock: Penstock, tmp_path: Path) -> None:
    ended = penstock("train", f"{RECIPES}:rewarded")
    ended.assert_refused("sentinel log-prob gap, step 1", "same temperature")
    assert alarms(tmp_path / "runs/rewarded") == [("log-prob gap", "tripped", "fatal", 1)]
    assert penstock("report", "runs/rewarded").code == 0
    assert "1 tripped, 1 fatal" in (tmp_path / "runs/rewarded/report.html").read_text(encoding="utf-8")


@pytest.mark.usefixtures("wrong_temperature")
@pytest.mark.parametrize(("mode", "expected"), [("warn", [("log-prob gap", "tripped", "warning", 1)]), ("off", [])])
def test_a_run_may_only_warn_or_not_look(
    mode: str, expected: list[tuple[str, str, str, int]], penstock: Penstock, tmp_path: Path
) -> None:
    assert penstock("train", f"{RECIPES}:rewarded", "--sentinels", mode).code == 0
    assert alarms(tmp_path / "runs/rewarded") == expected


@pytest.mark.parametrize("recipe", ["tiny", "everything", "encoder_decoder"])
def test_healthy_runs_are_quiet_and_measure_the_gap(recipe: str, uninterrupted: Callable[..., Path]) -> None:
    log = events(uninterrupted(recipe))
    assert [event for event in log if event["kind"] == "sentinel"] == []
    gaps = [event["values"]["mismatch/max"] for event in log if "mismatch/max" in event.get("values", {})]
    assert len(gaps) == 4
    assert max(gaps) < 1e-4

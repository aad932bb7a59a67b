"""Whole runs in bfloat16 and with mixed products: stages reach their end near float32, and rounding is no fault."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from processes import events
from tiny_recipes import LEARNER, offline, run_of, sft, tiny

from penstock.algos import DPO, BradleyTerry
from penstock.config.learner import Dtype
from penstock.config.run import ModelSpec, RewardSpec, Run
from penstock.models.files import load_model
from penstock.runtime import launch

STAGES = ("sft", "reward", "dpo", "grpo")


def a_run(dtype: Dtype) -> Run:
    learner = replace(LEARNER, dtype=dtype)
    started: dict[str, Any] = {"model": ModelSpec(path="@sft"), "steps": 3, "learner": learner}
    judged = {"model": ModelSpec(path="@dpo"), "rewards": (RewardSpec(function="model:@reward"),)}
    return run_of(
        sft(learner=learner),
        offline("reward", BradleyTerry(), **started),
        offline("dpo", DPO(), **started),
        replace(tiny().stages[1], **started | judged),
    )


def losses(folder: Path) -> dict[str, float]:
    """The loss of each offline stage's first step."""
    first = {one["stage"]: one["values"] for one in reversed(events(folder)) if "loss" in one.get("values", {})}
    return {name: first[name]["loss"] for name in STAGES[:3]}


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    folder = tmp_path_factory.mktemp("exact") / "run"
    launch(a_run("float32"), folder)
    return losses(folder)


@pytest.mark.parametrize("dtype", ["bfloat16", "mixed"])
def test_every_stage_ends_near_float32_and_rounding_is_no_fault(dtype: Dtype, tmp_path: Path, exact: dict[str, float]) -> None:
    folder = tmp_path / "run"
    assert set(launch(a_run(dtype), folder).summary["stages"]) == set(STAGES)
    log = events(folder)
    assert [one for one in log if one["kind"] == "sentinel"] == []
    assert [one["reason"] for one in log if one.get("what") == "remark" and "nats apart" in one["reason"]] == []
    gaps = [one["values"]["mismatch/mean"] for one in log if "mismatch/mean" in one.get("values", {})]
    assert len(gaps) == 3
    found = losses(folder)
    assert found == pytest.approx(exact, rel=0.02)
    assert found["sft"] != exact["sft"], "computed in another type"
    assert load_model(str(folder / "model")).context == 64

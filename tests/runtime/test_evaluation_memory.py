"""An evaluation in the learner's process holds no memory while training goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from small_runs import grpo, run_of

from penstock.config.engines import Embedded
from penstock.config.keeping import RolesSpec
from penstock.config.run import DataSpec, EvaluationSpec
from penstock.core.errors import ModelError, SpecError
from penstock.runtime.build import Models, Unscored
from penstock.runtime.stages import prepare
from penstock.runtime.stages.online import online_parts


def one(sample: Any, columns: Any) -> float:
    return 1.0


def test_the_cache_of_an_evaluation_is_given_back(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "ab"}\n{"prompt": "ba"}\n')
    data = DataSpec(source="rows.jsonl")
    stage = grpo(f"{__file__}:one", tokens=4, data=data, evaluation=EvaluationSpec(data=data))
    models = Models(lambda name: tmp_path / name, torch.device("cpu"), 0)
    run = run_of(stage, roles=RolesSpec(engine=Embedded(cache_gb=0.5)))
    ready: Any = prepare(stage, run, models, tmp_path)
    metrics, _ = asyncio.run(cast(Any, ready.evaluate)())
    engine = ready.parts.roll.generator
    assert metrics["evaluation/length"] > 0
    assert engine.stats().generated_tokens > 0
    assert engine.memory.bytes == 0
    assert engine.memory.budget == ready.generator.memory.budget == 500_000_000  # of the evaluation and of the stage


def test_a_cache_of_less_than_nothing_is_refused() -> None:
    with pytest.raises(SpecError, match="cache_gb=-1 is negative"):
        Embedded(cache_gb=-1)


def test_a_learner_loads_no_rewards_that_processes_of_their_own_give(tmp_path: Path) -> None:
    """A judge of 7B in its memory, for nothing."""
    (tmp_path / "rows.jsonl").write_text('{"prompt": "ab"}\n{"prompt": "ba"}\n')
    stage = grpo(f"model:{tmp_path}/nowhere", tokens=4, data=DataSpec(source="rows.jsonl"))
    run = run_of(stage)
    models = Models(lambda name: tmp_path / name, torch.device("cpu"), 0)
    assert isinstance(online_parts(stage, run, models, tmp_path, elsewhere=True).rewards, Unscored)
    with pytest.raises(ModelError, match="nowhere"):
        online_parts(stage, run, models, tmp_path)

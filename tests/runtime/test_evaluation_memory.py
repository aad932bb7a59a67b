"""An evaluation in the learner's process holds no memory while training goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from penstock.algos import GRPO
from penstock.config.engines import Embedded
from penstock.config.keeping import RolesSpec
from penstock.config.run import DataSpec, EvaluationSpec, ModelSpec, Online, RewardSpec, Run
from penstock.core.errors import SpecError
from penstock.core.types import Sampling
from penstock.runtime.build import Models
from penstock.runtime.stages import prepare


def one(sample: Any, columns: Any) -> float:
    return 1.0


def test_the_cache_of_an_evaluation_is_given_back(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "ab"}\n{"prompt": "ba"}\n')
    data = DataSpec(source="rows.jsonl")
    stage = Online(
        name="rl", model=ModelSpec(layers=1, vocabulary=300, context=64), data=data,
        rewards=(RewardSpec(function=f"{__file__}:one"),), evaluation=EvaluationSpec(data=data),
        algorithm=GRPO(), sampling=Sampling(max_new_tokens=4), samples=2, batch=2, steps=1,
    )  # fmt: skip
    models = Models(lambda name: tmp_path / name, torch.device("cpu"), 0)
    ready: Any = prepare(
        stage,
        Run(name="r", stages=(stage,), device="cpu", threads=1, roles=RolesSpec(engine=Embedded(cache_gb=0.5))),
        models,
        tmp_path,
    )
    metrics, _ = asyncio.run(cast(Any, ready.evaluate)())
    engine = ready.parts.roll.generator
    assert metrics["evaluation/length"] > 0
    assert engine.stats().generated_tokens > 0
    assert engine.memory.bytes == 0
    assert engine.memory.budget == ready.generator.memory.budget == 500_000_000  # of the evaluation and of the stage


def test_a_cache_of_less_than_nothing_is_refused() -> None:
    with pytest.raises(SpecError, match="cache_gb=-1 is negative"):
        Embedded(cache_gb=-1)

"""Offline stages with a reference: where it comes from, when it is refused, and that a resume is exact."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny_recipes
import torch
from stage_steps import assert_resumed_exactly, walk
from tiny_recipes import offline, run_of, sft

from penstock.algos import DPO, KTO, SFT, SimPO
from penstock.algos.dpo import MPO
from penstock.config.run import DataSpec, EvaluationSpec, ModelSpec, Offline
from penstock.core.errors import DataError, SpecError
from penstock.runtime import launch
from penstock.runtime.build import Models
from penstock.runtime.stages import prepare


def rows() -> list[dict[str, Any]]:
    return [row | {"label": bool(i % 3)} for i, row in enumerate(tiny_recipes.rows())]


def bad_rows() -> list[dict[str, Any]]:
    return [row | {"label": False} for row in rows()[:6]]


DATA = DataSpec(source=f"{__file__}:rows", completion="{{ chosen if label else rejected }}")


def stage(algorithm: Any, **more: Any) -> Offline:
    usual = {"data": DATA, "steps": 6, "evaluation": EvaluationSpec(data=replace(DATA, size=6))}
    return offline("prefer", algorithm, **usual | more)


def ready(stage: Offline, folder: Path) -> Any:
    return prepare(stage, run_of(stage), Models(lambda name: folder / name, torch.device("cpu"), 0), folder)


ALGORITHMS = {"dpo": DPO(), "mix": DPO(objective=MPO), "kto": KTO(), "kto pairs": KTO(data="pairs")}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_resumed_stage_ends_where_an_uninterrupted_one_does(name: str, tmp_path: Path) -> None:
    whole, second = assert_resumed_exactly(lambda: ready(stage(ALGORITHMS[name]), tmp_path), at=3)
    assert asyncio.run(whole.evaluate()) == asyncio.run(second.evaluate())


@pytest.mark.parametrize(("algorithm", "metric"), [(DPO(), "pair/accuracy"), (KTO(), "label/auc")])
def test_an_obvious_preference_is_learned(algorithm: Any, metric: str, tmp_path: Path) -> None:
    made = ready(stage(algorithm, steps=30), tmp_path)
    first, _ = asyncio.run(made.evaluate())
    walk(made)
    last, _ = asyncio.run(made.evaluate())
    assert first[f"evaluation/{metric}"] == 0.5  # a model that is its own reference prefers nothing
    assert last[f"evaluation/{metric}"] == 1.0


def test_a_reference_may_be_another_stages_model(tmp_path: Path) -> None:
    more = sft("more", steps=1, model=ModelSpec(path="@sft"))
    dpo = stage(DPO(), model=ModelSpec(path="@more"), reference=ModelSpec(path="@sft"), steps=1)
    summary = launch(run_of(sft(steps=1), more, dpo), tmp_path / "run").summary
    assert summary["stages"]["prefer"]["first"]["evaluation/pair/margin"] != 0.0


def test_a_reference_that_names_no_earlier_stage_is_refused() -> None:
    with pytest.raises(SpecError, match="names no earlier stage"):
        run_of(stage(DPO(), reference=ModelSpec(path="@later")))


@pytest.mark.parametrize("algorithm", [SFT(), SimPO()])
def test_a_reference_without_use_is_refused(algorithm: Any) -> None:
    with pytest.raises(SpecError, match="has no use for a reference; leave reference out"):
        stage(algorithm, reference=ModelSpec(path="@sft"))


def test_no_reference_is_loaded_where_none_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Models, "reference", lambda *given: pytest.fail("a reference was made"))
    assert walk(ready(stage(SimPO()), tmp_path), 0, 1)


def test_a_batch_of_one_is_undefined_for_kto() -> None:
    with pytest.raises(SpecError, match="batch=1 is undefined for KTO; set batch=2 or more"):
        stage(KTO(), batch=1)


def test_class_weights_see_the_data_that_is_trained_on(tmp_path: Path) -> None:
    data = DataSpec(source=f"{__file__}:bad_rows", completion="{{ chosen }}")
    with pytest.raises(DataError, match="0 good and 6 bad"):
        ready(stage(KTO(), data=data, evaluation=None), tmp_path)

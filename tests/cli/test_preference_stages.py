"""Offline stages with a reference: where it comes from, when it is refused, and that a resume is exact."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from penstock.algos import DPO, KTO, SFT, SimPO
from penstock.algos.dpo import MPO
from penstock.config.run import DataSpec, EvaluationSpec, LearnerSpec, ModelSpec, Offline, Run
from penstock.core.errors import DataError, SpecError
from penstock.runtime import launch
from penstock.runtime.build import Models
from penstock.runtime.stages import prepare

LETTERS = "abcdefghijklmnopqrstuvwxyz"
MODEL = ModelSpec(preset="1m", layers=1, vocabulary=300, context=64)
LEARNER = LearnerSpec(learning_rate=1e-3)


def rows() -> list[dict[str, Any]]:
    return [
        {"prompt": LETTERS[i : i + 2], "chosen": LETTERS[i + 2 : i + 4], "rejected": "?!", "label": bool(i % 3)}
        for i in range(20)
    ]


DATA = DataSpec(source=f"{__file__}:rows", completion="{{ chosen if label else rejected }}")


def stage(algorithm: Any, **more: Any) -> Offline:
    return Offline(**{
        "name": "prefer", "model": MODEL, "data": DATA, "algorithm": algorithm, "batch": 4, "steps": 6, "learner": LEARNER,
        "evaluation": EvaluationSpec(data=replace(DATA, size=6)),
    } | more)  # fmt: skip


def ready(stage: Offline, folder: Path) -> Any:
    run = Run(name="r", stages=(stage,), device="cpu", threads=1)
    return prepare(stage, run, Models(lambda name: folder / name, torch.device("cpu"), 0), folder)


def walk(ready: Any, start: int, stop: int) -> list[dict[str, float]]:
    """Metrics of steps; ``ready`` is left after step ``stop``."""

    async def all_steps() -> list[dict[str, float]]:
        found = []
        async for step in ready.steps(start):
            found.append({k: v for k, v in step.metrics.items() if "second" not in k})
            if step.index + 1 == stop:
                break
        return found

    return asyncio.run(all_steps())


ALGORITHMS = {
    "dpo": DPO(),
    "mix": DPO(objective=MPO),
    "kto": KTO(),
    "kto pairs": KTO(data="pairs"),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_resumed_stage_ends_where_an_uninterrupted_one_does(name: str, tmp_path: Path) -> None:
    whole, first = ready(stage(ALGORITHMS[name]), tmp_path), ready(stage(ALGORITHMS[name]), tmp_path)
    metrics = walk(whole, 0, 6)
    before = walk(first, 0, 3)
    second = ready(stage(ALGORITHMS[name]), tmp_path)
    second.holders["learner"].load_state(first.holders["learner"].state())
    assert before + walk(second, 3, 6) == metrics
    for (_, a), (_, b) in zip(whole.model.policy_weights(), second.model.policy_weights(), strict=True):
        assert torch.equal(a, b)
    assert asyncio.run(whole.evaluate()) == asyncio.run(second.evaluate())


@pytest.mark.parametrize(("algorithm", "metric"), [(DPO(), "pair/accuracy"), (KTO(), "label/auc")])
def test_an_obvious_preference_is_learned(algorithm: Any, metric: str, tmp_path: Path) -> None:
    made = ready(stage(algorithm, steps=30), tmp_path)
    first, _ = asyncio.run(made.evaluate())
    walk(made, 0, 30)
    last, _ = asyncio.run(made.evaluate())
    assert first[f"evaluation/{metric}"] == 0.5  # a model that is its own reference prefers nothing
    assert last[f"evaluation/{metric}"] == 1.0


def test_a_reference_may_be_another_stages_model(tmp_path: Path) -> None:
    sft = Offline(name="sft", model=MODEL, data=DATA, algorithm=SFT(), batch=4, steps=1, learner=LEARNER)
    more = Offline(name="more", model=ModelSpec(path="@sft"), data=DATA, algorithm=SFT(), batch=4, steps=1, learner=LEARNER)
    dpo = stage(DPO(), model=ModelSpec(path="@more"), reference=ModelSpec(path="@sft"), steps=1)
    run = Run(name="r", stages=(sft, more, dpo), device="cpu", threads=1)
    summary = launch(run, tmp_path / "run").summary
    first = summary["stages"]["prefer"]["first"]
    assert first["evaluation/pair/margin"] != 0.0


def test_a_reference_that_names_no_earlier_stage_is_refused() -> None:
    with pytest.raises(SpecError, match="names no earlier stage"):
        Run(name="r", stages=(stage(DPO(), reference=ModelSpec(path="@later")),))


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
    data = replace(DATA, completion="{{ chosen }}", size=1)  # row 0 is a bad one
    with pytest.raises(DataError, match="0 good and 6 bad"):
        ready(stage(KTO(), data=replace(data, source=f"{__file__}:bad_rows", size=0), evaluation=None), tmp_path)


def bad_rows() -> list[dict[str, Any]]:
    return [row | {"label": False} for row in rows()[:6]]

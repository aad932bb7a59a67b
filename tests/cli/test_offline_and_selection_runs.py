"""Whole runs of distillation, selection, the full KL and offline RL on letters, and that a killed one goes on exactly."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tiny_recipes
import torch
from processes import events
from safetensors.torch import load_file
from tiny_recipes import offline, run_of

from penstock.algos import GRPO, ILQL, RFT, Distillation, KLPenalty
from penstock.config.run import DataSpec, EvaluationSpec, ModelSpec, Offline, RewardSpec
from penstock.core.errors import ModelError
from penstock.core.types import Sampling
from penstock.loops.learn import Trainer
from penstock.runtime import launch
from penstock.runtime.measuring import measure, pick


def rated() -> list[dict[str, object]]:
    return [{**row, "reward": float(place % 3)} for place, row in enumerate(tiny_recipes.rows())]


RATED = DataSpec(source=f"{__file__}:rated", completion="{{ answer }}")
SFT, ONLINE = tiny_recipes.tiny().stages


def ilql(steps: int = 4) -> Offline:
    vowels = (RewardSpec(function=f"{tiny_recipes.__file__}:vowels"),)
    held_out = EvaluationSpec(data=replace(RATED, size=3), rewards=vowels, max_new_tokens=4, betas=(4.0,))
    return offline("ilql", ILQL(target_every=1), data=RATED, steps=steps, evaluation=held_out)


def online(algorithm, **changes):
    return replace(ONLINE, algorithm=algorithm, evaluation=None, **changes)


def metrics(folder, name):
    return [event["values"][name] for event in events(folder) if name in event.get("values", {})]


def test_distillation_from_an_earlier_stage_lowers_the_divergence(tmp_path):
    teacher = replace(SFT, steps=12)
    student = online(Distillation(), name="student", model=tiny_recipes.MODEL, reference=ModelSpec(path="@sft"), steps=12)
    launch(run_of(teacher, student), tmp_path / "run")
    seen = metrics(tmp_path / "run", "distillation/divergence")
    assert len(seen) == 12
    assert seen[-1] < 0.7 * seen[0]


def test_a_teacher_of_other_tokens_is_refused(tmp_path):
    other = replace(tiny_recipes.MODEL, vocabulary=270)
    student = online(Distillation(), name="student", model=other, reference=ModelSpec(path="@sft"))
    with pytest.raises(ModelError, match="vocabulary"):
        launch(run_of(SFT, student), tmp_path / "run")


def test_the_full_kl_is_zero_at_first_and_then_measured(tmp_path):
    kl = KLPenalty(place="loss", estimator="full", coefficient=0.1)
    launch(run_of(SFT, online(GRPO(kl=kl), steps=3)), tmp_path / "run")
    first, *later = metrics(tmp_path / "run", "kl/loss")
    assert first == pytest.approx(0.0, abs=1e-6)
    assert max(later) > 0


def test_selection_raises_its_quantile_from_batch_to_batch_and_learns(tmp_path):
    selection = online(RFT(start=0.0, end=0.9, rise=2), steps=8, samples=8, sampling=Sampling(max_new_tokens=4))
    summary = launch(run_of(SFT, selection), tmp_path / "run").summary
    assert summary["stages"]["grpo"]["metrics"]["batch/units"] >= 1
    rows = metrics(tmp_path / "run", "batch/rows")
    assert len(rows) == 8
    assert sum(rows[-3:]) < sum(rows[:3])


def test_an_ilql_run_saves_heads_that_the_next_stage_and_the_folder_have(tmp_path):
    summary = launch(run_of(ilql()), tmp_path / "run").summary
    heads = load_file(tmp_path / "run" / "model" / "q_heads.safetensors")
    assert heads["online.0.outer.bias"].any()
    assert not torch.equal(heads["online.0.outer.bias"], heads["target.0.outer.bias"])
    last = summary["stages"]["ilql"]["last"]
    again, _ = measure(pick(run_of(ilql()), ""), run_of(ilql()), tmp_path / "run", str(tmp_path / "run" / "model"))
    assert {name: again[name] for name in again if name.endswith("/reward")} == {
        name: last[name] for name in ("evaluation/reward", "evaluation/beta=4/reward")
    }


def test_an_ilql_run_that_was_cut_goes_on_bit_for_bit(tmp_path, monkeypatch):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    launch(run_of(ilql(6)), whole)
    step, calls = Trainer.step, []

    def stopped(*arguments, **more):
        calls.append(None)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return step(*arguments, **more)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "step", stopped)
        with pytest.raises(KeyboardInterrupt):
            launch(run_of(ilql(6)), cut)
    launch(run_of(ilql(6)), cut, resume=True)
    for name in ("model.safetensors", "q_heads.safetensors"):
        expected, found = load_file(whole / "model" / name), load_file(cut / "model" / name)
        assert all(torch.equal(found[key], expected[key]) for key in expected)

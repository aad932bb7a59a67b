"""Stages are open: one from outside the package is named by a run, checked, carried out and resumed like ours."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import own_parts
import torch
from safetensors.torch import load_file
from small_runs import grpo, run_of, sft

from penstock.config.parts import DataSpec, ModelSpec
from penstock.config.roles import processes
from penstock.config.run import Run
from penstock.runtime import launch
from penstock.runtime.folder import RunFolder


def with_a_scale(tmp_path: Path) -> Run:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"prompt": "ab", "completion": "b"}) + "\n")
    data = DataSpec(source=str(rows))
    scale = own_parts.Scale(name="scale", model=ModelSpec(path="@sft"), data=data)
    return run_of(sft(data=data), scale, modules=(own_parts.__file__,))


def test_a_stage_of_ones_own_is_carried_out_and_its_run_read_back(tmp_path: Path) -> None:
    run = with_a_scale(tmp_path)
    result = launch(run, tmp_path / "run")
    assert result.summary["stages"]["scale"]["metrics"] == {"scaled": 2.0}
    before, after = (load_file(tmp_path / "run" / name / "model.safetensors") for name in ("models/sft", "model"))
    assert all(torch.equal(after[name], 2 * before[name]) for name in before)
    assert RunFolder(tmp_path / "run").read() == run


def test_a_role_of_ones_own_is_among_the_processes_of_runs_that_list_its_module(tmp_path: Path) -> None:
    made = run_of(grpo(data=DataSpec(source="rows.jsonl")), runtime="procs")
    assert ("letters", "letters-0") not in list(processes(made))
    assert ("letters", "letters-0") in list(processes(replace(made, modules=(own_parts.__file__,))))
    assert ("letters", "letters-0") not in list(processes(with_a_scale(tmp_path)))  # no stage goes through a stream

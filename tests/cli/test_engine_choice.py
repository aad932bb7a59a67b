"""``--generator``: one flag for an engine, the Python that runs it, and what is said where it cannot run."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.explanation import explain
from penstock.cli.recipe import build
from penstock.config.engine_choice import sends_adapters, weights_way, with_engine
from penstock.config.engines import VLLM, Embedded, SGLang
from penstock.config.learner import LoRA
from penstock.config.run import Online, Run
from penstock.config.strategies import DDP
from penstock.core.errors import SpecError
from penstock.recipes.quickstart import quickstart

USUAL = (sys.executable, "-m", "penstock.runtime.role")


def check_engine(run: Any) -> None:
    run.roles.engine.check(run.roles.generators)


def on(engine: Any, **roles: Any) -> Run:
    run = with_engine(quickstart(), "vllm")
    return replace(run, roles=replace(run.roles, engine=engine, **roles))


def on_vllm(python: str = "") -> Run:
    return on(VLLM(python=python))


def test_vllm_puts_the_generators_into_processes() -> None:
    run = with_engine(quickstart(), "vllm")
    assert isinstance(run.roles.engine, VLLM)
    assert run.runtime == "procs"


def test_the_embedded_engine_leaves_the_runtime() -> None:
    run = with_engine(quickstart(), "embedded")
    assert (run.runtime, run.roles.engine) == ("local", Embedded())


def test_the_flag_comes_before_the_engines_own_fields() -> None:
    run = build("quickstart", ["--roles.engine.cache-bytes", "2097152"], engine="vllm")
    assert run.roles.engine.cache_bytes == 2097152


def test_an_unknown_engine_is_refused_with_those_that_are_close() -> None:
    with pytest.raises(SpecError, match='no engine "vlm"; did you mean "vllm"'):
        build("quickstart", [], engine="vlm")


def test_generators_are_started_with_the_engines_python() -> None:
    run = on_vllm("vllm/bin/python")
    assert run.roles.engine.command(USUAL) == ("vllm/bin/python", "-m", "penstock.runtime.role")
    assert on_vllm().roles.engine.command(USUAL) == USUAL
    assert quickstart().roles.engine.command(USUAL) == USUAL


def test_a_python_that_does_not_exist_is_refused() -> None:
    with pytest.raises(SpecError, match=r"roles.engine.python=/nowhere/python does not run .*make vllm"):
        check_engine(on_vllm("/nowhere/python"))


def test_a_python_without_vllm_is_refused(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(SpecError, match="has no vLLM with Penstock installed; make vllm"):
        check_engine(on_vllm(str(bare)))


def test_other_engines_ask_for_no_python() -> None:
    assert check_engine(quickstart()) is None


def test_explain_names_the_engine() -> None:
    assert any("generators run vLLM in vllm/bin/python" in line for line in explain(on_vllm("vllm/bin/python")))
    assert any("generators run Penstock's own" in line for line in explain(replace(quickstart(), runtime="procs")))


TO_RANKS = "then by a process group to the server's processes"


@pytest.mark.parametrize(
    ("engine", "channel", "way"),
    [
        (Embedded(), "disk", "to the generators by disk"),
        (VLLM(), "shared memory", "to the generators by shared memory, then by shared memory to vLLM's workers"),
        (VLLM(), "process group", "to the generators by process group, then by shared memory to vLLM's workers"),
        (SGLang(), "shared memory", "to the generators by shared memory, then by a folder to the server"),
        (SGLang(weights="process group"), "disk", f"to the generators by disk, {TO_RANKS}"),
    ],
)
def test_explain_says_how_weights_get_to_what_draws(engine: object, channel: str, way: str) -> None:
    run = on(engine, channel=channel)
    assert weights_way(run).startswith(way)
    assert any(f"weights go {way}" in line for line in explain(run))


def adapted(engine: object, strategy: object = None) -> tuple[Run, Online]:
    run = on(engine)
    stage = run.stages[-1]
    assert isinstance(stage, Online)
    learner = replace(stage.learner, lora=LoRA(rank=8), **({"strategy": strategy} if strategy else {}))
    stage = replace(stage, learner=learner)
    return replace(run, stages=(*run.stages[:-1], stage)), stage


@pytest.mark.parametrize(
    ("engine", "strategy", "alone"),
    [
        (VLLM(), None, True),
        (VLLM(adapters=False), None, False),
        (Embedded(), None, False),
        (VLLM(), DDP(ranks=2), False),
    ],
)
def test_adapters_travel_alone_to_vllm_from_one_device(engine: object, strategy: object, alone: bool) -> None:
    assert sends_adapters(*adapted(engine, strategy)) is alone


def test_explain_counts_adapters_alone_where_they_travel_alone() -> None:
    def sent(engine: object) -> str:
        return next(line for line in explain(adapted(engine)[0]) if "moved a step" in line)

    assert "weights 311 kB" in sent(VLLM())
    assert "weights 3.6 MB" in sent(VLLM(adapters=False))

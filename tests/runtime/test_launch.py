"""The door to a run: who listens hears everything and slows nothing, and it opens from any thread and event loop."""

from __future__ import annotations

import asyncio
import datetime
import gc
import threading
from pathlib import Path
from typing import Any

import pytest
from small_runs import ROWS, grpo, run_of, sft, told

import penstock
from penstock.config.run import CheckpointSpec, DataSpec, Run
from penstock.core.errors import DataError, SpecError
from penstock.data.sources import open_source
from penstock.engine.cache import CachePool
from penstock.engine.generator import EmbeddedGenerator
from penstock.loops.learn import Trainer
from penstock.models.language_model import LanguageModel
from penstock.runtime import launch
from penstock.runtime.folder import RunFolder
from penstock.runtime.launching import travelling
from penstock.runtime.listeners import Delivery
from penstock.train.learner import DeviceLearner


def in_processes(rows: list[dict[str, Any]], function: str = "exact_match") -> Run:
    return run_of(grpo(function, data=penstock.rows(rows)), runtime="procs", checkpoint=CheckpointSpec(every=1))


def failing(event: dict[str, Any]) -> None:
    raise ValueError("no screen")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, list[dict[str, Any]]]:
    """A run with two listeners, of which the first fails: its result, and what the second heard."""
    heard: list[dict[str, Any]] = []
    with pytest.warns(UserWarning, match=r"failing.*failed \(ValueError: no screen\); the run goes on"):
        result = launch(run_of(sft()), tmp_path_factory.mktemp("whole") / "run", [failing, heard.append])
    return result, heard


def test_a_listener_hears_every_event_of_the_log_and_one_that_fails_ends_nothing(whole: tuple[Any, list[Any]]) -> None:
    result, heard = whole
    assert heard == told(result.folder)
    assert heard[-1]["what"] == "finished"
    assert result.headline == result.summary["headline"]


def test_a_slow_listener_misses_events_and_holds_nobody_up() -> None:
    heard: list[int] = []
    go = threading.Event()

    def slow(event: dict[str, Any]) -> None:
        go.wait(60)
        heard.append(event["step"])

    delivery = Delivery(slow, capacity=2)
    for step in range(20):
        delivery({"step": step})
    threading.Timer(0.2, go.set).start()
    with pytest.warns(UserWarning, match=r"is too slow and missed 1\d events"):
        delivery.close()
    assert heard in ([0, 1, 2], [0, 1])


def test_the_same_weights_come_out_of_a_cell_whose_event_loop_runs(tmp_path: Path, whole: tuple[Any, list[Any]]) -> None:
    async def cell() -> Any:
        return launch(run_of(sft()), tmp_path / "cell")

    result = asyncio.run(cell())
    assert [event["step"] for event in result.metrics] == [1, 2]
    assert model_of(result) == model_of(whole[0])


def model_of(result: Any) -> bytes:
    return bytes((result.model_path / "model.safetensors").read_bytes())


def test_an_interrupt_says_how_to_go_on_and_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: tuple[Any, list[Any]]
) -> None:
    run = run_of(sft(), checkpoint=CheckpointSpec(every=1))
    step, calls = Trainer.step, []

    def interrupted(*arguments: Any, **more: Any) -> Any:
        calls.append(None)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return step(*arguments, **more)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "step", interrupted)
        with pytest.raises(KeyboardInterrupt, match=r"stopped; go on with: the same penstock.train\(…") as stopped:
            penstock.train(run, folder=tmp_path / "run", progress=False)
    assert f'folder="{tmp_path / "run"}", resume=True), or' in str(stopped.value)
    assert f"penstock train RECIPE --resume {tmp_path / 'run'}; for rows-" in str(stopped.value)
    assert model_of(penstock.train(run, folder=tmp_path / "run", resume=True, progress=False)) == model_of(whole[0])


def test_a_run_whose_rows_are_in_a_file_goes_on_by_the_command_line(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.begin(run_of(sft(data=DataSpec(source="rows.jsonl"))))
    assert folder.way_on == f"go on with: penstock train --resume {tmp_path / 'run'}"


def test_rows_at_hand_travel_in_a_file_of_the_same_rows(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with travelling(in_processes(ROWS), folder) as able:
        source = able.stages[0].data.source
        assert source.startswith(str(folder / "data" / "rows-"))
        before, after = (open_source(DataSpec(source=name), tmp_path) for name in (penstock.rows(ROWS).source, source))
        assert [after[index] for index in range(3)] == ROWS
        assert after.name == before.name
    assert not (folder / "data").exists()  # no run was begun


def test_rows_that_cannot_travel_are_refused_by_their_number(tmp_path: Path) -> None:
    rows = [*ROWS, {"prompt": "a", "when": datetime.date(2026, 1, 1)}]
    with pytest.raises(DataError, match=r"row 3 of the rows at hand cannot go to other processes: .*date"):
        launch(in_processes(rows), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_function_of_this_process_only_is_refused_before_anything_starts(tmp_path: Path) -> None:
    run = in_processes(ROWS, penstock.reward(lambda sample, columns: 1.0).function)
    with pytest.raises(SpecError, match=r"processes that cannot find .*lambda.*define it at the top level of a file"):
        launch(run, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def living(*kinds: type) -> list[object]:
    """Objects of these classes that are still in memory, waste that refers to itself included."""
    return [one for one in gc.get_objects() if type(one) in kinds]


def living_classes(package: str) -> list[object]:
    return [one for one in gc.get_objects() if issubclass(type(one), type) and str(one.__module__).startswith(package)]


def test_a_run_that_is_over_leaves_no_model_and_no_recorded_code_in_memory(tmp_path: Path) -> None:
    """A process that launches run after run, such as a notebook or a benchmark, does not grow."""
    run = run_of(grpo(data=penstock.rows([{"prompt": "ab", "answer": "b"}, {"prompt": "bc", "answer": "c"}])))
    launch(run, tmp_path / "first")
    models = LanguageModel, DeviceLearner, EmbeddedGenerator, CachePool
    before, classes = {id(one) for one in living(*models)}, len(living_classes("torch.jit"))
    gc.disable()
    try:
        launch(run, tmp_path / "second")
        assert [one for one in living(*models) if id(one) not in before] == []
        gc.collect()
        assert len(living_classes("torch.jit")) == classes
    finally:
        gc.enable()

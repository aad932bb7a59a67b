"""Penstock from Python: own rows, own rewards, and runs that the command line can go on with."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import tiny_recipes
from cli_examples import Penstock
from processes import Server

import penstock as package
from penstock.config.spec import plain
from penstock.core.errors import CheckpointError, DataError, SpecError

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_reward.py"


def two_rows() -> list[dict[str, str]]:
    return [{"prompt": "ab", "answer": "c"}, {"prompt": "bc", "answer": "d"}]


@pytest.mark.parametrize("name", package.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert callable(getattr(package, name))


def test_every_algorithm_is_there_by_name() -> None:
    assert {package.DPO.__name__, package.ILQL.__name__, package.dapo.__name__} == {"DPO", "ILQL", "dapo"}
    assert "ReMax" in dir(package)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'learn'"):
        package.learn  # noqa: B018


def test_the_verb_and_the_package_of_learners_share_a_name() -> None:
    import penstock.train.optimizer as by_path

    assert package.train.optimizer is by_path  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, str]:
    """The result of a run of one step in a folder of one's own, and what was printed."""
    folder, said = tmp_path_factory.mktemp("mine") / "run", io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        result = package.train(tiny_recipes.one_step(), folder=folder, progress=False)
    return result, said.getvalue()


def test_a_run_gives_its_result(tmp_path: Path) -> None:
    result = package.train(tiny_recipes.tiny(fast=True), folder=tmp_path / "mine", progress=False)
    assert result.folder == tmp_path / "mine"
    assert (result.model_path / "model.safetensors").is_file()
    assert result.headline == result.summary["headline"]
    assert [event["step"] for event in result.metrics if event["stage"] == "grpo" and "loss" in event["values"]] == [1, 2, 3, 4]
    assert result.samples[0]["rows"][0]["prompt"] == "ab"


def test_without_progress_nothing_is_said(mine: tuple[Any, str]) -> None:
    assert mine[1] == ""


def test_without_a_folder_runs_are_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs/one").mkdir(parents=True)
    assert package.train(tiny_recipes.one_step(), progress=False).folder == Path("runs/one-2")


def test_a_folder_with_a_run_is_refused(mine: tuple[Any, str]) -> None:
    with pytest.raises(CheckpointError, match="a run is there already"):
        package.train(tiny_recipes.one_step(), folder=mine[0].folder, progress=False)


def test_resuming_where_no_run_is_starts_nothing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no run\.json here"):
        package.train(tiny_recipes.one_step(), folder=tmp_path / "mine", resume=True, progress=False)


def test_a_finished_run_gives_its_result_again(mine: tuple[Any, str]) -> None:
    assert package.train(tiny_recipes.one_step(), folder=mine[0].folder, resume=True, progress=False) == mine[0]


@pytest.mark.parametrize(
    ("given", "source"),
    [(two_rows, f"{Path(__file__).resolve()}:two_rows"), ("rows.jsonl", "rows.jsonl")],
    ids=["a function, which other processes find", "a name, as it is"],
)
def test_what_is_at_hand_becomes_a_source_of_data(given: Any, source: str) -> None:
    found = package.rows(given, completion="{{ answer }}", size=3)
    assert found == package.DataSpec(source=source, completion="{{ answer }}", size=3)


def test_equal_rows_make_equal_data() -> None:
    assert package.rows(two_rows()) == package.rows(two_rows())
    assert package.rows(two_rows()) != package.rows(two_rows()[:1])


def test_rows_at_hand_are_trained_on(tmp_path: Path) -> None:
    stage = tiny_recipes.sft(steps=1, batch=2, data=package.rows(two_rows(), completion="{{ answer }}"))
    assert package.train(tiny_recipes.run_of(stage), folder=tmp_path / "mine", progress=False).metrics[0]["step"] == 1


def test_what_is_no_row_is_refused() -> None:
    with pytest.raises(DataError, match="row 1 is int"):
        package.rows([{"prompt": "a"}, 3])  # type: ignore[list-item]


def test_a_function_becomes_a_reward_with_its_weight() -> None:
    spec = package.reward(tiny_recipes.vowels, weight=0.5, deadline=1.0)
    assert spec == package.RewardSpec(function=f"{tiny_recipes.__file__}:vowels", weight=0.5, deadline=1.0)


def test_a_named_reward_stays_as_it_is() -> None:
    assert package.reward("exact_match").function == "exact_match"


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(SpecError, match="not callable"):
        package.reward(3)  # type: ignore[arg-type]


def test_a_lambda_of_another_process_is_refused_with_the_way_out(penstock: Penstock, tmp_path: Path) -> None:
    text = json.dumps(plain(tiny_recipes.rewarded())).replace(f"{tiny_recipes.__file__}:vowels", "callable:nobodys")
    (tmp_path / "runs/mine").mkdir(parents=True)
    (tmp_path / "runs/mine/run.json").write_text(text)
    penstock("train", "--resume", "runs/mine").assert_refused("callable:nobodys", "top level of a file")


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder and the output of the example, run as a user runs it."""
    folder = tmp_path_factory.mktemp("example")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_the_example_learns(example: tuple[Path, str]) -> None:
    rewards = json.loads(example[1].splitlines()[-1].removeprefix("reward "))
    assert rewards[-1] > rewards[0] + 0.2


def test_the_example_can_be_gone_on_with(example: tuple[Path, str], server: Server, tmp_path: Path) -> None:
    kill = "arm('penstock.loops.learn:Trainer.step', 6)"
    killed = server.run(tmp_path, "train", f"{EXAMPLE}:run", "--name", "own-reward", "--checkpoint.every", "2", first=kill)
    assert killed.code == -9, killed.text
    assert server.run(tmp_path, "train", "--resume", "runs/own-reward").code == 0
    model = Path("runs/own-reward/model/model.safetensors")
    assert (tmp_path / model).read_bytes() == (example[0] / model).read_bytes()

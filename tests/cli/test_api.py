"""Penstock from Python: own rows, own rewards, and runs that the command line can go on with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_recipes
from cli_examples import Penstock
from processes import Server

import penstock as package
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
    import penstock.train.schedule as by_path

    assert package.train.schedule is by_path  # type: ignore[attr-defined]


def test_a_run_gives_its_result(tmp_path: Path) -> None:
    result = package.train(tiny_recipes.tiny(fast=True), folder=tmp_path / "mine", progress=False)
    assert result.folder == tmp_path / "mine"
    assert (result.model_path / "model.safetensors").is_file()
    assert result.headline == result.summary["headline"]
    assert [event["step"] for event in result.metrics if event["stage"] == "grpo" and "loss" in event["values"]] == [1, 2, 3, 4]
    assert result.samples[0]["rows"][0]["prompt"] == "ab"


def test_without_progress_nothing_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    package.train(tiny_recipes.one_step(), folder=tmp_path / "mine", progress=False)
    assert capsys.readouterr() == ("", "")


def test_without_a_folder_runs_are_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folders = [package.train(tiny_recipes.one_step(), progress=False).folder for _ in range(2)]
    assert folders == [Path("runs/one"), Path("runs/one-2")]


def test_a_folder_with_a_run_is_refused(tmp_path: Path) -> None:
    package.train(tiny_recipes.one_step(), folder=tmp_path / "mine", progress=False)
    with pytest.raises(CheckpointError, match="a run is there already"):
        package.train(tiny_recipes.one_step(), folder=tmp_path / "mine", progress=False)


def test_resuming_where_no_run_is_starts_nothing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no run\.json here"):
        package.train(tiny_recipes.one_step(), folder=tmp_path / "mine", resume=True, progress=False)


def test_a_finished_run_gives_its_result_again(tmp_path: Path) -> None:
    first = package.train(tiny_recipes.one_step(), folder=tmp_path / "mine", progress=False)
    again = package.train(tiny_recipes.one_step(), folder=tmp_path / "mine", resume=True, progress=False)
    assert again == first


def test_a_function_becomes_data_that_other_processes_find() -> None:
    assert package.rows(two_rows, completion="{{ answer }}") == package.DataSpec(
        source=f"{Path(__file__).resolve()}:two_rows", completion="{{ answer }}"
    )


def test_a_named_source_stays_as_it_is() -> None:
    assert package.rows("rows.jsonl", size=3) == package.DataSpec(source="rows.jsonl", size=3)


def test_equal_rows_make_equal_data() -> None:
    assert package.rows(two_rows()) == package.rows(two_rows())
    assert package.rows(two_rows()) != package.rows(two_rows()[:1])


def test_rows_at_hand_are_trained_on(tmp_path: Path) -> None:
    made = tiny_recipes.sft(steps=1)
    data = package.rows(two_rows(), completion="{{ answer }}")
    stage = package.Offline(name="sft", model=made.model, data=data, algorithm=package.SFT(), batch=2, steps=1)
    run = package.Run(name="rows", stages=(stage,), device="cpu", threads=1)
    assert package.train(run, folder=tmp_path / "mine", progress=False).metrics[0]["step"] == 1


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
    stage = tiny_recipes.rewarded().stages[0]
    run = package.Run(name="mine", stages=(stage,), device="cpu", threads=1)
    from penstock.config.spec import plain

    text = json.dumps(plain(run)).replace(f"{tiny_recipes.__file__}:vowels", "callable:nobodys")
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


@pytest.mark.slow
def test_the_example_learns(example: tuple[Path, str]) -> None:
    rewards = json.loads(example[1].splitlines()[-1].removeprefix("reward "))
    assert rewards[-1] > rewards[0] + 0.2


@pytest.mark.slow
def test_the_example_can_be_gone_on_with(example: tuple[Path, str], server: Server, tmp_path: Path) -> None:
    kill = "arm('penstock.loops.learn:Trainer.step', 6)"
    killed = server.run(tmp_path, "train", f"{EXAMPLE}:run", "--name", "own-reward", "--checkpoint.every", "2", first=kill)
    assert killed.code == -9, killed.text
    assert server.run(tmp_path, "train", "--resume", "runs/own-reward").code == 0
    model = Path("runs/own-reward/model/model.safetensors")
    assert (tmp_path / model).read_bytes() == (example[0] / model).read_bytes()

"""Data and models that cannot be used: one line that names the file, the line or the row; no folder is left behind."""

from __future__ import annotations

import gzip
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_examples import RECIPES, Outcome, Penstock

from penstock.config.run import DataSpec
from penstock.core.errors import PenstockError
from penstock.runtime.check import check_data, check_model

LONG = "".join(random.Random(0).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=400))
ROW = json.dumps({"prompt": "ab", "answer": "c", "chosen": "c", "rejected": "d"}) + "\n"


@pytest.fixture
def train(penstock: Penstock, tmp_path: Path) -> Callable[..., Outcome]:
    """``train(recipe, *flags)``; asserts that no folder is left."""

    def run(recipe: str, *flags: str) -> Outcome:
        outcome = penstock("train", f"{RECIPES}:{recipe}", *flags)
        assert not (tmp_path / "runs").exists()
        return outcome

    return run


def test_a_missing_file(train: Callable[..., Outcome]) -> None:
    train("tiny", "--sft.data.source", "nowhere.jsonl").assert_refused("sft", "nowhere.jsonl", "no such file")


def test_a_missing_file_of_a_later_stage_is_found_before_the_first(train: Callable[..., Outcome]) -> None:
    outcome = train("tiny", "--grpo.data.source", "nowhere.jsonl")
    outcome.assert_refused("grpo", "nowhere.jsonl")
    assert "started" not in outcome.out


def test_a_malformed_line(train: Callable[..., Outcome], tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(ROW + '{"prompt": nope}\n')
    train("tiny", "--sft.data.source", "rows.jsonl").assert_refused("rows.jsonl:2: not valid JSON")


def test_a_line_that_is_no_row(train: Callable[..., Outcome], tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(ROW + "3\n")
    train("tiny", "--sft.data.source", "rows.jsonl").assert_refused("rows.jsonl:2", "must be a JSON object")


def test_an_empty_file(train: Callable[..., Outcome], tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("")
    train("tiny", "--sft.data.source", "rows.jsonl").assert_refused("rows.jsonl: no rows in it")


def test_a_file_cut_short(train: Callable[..., Outcome], tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl.gz").write_bytes(gzip.compress(ROW.encode() * 100)[:-9])
    train("tiny", "--sft.data.source", "rows.jsonl.gz").assert_refused("rows.jsonl.gz", "is it complete?")


def test_a_skip_that_leaves_nothing(train: Callable[..., Outcome]) -> None:
    train("tiny", "--sft.data.skip", "20").assert_refused("skip=20 leaves none of its 20 rows")


def test_a_source_of_no_known_kind(train: Callable[..., Outcome]) -> None:
    train("tiny", "--sft.data.source", "rows.xls").assert_refused("rows.xls", "FILE.jsonl")


def test_a_source_function_that_is_not_there(train: Callable[..., Outcome]) -> None:
    train("tiny", "--grpo.data.source", f"{RECIPES}:nothing").assert_refused("grpo", 'has no "nothing"')


def test_a_template_that_names_a_missing_column(train: Callable[..., Outcome]) -> None:
    train("tiny", "--sft.data.prompt", "{{ question }}").assert_refused("'question' is undefined", "columns there are: prompt")


def test_a_later_template_that_names_a_missing_column(train: Callable[..., Outcome], tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(ROW)
    flags = ("--grpo.data.source", "rows.jsonl", "--grpo.data.prompt", "{{ question }}")
    train("tiny", *flags).assert_refused("grpo", "'question' is undefined")


def test_a_template_that_cannot_be_read(train: Callable[..., Outcome]) -> None:
    train("tiny", "--grpo.data.prompt", "{{ prompt").assert_refused('template prompt "{{ prompt"')


def test_a_row_in_the_middle_without_a_column(train: Callable[..., Outcome], tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(ROW * 3 + '{"prompt": "ab"}\n')
    train("one_step", "--data.source", "rows.jsonl").assert_refused("row 3", "'answer' is undefined")


def test_an_example_longer_than_the_context(train: Callable[..., Outcome], tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(ROW * 2 + json.dumps({"prompt": "ab", "answer": LONG}) + "\n")
    outcome = train("one_step", "--data.source", "rows.jsonl")
    outcome.assert_refused("rows.jsonl row 2", "do not fit the model's context of 64")


def test_a_prompt_longer_than_the_context(train: Callable[..., Outcome], tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(ROW * 2 + json.dumps({"prompt": LONG}) + "\n")
    outcome = train("rewarded", "--data.source", "rows.jsonl")
    outcome.assert_refused("rows.jsonl row 2", "no room for an answer in the model's context of 64")


def test_a_held_out_prompt_longer_than_the_context(train: Callable[..., Outcome], tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(ROW * 2 + json.dumps({"prompt": LONG}) + "\n")
    held_out = json.dumps({"kind": "EvaluationSpec", "data": {"kind": "DataSpec", "source": "rows.jsonl"}})
    train("rewarded", "--grpo.evaluation", held_out).assert_refused("rows.jsonl row 2")


@pytest.fixture
def model(uninterrupted: Callable[..., Path], tmp_path: Path) -> Path:
    """A model folder of one's own."""
    return Path(shutil.copytree(uninterrupted("tiny") / "model", tmp_path / "model"))


def start_from(train: Callable[..., Outcome]) -> Outcome:
    return train("one_step", "--sft.model.path", "./model")


def test_a_model_folder_that_is_not_there(train: Callable[..., Outcome]) -> None:
    start_from(train).assert_refused("model: no such folder")


def test_a_later_model_folder_that_is_not_there(train: Callable[..., Outcome]) -> None:
    outcome = train("tiny", "--grpo.model.path", "./nowhere")
    outcome.assert_refused("grpo", "nowhere: no such folder")
    assert "started" not in outcome.out


def test_a_folder_without_a_config(train: Callable[..., Outcome], model: Path) -> None:
    (model / "config.json").unlink()
    start_from(train).assert_refused("model: no config.json")


def test_pickled_weights_are_never_read(train: Callable[..., Outcome], model: Path) -> None:
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    start_from(train).assert_refused("pickled (pytorch_model.bin)", "safe_serialization=True")


def test_a_folder_without_weights(train: Callable[..., Outcome], model: Path) -> None:
    (model / "model.safetensors").unlink()
    start_from(train).assert_refused("no *.safetensors weights")


def test_damaged_weights(train: Callable[..., Outcome], model: Path) -> None:
    (model / "model.safetensors").write_bytes(b"\0" * 100)
    start_from(train).assert_refused("model", "cannot be loaded")


def test_a_missing_tokenizer(train: Callable[..., Outcome], model: Path) -> None:
    for file in model.glob("tokenizer*"):
        file.unlink()
    start_from(train).assert_refused("model: no tokenizer")


def test_a_chat_without_a_template(train: Callable[..., Outcome], model: Path) -> None:
    (model / "chat_template.jinja").unlink()
    train("one_step", "--sft.model.path", "./model", "--data.chat", "true").assert_refused("no chat template", "chat=false")


def test_a_reward_that_is_not_there_is_found_before_the_first_stage(train: Callable[..., Outcome]) -> None:
    outcome = train("tiny", "--reward", "nothing")
    outcome.assert_refused("grpo", 'has no "nothing"')
    assert "started" not in outcome.out


def test_a_reward_of_the_wrong_form(train: Callable[..., Outcome]) -> None:
    train("tiny", "--reward", "rows").assert_refused("grpo", "cannot be called as function(sample or group, columns")


def test_a_folder_that_was_there_before_is_kept_without_the_run(penstock: Penstock, tmp_path: Path) -> None:
    mine = tmp_path / "runs" / "a" / "notes.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    refused = penstock("train", f"{RECIPES}:one_step", "--sft.data.prompt", "{{ question }}", "--name", "a")
    refused.assert_refused("'question' is undefined")
    assert [path.name for path in mine.parent.iterdir()] == ["notes.txt"]


def test_a_table_is_no_function_of_a_module_called_hub_and_waits_for_its_stage(tmp_path: Path) -> None:
    check_data(DataSpec(source="hub:rows.csv", prompt="{{ prompt }}"), "prompts", tmp_path)
    with pytest.raises(PenstockError, match='no module "elsewhere"'):
        check_data(DataSpec(source="elsewhere:rows.csv", prompt="{{ prompt }}"), "prompts", tmp_path)


def test_the_folder_of_a_run_is_no_model_and_the_message_names_the_one_in_it(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(PenstockError, match=r"the folder of a run; its model is .*/model$"):
        check_model(str(tmp_path))

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
HELD_OUT = json.dumps({"kind": "EvaluationSpec", "data": {"kind": "DataSpec", "source": "rows.jsonl"}})


@pytest.fixture
def train(penstock: Penstock, tmp_path: Path) -> Callable[..., Outcome]:
    """``train(recipe, *flags)``; asserts that no folder is left."""

    def run(recipe: str, *flags: str) -> Outcome:
        outcome = penstock("train", f"{RECIPES}:{recipe}", *flags)
        assert not (tmp_path / "runs").exists()
        return outcome

    return run


WORDS = {
    "a missing file": ("tiny --sft.data.source nowhere.jsonl", ("sft", "nowhere.jsonl", "no such file")),
    "a skip that leaves nothing": ("tiny --sft.data.skip 20", ("skip=20 leaves none of its 20 rows",)),
    "a source of no known kind": ("tiny --sft.data.source rows.xls", ("rows.xls", "use a file or its URL (.jsonl")),
    "a source function that is not there": (f"tiny --grpo.data.source {RECIPES}:nothing", ("grpo", 'has no "nothing"')),
    "a template that names a missing column": (
        "tiny --sft.data.prompt {{question}}",
        ("'question' is undefined", "columns there are: prompt"),
    ),
    "a template that cannot be read": ("tiny --grpo.data.prompt {{prompt", ('template prompt "{{prompt"',)),
    "a model folder that is not there": ("one_step --sft.model.path ./model", ("model: no such folder",)),
    "a reward of the wrong form": ("tiny --reward rows", ("grpo", "cannot be called as function(sample or group, columns")),
}


@pytest.mark.parametrize("case", WORDS)
def test_what_is_named_and_cannot_be_used(case: str, train: Callable[..., Outcome]) -> None:
    words, parts = WORDS[case]
    train(*words.split()).assert_refused(*parts)


LATER = {
    "file": ("--grpo.data.source", "nowhere.jsonl", "nowhere.jsonl"),
    "model folder": ("--grpo.model.path", "./nowhere", "nowhere: no such folder"),
    "reward": ("--reward", "nothing", 'has no "nothing"'),
}


@pytest.mark.parametrize("case", LATER)
def test_what_a_later_stage_lacks_is_found_before_the_first_begins(case: str, train: Callable[..., Outcome]) -> None:
    flag, value, said = LATER[case]
    outcome = train("tiny", flag, value)
    outcome.assert_refused("grpo", said)
    assert "started" not in outcome.out


LONG_PROMPT = ROW * 2 + json.dumps({"prompt": LONG}) + "\n"
LONG_ANSWER = ROW * 2 + json.dumps({"prompt": "ab", "answer": LONG}) + "\n"
SFT_ROWS = "tiny --sft.data.source rows.jsonl"
ROWS = {
    "a malformed line": (ROW + '{"prompt": nope}\n', SFT_ROWS, ("rows.jsonl:2: not valid JSON",)),
    "a line that is no row": (ROW + "3\n", SFT_ROWS, ("rows.jsonl:2", "must be a JSON object")),
    "an empty file": ("", SFT_ROWS, ("rows.jsonl: no rows in it",)),
    "a later template that names a missing column": (
        ROW,
        "tiny --grpo.data.source rows.jsonl --grpo.data.prompt {{question}}",
        ("grpo", "'question' is undefined"),
    ),
    "a row in the middle without a column": (
        ROW * 3 + '{"prompt": "ab"}\n',
        "one_step --data.source rows.jsonl",
        ("row 3", "'answer' is undefined"),
    ),
    "an example longer than the context": (
        LONG_ANSWER,
        "one_step --data.source rows.jsonl",
        ("rows.jsonl row 2", "do not fit the model's context of 64"),
    ),
    "a prompt longer than the context": (
        LONG_PROMPT,
        "rewarded --data.source rows.jsonl",
        ("rows.jsonl row 2", "no room for an answer in the model's context of 64"),
    ),
}


@pytest.mark.parametrize("case", ROWS)
def test_rows_that_cannot_be_used(case: str, train: Callable[..., Outcome], tmp_path: Path) -> None:
    rows, words, parts = ROWS[case]
    (tmp_path / "rows.jsonl").write_text(rows)
    train(*words.split()).assert_refused(*parts)


def test_a_held_out_prompt_longer_than_the_context(train: Callable[..., Outcome], tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(LONG_PROMPT)
    train("rewarded", "--grpo.evaluation", HELD_OUT).assert_refused("rows.jsonl row 2")


def test_a_file_cut_short(train: Callable[..., Outcome], tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl.gz").write_bytes(gzip.compress(ROW.encode() * 100)[:-9])
    train("tiny", "--sft.data.source", "rows.jsonl.gz").assert_refused("rows.jsonl.gz", "is it complete?")


@pytest.fixture
def model(uninterrupted: Callable[..., Path], tmp_path: Path) -> Path:
    """A model folder of one's own."""
    return Path(shutil.copytree(uninterrupted("tiny") / "model", tmp_path / "model"))


LACKS = {
    "config.json": ("model: no config.json",),
    "model.safetensors": ("no *.safetensors weights",),
    "tokenizer*": ("model: no tokenizer",),
}


@pytest.mark.parametrize("files", LACKS)
def test_a_model_folder_that_lacks_a_file(files: str, train: Callable[..., Outcome], model: Path) -> None:
    for file in model.glob(files):
        file.unlink()
    train("one_step", "--sft.model.path", "./model").assert_refused(*LACKS[files])


def test_pickled_weights_are_never_read(train: Callable[..., Outcome], model: Path) -> None:
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    refused = train("one_step", "--sft.model.path", "./model")
    refused.assert_refused("pickled (pytorch_model.bin)", "safe_serialization=True")


def test_damaged_weights(train: Callable[..., Outcome], model: Path) -> None:
    (model / "model.safetensors").write_bytes(b"\0" * 100)
    train("one_step", "--sft.model.path", "./model").assert_refused("model", "cannot be loaded")


def test_a_chat_without_a_template(train: Callable[..., Outcome], model: Path) -> None:
    (model / "chat_template.jinja").unlink()
    train("one_step", "--sft.model.path", "./model", "--data.chat", "true").assert_refused("no chat template", "chat=false")


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


@pytest.mark.parametrize(("file", "said"), [("config.json", "is a model's folder"), ("run.json", "the folder of a run")])
def test_a_folder_in_the_place_of_a_recipe_is_named(file: str, said: str, tmp_path: Path, penstock: Penstock) -> None:
    (tmp_path / "thing").mkdir()
    (tmp_path / "thing" / file).write_text("{}")
    penstock("check", "thing").assert_refused(said)

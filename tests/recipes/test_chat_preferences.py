"""The preference recipes, with a reward model and with DPO: dialogues become pairs, and on made-up ones the whole of each."""

import json

import pytest

from penstock.cli.recipe import build
from penstock.core.errors import DataError
from penstock.data.sources import open_source
from penstock.recipes.chat_preferences import HELD_OUT, chat_preferences, dialogues
from penstock.recipes.hh import hh
from penstock.runtime import launch


def dialogue(*turns):
    return "".join(f"\n\n{'Assistant' if place % 2 else 'Human'}: {turn}" for place, turn in enumerate(turns))


@pytest.fixture
def write(tmp_path):
    def write(pairs):
        file = tmp_path / "pairs.jsonl"
        file.write_text("".join(json.dumps({"chosen": a, "rejected": b}) + "\n" for a, b in pairs), encoding="utf-8")
        return str(file)

    return write


def test_a_dialogue_is_split_at_its_last_reply(write):
    before = ("hello", "hello, who are you?", "me")
    (row,) = dialogues(write([(dialogue(*before, "good"), dialogue(*before, "bad"))]))
    assert row["prompt"] == "\n\nHuman: hello\n\nAssistant: hello, who are you?\n\nHuman: me\n\nAssistant:"
    assert (row["chosen"], row["rejected"]) == (" good", " bad")


def test_pairs_that_part_before_the_last_reply_are_left_out(write):
    same, other = (dialogue("a", "b"), dialogue("a", "c")), (dialogue("a", "b", "c", "d"), dialogue("a", "x", "c", "d"))
    assert len(dialogues(write([same, other]))) == 1


def test_a_long_dialogue_keeps_its_end_and_a_long_reply_its_beginning(write):
    (row,) = dialogues(write([(dialogue("a" * 50 + "z", "y" + "b" * 50), dialogue("a" * 50 + "z", "c"))]), longest=20)
    assert row["prompt"] == "aaaaaaaz\n\nAssistant:"
    assert row["chosen"] == " y" + "b" * 18


@pytest.mark.parametrize("recipe", [chat_preferences, hh])
def test_held_out_pairs_are_never_trained_on(recipe, write, tmp_path):
    for stage in recipe(data=write([(dialogue(str(i), "b"), dialogue(str(i), "c")) for i in range(HELD_OUT + 30)])).stages:
        train, held_out = (open_source(data, tmp_path) for data in (stage.data, stage.evaluation.data))
        assert (len(train), len(held_out)) == (30, HELD_OUT)
        assert not {row["prompt"] for row in train} & {row["prompt"] for row in held_out}


def test_a_missing_file_is_named_by_its_path(tmp_path):
    run = chat_preferences(data=str(tmp_path / "nowhere.jsonl.gz"))
    with pytest.raises(DataError, match=r"nowhere\.jsonl\.gz: there is no such file"):
        open_source(run.stages[0].data, tmp_path)


@pytest.mark.parametrize(("recipe", "stage"), [("chat_preferences", "reward"), ("hh", "dpo")])
def test_the_whole_recipe_runs_and_an_obvious_preference_is_learned(recipe, stage, write, tmp_path):
    pairs = [(dialogue(f"ask {i}", "gladly"), dialogue(f"ask {i}", "never")) for i in range(HELD_OUT + 60)]
    words = f"--data {write(pairs)} --threads 1 --sft.model.vocabulary 300 --sft.model.layers 1 --sft.steps 2"
    words += f" --sft.evaluation.data.size 10 --{stage}.steps 20 --{stage}.batch 8 --{stage}.evaluation.every 0"
    summary = launch(build(recipe, f"{words} --{stage}.evaluation.data.size 10".split()), tmp_path / "run").summary
    assert summary["stages"][stage]["first"]["evaluation/pair/accuracy"] == 0.5 or stage == "reward"
    assert summary["stages"][stage]["last"]["evaluation/pair/accuracy"] == 1.0

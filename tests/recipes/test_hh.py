"""The preference recipe with DPO: held-out pairs stay apart, and on made-up dialogues the whole of it."""

import json

from penstock.cli.recipe import build
from penstock.data.sources import open_source
from penstock.recipes.chat_preferences import HELD_OUT
from penstock.recipes.hh import hh
from penstock.runtime import launch


def write(folder, count):
    file = folder / "pairs.jsonl"
    ask = "\n\nHuman: ask {}\n\nAssistant: "
    pairs = [{"chosen": ask.format(i) + "gladly", "rejected": ask.format(i) + "never"} for i in range(count)]
    file.write_text("".join(json.dumps(pair) + "\n" for pair in pairs), encoding="utf-8")
    return str(file)


def test_held_out_pairs_are_never_trained_on(tmp_path):
    for stage in hh(data=write(tmp_path, HELD_OUT + 30)).stages:
        train, held_out = (open_source(data, tmp_path) for data in (stage.data, stage.evaluation.data))
        assert (len(train), len(held_out)) == (30, HELD_OUT)
        assert not {row["prompt"] for row in train.rows} & {row["prompt"] for row in held_out.rows}


def test_the_whole_recipe_runs_and_an_obvious_preference_is_learned(tmp_path):
    words = f"--data {write(tmp_path, HELD_OUT + 60)} --threads 1 --sft.model.vocabulary 300 --sft.steps 2"
    more = "--sft.evaluation.data.size 10 --dpo.steps 20 --dpo.batch 8 --dpo.evaluation.data.size 10 --dpo.evaluation.every 0"
    summary = launch(build("hh", f"{words} {more}".split()), tmp_path / "run").summary
    assert summary["stages"]["dpo"]["first"]["evaluation/pair/accuracy"] == 0.5
    assert summary["stages"]["dpo"]["last"]["evaluation/pair/accuracy"] == 1.0

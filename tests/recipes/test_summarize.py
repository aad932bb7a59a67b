"""The summaries recipe: how comparisons are split and cut, and on made-up comparisons the whole of it."""

import json
from pathlib import Path

import pytest

from penstock.cli.recipe import build
from penstock.config.run import DataSpec
from penstock.core.errors import DataError
from penstock.data.sources import open_source
from penstock.recipes.summarize import BETAS, comparisons, judged, summarize
from penstock.runtime import launch
from tiers import LANGUAGE


@pytest.fixture
def file(tmp_path):
    """Made-up posts, two comparisons each; the preferred summary is the shorter one."""
    path = tmp_path / "pairs.jsonl"
    rows = [
        {"prompt": f"POST: post {post} says yes and no.\n\nTL;DR:", "chosen": " yes", "rejected": f" {more} and {more}"}
        for post in range(200)
        for more in ("no", "well")
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def test_all_comparisons_of_a_post_are_in_one_part_and_none_is_left_out(file):
    train, held_out = comparisons(file, False), comparisons(file, True)
    assert len(train) + len(held_out) == 400
    assert 0 < len(held_out) < 50
    assert not {row["prompt"] for row in train} & {row["prompt"] for row in held_out}


def test_a_post_stays_in_its_part_when_rows_are_added(file, tmp_path):
    before = {row["prompt"] for row in comparisons(file, True)}
    added = {"prompt": "first", "chosen": "a", "rejected": "b"}
    more = json.dumps(added) + "\n" + Path(file).read_text(encoding="utf-8")
    (tmp_path / "more.jsonl").write_text(more, encoding="utf-8")
    assert before <= {row["prompt"] for row in comparisons(str(tmp_path / "more.jsonl"), True)}


def test_a_long_post_keeps_its_end_and_a_long_summary_its_beginning(tmp_path):
    row = {"prompt": "x" * 100 + "TL;DR:", "chosen": "abcdefgh", "rejected": "ij"}
    (tmp_path / "long.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    (row,) = comparisons(str(tmp_path / "long.jsonl"), False, longest=16)
    assert row == {"prompt": "xxxxxxxxxxTL;DR:", "chosen": "abcd", "rejected": "ij"}


def test_both_summaries_of_a_comparison_are_judged(file):
    pairs, rows = comparisons(file, False), judged(file, False)
    assert [(row["summary"], row["reward"]) for row in rows[:2]] == [(" yes", 1.0), (" no and no", 0.0)]
    assert len(rows) == 2 * len(pairs)


def test_a_row_that_is_no_comparison_is_named(tmp_path):
    (tmp_path / "bad.jsonl").write_text('{"prompt": "p", "chosen": "c"}\n', encoding="utf-8")
    with pytest.raises(DataError, match=r'bad\.jsonl row 0: a comparison has the text "rejected", got None'):
        comparisons(str(tmp_path / "bad.jsonl"), False)


def test_an_empty_part_is_refused(tmp_path):
    (tmp_path / "one.jsonl").write_text('{"prompt": "p", "chosen": "c", "rejected": "r"}\n', encoding="utf-8")
    options = {"source": str(tmp_path / "one.jsonl"), "held_out": True}
    empty = DataSpec(source="penstock.recipes.summarize:comparisons", options=options)
    with pytest.raises(DataError, match="1 rows have no held-out post"):
        open_source(empty, tmp_path)


def test_a_model_of_ones_own_is_the_start_and_learns_more_gently():
    own, small = summarize(model="some/model").stages[0], summarize().stages[0]
    assert (own.model.path, small.model.path, small.model.preset) == ("some/model", "", "10m")
    assert own.learner.learning_rate < small.learner.learning_rate


SMALL = "--threads 1 --sft.model.preset 1m --sft.model.layers 1 --sft.model.vocabulary 300 --sft.model.context 128"


def starting(file, algorithm):
    """A step of every stage of a small model."""
    words = f"--data {file} --algorithm {algorithm} {SMALL}"
    if algorithm != "sft":
        words += f" --{algorithm}.evaluation.max_new_tokens 8"
    if algorithm == "ppo":
        words += " --ppo.sampling.max_new_tokens 8"
    for stage in summarize(algorithm=algorithm).stages:
        words += f" --{stage.name}.steps 1 --{stage.name}.batch 4 --{stage.name}.evaluation.data.size 4"
    return build("summarize", words.split())


@pytest.mark.parametrize("algorithm", ["sft", "ppo", "ilql"])
def test_a_run_of_each_algorithm_starts(algorithm, file, tmp_path):
    summary = launch(starting(file, algorithm), tmp_path / "run").summary
    assert list(summary["stages"]) == ["sft"] if algorithm == "sft" else ["sft", "reward", algorithm]
    last = summary["stages"][algorithm]["last"]
    assert summary["headline"].startswith("held-out perplexity " if algorithm == "sft" else "score of held-out summaries ")
    shifted = {f"evaluation/beta={beta:g}/reward" for beta in BETAS} if algorithm == "ilql" else set()
    assert {name for name in last if name.startswith("evaluation/beta") and name.endswith("/reward")} == shifted


@pytest.mark.learning(*LANGUAGE)
def test_ppo_learns_the_summary_that_is_preferred(file, tmp_path):
    words = f"--data {file} {SMALL} --sft.data.completion {{{{rejected}}}} --sft.steps 60 --reward.steps 40 --steps 20"
    words += " --ppo.batch 32 --ppo.sampling.max_new_tokens 16 --ppo.learner.learning_rate 3e-4"
    run = build("summarize", f"{words} --ppo.evaluation.max_new_tokens 16".split())
    ppo = launch(run, tmp_path / "run").summary["stages"]["ppo"]
    assert ppo["last"]["evaluation/reward"] > ppo["first"]["evaluation/reward"] + 1

"""The film-review recipe: its splits, its stages, and on made-up reviews the whole of it."""

import random
import typing

import pytest

from penstock.algos import DPO, ILQL, PPO, RFT, SFT, BinaryRewardModel, OnlineDPO
from penstock.cli.recipe import build
from penstock.core.errors import DataError
from penstock.data.sources import open_source
from penstock.recipes.sentiment import BETAS, PARTS, Algorithm, contests, reviews, sentiment
from penstock.runtime import launch
from tiers import LANGUAGE

PRAISE = ("fine", "warm", "moving", "clever")
BLAME = ("dull", "cold", "silly", "stale")


@pytest.fixture
def folder(tmp_path):
    """Made-up reviews whose one adjective tells their label."""
    draw = random.Random(0)
    for name, adjectives in (("pos", PRAISE), ("neg", BLAME)):
        lines = []
        for number in range(100):
            who, what = draw.choice(("cast", "plot", "ending")), draw.choice(adjectives)
            lines.append(f"film {number} has a {who} that is {what} and we all said so .")
        (tmp_path / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(tmp_path)


def test_parts_share_no_review_and_leave_none_out(folder):
    parts = {part: {row["text"] for row in reviews(folder, part)} for part in PARTS}
    assert {name: len(texts) for name, texts in parts.items()} == {"held-out": 20, "half-a": 90, "half-b": 90}
    assert len(set.union(*parts.values())) == 200
    assert {row["text"] for row in reviews(folder, "half-a+half-b")} == parts["half-a"] | parts["half-b"]


def test_a_review_that_stands_twice_cannot_be_in_two_parts(folder, tmp_path):
    with open(tmp_path / "pos.txt", "a", encoding="utf-8") as out:
        out.write("film 0 again .\n" * 20)
    assert sum(row["text"] == "film 0 again ." for part in PARTS for row in reviews(folder, part)) == 1


def test_the_split_is_a_function_of_the_seed(folder):
    assert reviews(folder, "held-out", seed=1) == reviews(folder, "held-out", seed=1)
    assert reviews(folder, "held-out", seed=1) != reviews(folder, "held-out", seed=2)


def test_labels_are_those_of_the_files(folder):
    for row in reviews(folder, "half-a"):
        adjectives = PRAISE if row["label"] else BLAME
        assert sum(word in adjectives for word in row["text"].split()) == 1


def test_a_start_is_the_first_words_and_leaves_something_to_write(folder, tmp_path):
    (tmp_path / "neg.txt").write_text("dull\nso dull\n", encoding="utf-8")
    starts = {row["text"]: row["start"] for row in reviews(folder, "held-out+half-a+half-b", words=3)}
    assert (starts["dull"], starts["so dull"]) == ("", "so")
    assert all(start == " ".join(text.split()[:3]) for text, start in starts.items() if "film" in text)


def test_an_unknown_part_is_refused(folder):
    with pytest.raises(DataError, match=r'no part "half-c"; parts are held-out, half-a, half-b'):
        reviews(folder, "half-a+half-c")


def test_a_missing_folder_is_named_by_its_path(tmp_path):
    run = sentiment(str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"nowhere/neg\.txt: there is no such file"):
        open_source(run.stages[0].data, tmp_path)


def test_reward_and_gold_learn_from_disjoint_halves_and_nothing_is_judged_on_what_it_saw():
    stages = {stage.name: stage for stage in sentiment("reviews").stages}
    parts = {name: stage.data.options["part"] for name, stage in stages.items()}
    assert parts == {
        "sft": "half-a+half-b",
        "reward-1": "half-a",
        "reward-2": "half-a",
        "reward-3": "half-a",
        "gold": "half-b",
        "ppo": "half-a+half-b",
    }
    assert {stage.evaluation.data.options["part"] for stage in stages.values()} == {"held-out"}
    assert [type(stage.algorithm) for stage in stages.values()] == [SFT, *[BinaryRewardModel] * 4, PPO]
    judge, *_ = stages["ppo"].evaluation.rewards
    assert (judge.function, dict(judge.options), judge.weight) == ("model:@gold", {"sigmoid": True}, 1.0)


def test_pairs_are_a_praise_and_a_blame_of_the_same_part_that_begin_with_the_same_word(folder, tmp_path):
    (tmp_path / "pos.txt").write_text("a joy\na gem\nwhat fun\nso warm\n", encoding="utf-8")
    (tmp_path / "neg.txt").write_text("a bore\nso cold\nso stale\n", encoding="utf-8")
    pairs = contests(folder, "held-out+half-a+half-b")
    assert {(pair["start"], pair["better"]) for pair in pairs} < {("a", " joy"), ("a", " gem"), ("so", " warm")}
    assert [pair["start"] for pair in sorted(pairs, key=lambda pair: pair["start"])] == ["a", "so"]
    assert {pair["worse"] for pair in pairs if pair["start"] == "a"} == {" bore"}


def test_a_start_and_its_rest_are_the_review(folder):
    assert all(row["start"] + row["rest"] == row["text"] for row in reviews(folder, "half-a"))


@pytest.mark.parametrize(
    ("algorithm", "kind", "judges"),
    [("rft", RFT, 3), ("online-dpo", OnlineDPO, 3), ("dpo", DPO, 1), ("ilql", ILQL, 1)],
)
def test_every_algorithm_is_judged_as_ppo_is_and_knows_no_label_that_gold_knows(algorithm, kind, judges):
    *before, last = sentiment("reviews", algorithm=algorithm).stages
    ppo = sentiment("reviews").stages[-1]
    assert [stage.name for stage in before] == ["sft", *[f"reward-{n + 1}" for n in range(judges)], "gold"]
    assert (last.name, type(last.algorithm)) == (algorithm, kind)
    assert last.evaluation.rewards == ppo.evaluation.rewards
    assert last.evaluation.data == ppo.evaluation.data
    assert last.evaluation.temperature == ppo.evaluation.temperature
    if algorithm in ("dpo", "ilql"):
        assert last.data.options["part"] == "half-a"


def test_imitation_alone_is_one_stage():
    assert [stage.name for stage in sentiment("reviews", algorithm="sft").stages] == ["sft"]


def starting(folder, algorithm, architecture):
    """A step of every stage."""
    stages = sentiment("reviews", algorithm=algorithm).stages
    words = f"--algorithm {algorithm} --architecture {architecture} --data {folder} --threads 1 --sft.model.vocabulary 300"
    words += " --sft.model.layers 1"
    for stage in stages:
        size = 20 if stage.name == "reward-1" else 4
        words += f" --{stage.name}.steps 1 --{stage.name}.batch 8 --{stage.name}.evaluation.data.size {size}"
    if algorithm in ("ppo", "rft", "online-dpo"):
        words += f" --{algorithm}.sampling.max_new_tokens 8"
    if algorithm != "sft":
        words += f" --{algorithm}.evaluation.max_new_tokens 8"
    return build("sentiment", words.split())


ALGORITHMS = typing.get_args(Algorithm)


@pytest.mark.parametrize(
    ("architecture", "algorithm"),
    [*(("decoder", name) for name in ALGORITHMS), *(("encoder-decoder", name) for name in ALGORITHMS if name != "sft")],
)
def test_a_run_of_each_algorithm_starts(architecture, algorithm, folder, tmp_path):
    run = starting(folder, algorithm, architecture)
    assert architecture == "decoder" or {stage.data.prompt for stage in run.stages} == {"{{ start }}"}
    summary = launch(run, tmp_path / "run").summary
    assert list(summary["stages"]) == [stage.name for stage in sentiment("reviews", algorithm=algorithm).stages]
    if algorithm == "sft":
        assert summary["headline"].startswith("held-out perplexity ")
        return
    last = summary["stages"][algorithm]["last"]
    assert 0 < summary["stages"]["reward-1"]["last"]["evaluation/label/accuracy"] < 1
    assert summary["headline"].startswith("gold probability of praise 0.")
    assert 0 < last["evaluation/gold"] < 1
    assert 0 < last["evaluation/distinct_2"] <= 1
    shifted = {f"evaluation/beta={beta:g}/gold" for beta in BETAS} if algorithm == "ilql" else set()
    assert {name for name in last if name.startswith("evaluation/beta") and name.endswith("/gold")} == shifted


@pytest.mark.learning(*LANGUAGE)
def test_ppo_learns_to_praise_made_up_films(folder, tmp_path):
    words = f"--seed 0 --data {folder} --threads 1 --sft.model.vocabulary 300 --ppo.batch 32 --ppo.evaluation.data.size 20"
    words += " --ppo.sampling.max_new_tokens 16 --ppo.steps 20"
    for stage in ("sft", "reward-1", "reward-2", "reward-3", "gold"):
        words += f" --{stage}.steps 150"
    stages = launch(build("sentiment", words.split()), tmp_path / "run").summary["stages"]
    assert stages["reward-1"]["last"]["evaluation/label/accuracy"] > 0.95
    assert stages["ppo"]["first"]["evaluation/gold"] < 0.75
    assert stages["ppo"]["last"]["evaluation/gold"] > 0.9

"""The film-review recipe: its splits, its stages, and on made-up reviews the whole of it."""

import random

import pytest

from penstock.algos import PPO, SFT, LabelScore
from penstock.cli.recipe import build
from penstock.cli.session import Session
from penstock.core.errors import DataError
from penstock.data.sources import open_source
from penstock.recipes.sentiment import PARTS, reviews, sentiment

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
    run = sentiment(folder=str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"nowhere/neg\.txt: there is no such file"):
        open_source(run.stages[0].data, tmp_path)


def test_reward_and_gold_learn_from_disjoint_halves_and_nothing_is_judged_on_what_it_saw():
    stages = {stage.name: stage for stage in sentiment().stages}
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
    assert [type(stage.algorithm) for stage in stages.values()] == [SFT, *[LabelScore] * 4, PPO]
    judge, *_ = stages["ppo"].evaluation.rewards
    assert (judge.function, dict(judge.options), judge.weight) == ("model:@gold", {"sigmoid": True}, 1.0)


def shortened(folder, sft, classifier, ppo):
    words = f"--seed 0 --folder {folder} --threads 1 --sft.steps {sft} --reward-1.steps {classifier} "
    words += f"--reward-2.steps {classifier} --reward-3.steps {classifier} --gold.steps {classifier} "
    small = "--sft.model.vocabulary 300 --ppo.batch 32 --ppo.evaluation.data.size 20 --ppo.sampling.max_new_tokens 16 "
    return build("sentiment", f"{words}{small}--ppo.steps {ppo}".split())


def test_the_whole_recipe_runs(folder, tmp_path):
    summary = Session(shortened(folder, 2, 2, 1), tmp_path / "run").execute()
    assert set(summary["stages"]) == {"sft", "reward-1", "reward-2", "reward-3", "gold", "ppo"}
    assert 0 < summary["stages"]["reward-1"]["last"]["evaluation/label/accuracy"] < 1
    assert summary["headline"].startswith("gold probability of praise 0.")


@pytest.mark.slow
def test_ppo_learns_to_praise_made_up_films(folder, tmp_path):
    summary = Session(shortened(folder, 150, 150, 20), tmp_path / "run").execute()
    stages = summary["stages"]
    assert stages["reward-1"]["last"]["evaluation/label/accuracy"] > 0.95
    assert stages["ppo"]["first"]["evaluation/gold"] < 0.75
    assert stages["ppo"]["last"]["evaluation/gold"] > 0.9

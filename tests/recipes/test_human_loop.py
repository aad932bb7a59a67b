"""The loop around people: its made-up truth by hand, its stages, and in small the whole of it."""

import json

import numpy as np
import pytest

from tiers import LANGUAGE

pytest.importorskip("sqlalchemy", reason="needs the extra feedback")

from penstock.cli.recipe import build
from penstock.config.ask import Ask
from penstock.config.run import Online
from penstock.core.errors import SpecError
from penstock.core.events import read_events
from penstock.recipes.human_loop import PLACES, human_loop, pleasant, postcards, true_pairs
from penstock.runtime import launch


def test_a_postcard_is_as_pleasant_as_its_words_and_its_places_own_subject_counts_twice():
    card = "the food was superb, the hotel was plain, the town was dreadful."
    assert pleasant("rome", card) == pytest.approx((2 * 1.0 + 0.4 + 0.0) / 4)  # in Rome food matters
    assert pleasant("oslo", card) == pytest.approx((1.0 + 2 * 0.4 + 0.0) / 4)  # in Oslo the hotel does


@pytest.mark.parametrize(
    "text",
    [
        "",
        "the food was superb.",
        "the food was superb, the food was superb, the food was superb.",
        "the food was superb, the hotel was superb, the town was superb",
        "the food was nice, the hotel was superb, the town was superb.",
        "the food was superb, the hotel was superb, the town was superb, the beach was superb.",
    ],
)
def test_what_is_no_postcard_is_worth_nothing(text):
    assert pleasant("rome", text) == 0.0


def test_the_traveller_writes_postcards_that_leave_much_to_wish():
    rows = postcards(500, 0)
    worth = [pleasant(row["prompt"].split()[-1].strip(":"), row["completion"]) for row in rows]
    assert 0.25 < np.mean(worth) < 0.45
    assert min(worth) > 0 or np.mean(np.array(worth) == 0) < 0.01


def test_pairs_of_known_truth_are_ordered_by_it():
    for row in true_pairs(50, 0):
        place = row["prompt"].split()[-1].strip(":")
        assert place in PLACES
        assert pleasant(place, row["chosen"]) > pleasant(place, row["rejected"])


def test_each_round_starts_from_what_the_one_before_let_pass():
    stages = {stage.name: stage for stage in human_loop(rounds=2).stages}
    assert stages["ppo-2"].model.path == "@ask-2"
    assert stages["ask-3"].model.path == "@ppo-2"
    assert stages["ask-3"].against.path == "@ask-2"
    assert stages["ask-3"].scorers == "@reward-2a+@reward-2b+@reward-2c"
    assert stages["ask-1"].mix == {"random": 1.0}


def test_each_prompt_is_a_duel_with_one_vote():
    asks = [stage for stage in human_loop(questions=50).stages if isinstance(stage, Ask)]
    assert [(stage.duels, stage.duel_overlap) for stage in asks] == [(0, 1), (100, 1), (100, 1)]


def test_a_price_on_kl_means_the_same_however_far_a_rounds_reward_models_spread_their_scores():
    climbs = [stage for stage in human_loop(rounds=2).stages if isinstance(stage, Online)]
    assert [stage.scaling.by for stage in climbs] == ["reference", "reference"]


def test_real_people_are_simulated_by_nobody_and_their_votes_are_trained_on():
    run = human_loop(people="real", store="votes.db")
    asks = [stage for stage in run.stages if isinstance(stage, Ask)]
    assert not any(stage.simulated for stage in asks)
    rewards = [stage for stage in run.stages if stage.name.startswith("reward-")]
    assert {stage.data.source for stage in rewards} == {"feedback:votes.db"}
    assert {tuple(stage.data.options["natures"]) for stage in rewards} == {("human", "imported")}


def test_reviews_have_a_classifier_as_truth():
    run = human_loop(task="reviews", data="reviews")
    names = [stage.name for stage in run.stages]
    assert names[:3] == ["sft", "gold", "ask-1"]
    assert run.stages[2].truth.function == "model:@gold"


def test_ones_own_policy_needs_prompts_and_real_people():
    with pytest.raises(SpecError, match="add --people real"):
        human_loop(task="my/policy", data="prompts.jsonl")
    with pytest.raises(SpecError, match="needs --data"):
        human_loop(task="reviews")
    with pytest.raises(SpecError, match="needs --data"):
        human_loop(task="my/policy", people="real")
    run = human_loop(task="my/policy", data="prompts.jsonl", people="real")
    assert run.stages[0].model.path == "my/policy"


ONE_ROUND = ["--rounds", "1", "--threads", "1"]
SMALL = [*ONE_ROUND, *["--questions", "12", "--sft.steps", "30", "--ppo-1.steps", "2", "--ppo-1.batch", "8"]]
SMALL += [word for name in ("a", "b", "c", "-equal") for word in (f"--reward-1{name}.steps", "3")]


def logged(folder, what):
    """The events of a run that say this."""
    return [event for event in read_events(folder / "events.jsonl") if event.get("what") == what]


def verdict_of(folder):
    return json.loads((folder / "asked" / "ask-2.json").read_text())


def test_the_whole_loop_runs_in_small_and_says_what_came_of_it(tmp_path):
    summary = launch(build("human_loop", SMALL), tmp_path / "run").summary
    assert summary["headline"].startswith("simulated votes: truth 0.")
    assert "promoted" in summary["headline"]
    assert len(logged(tmp_path / "run", "report card")) == 1
    assert verdict_of(tmp_path / "run")["promoted"]["stage"] in ("sft", "ppo-1")


@pytest.mark.learning(*LANGUAGE)
def test_the_adversary_is_found_and_weighted_votes_teach_more_than_equal_ones(tmp_path):
    stages = launch(build("human_loop", ONE_ROUND), tmp_path / "run").summary["stages"]
    said = {event["name"]: event for event in logged(tmp_path / "run", "annotator")}
    assert said["mallory"]["weight"] == "0.00"
    assert said["mallory"]["concerns"] == "against the others"
    assert all(said[name]["concerns"] == "none" for name in ("ann", "ben", "cleo", "dan", "eve"))
    right = {name: stages[name]["last"]["evaluation/pair/accuracy"] for name in ("reward-1a", "reward-1-equal")}
    assert right["reward-1a"] > right["reward-1-equal"] > 0.5
    assert stages["ask-2"]["first"]["evaluation/truth"] > stages["ask-1"]["first"]["evaluation/truth"] + 0.1


@pytest.mark.learning(*LANGUAGE)
def test_a_policy_trained_against_the_votes_is_not_promoted(tmp_path):
    spoilt = [*ONE_ROUND, "--ppo-1.rewards.judges.weight", "-1"]
    summary = launch(build("human_loop", spoilt), tmp_path / "run").summary
    verdict = verdict_of(tmp_path / "run")
    assert any("not surely better than the weights before" in reason for reason in verdict["card"]["failures"])
    assert verdict["card"]["wins"]["high"] < 0.5
    assert verdict["promoted"]["stage"] == "sft"
    measured = summary["stages"]["ask-2"]
    assert measured["last"]["evaluation/truth"] > measured["first"]["evaluation/truth"]

"""Best-of-n in an evaluation: who picks, who judges, and what is undefined."""

import pytest
from loop_examples import prompt_of, sample_of

from penstock.config.run import DataSpec, EvaluationSpec
from penstock.core.errors import RewardError, SpecError
from penstock.core.types import Group
from penstock.loops.evaluate import best_of


def group(*gold_and_proxy):
    samples = [
        sample_of([30], gold, place=place, extras={"rewards": {"gold": gold, "proxy": proxy}})
        for place, (gold, proxy) in enumerate(gold_and_proxy)
    ]
    return Group(prompt_of(0), tuple(samples))


def test_the_reward_itself_picks_unless_another_is_named():
    groups = [group((0.0, 3.0), (1.0, 2.0), (0.0, 1.0))]
    assert best_of(groups, [1, 2, 3]) == pytest.approx(
        {"evaluation/best_of_1": 1 / 3, "evaluation/best_of_2": 2 / 3, "evaluation/best_of_3": 1.0}
    )
    assert best_of(groups, [2, 3], "proxy") == pytest.approx({"evaluation/best_of_2": 1 / 3, "evaluation/best_of_3": 0.0})


def test_it_is_a_mean_over_prompts_that_have_enough_scored_samples():
    few = group((1.0, 0.0), (0.0, 0.0))
    groups = [group((0.0, 0.0), (1.0, 1.0), (1.0, 1.0)), few]
    assert best_of(groups, [3]) == {"evaluation/best_of_3": 1.0}
    assert best_of(groups, [2])["evaluation/best_of_2"] == 1.0


def test_more_than_any_prompt_has_is_undefined():
    with pytest.raises(RewardError, match="best of 3 is undefined: no prompt has more than 1"):
        best_of([group((1.0, 1.0))], [3])


def test_a_reward_that_is_not_there_cannot_pick():
    with pytest.raises(RewardError, match=r'no reward called "prox".*there are: gold, proxy'):
        best_of([group((1.0, 1.0))], [1], "prox")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"best_of": (8,), "samples": 4, "temperature": 1.0}, "set samples to the largest"),
        ({"best_of": (2,), "samples": 4}, "positive temperature"),
        ({"rank_by": "proxy"}, "picks nothing"),
    ],
)
def test_an_impossible_choice_is_refused(options, message):
    with pytest.raises(SpecError, match=message):
        EvaluationSpec(data=DataSpec(source="x.jsonl"), **options)

"""A reasoning-gym set as episodes: a task of the row's seed or of its source, scored by the set's own scorer."""

import pytest
from env_examples import KEY, begun, named, played, rewards_of_turns, seeded

from penstock.core.errors import SpecError
from penstock.core.types import Prompt
from penstock.data.gym import gym_entry
from penstock.envs.making import env_class
from penstock.envs.spec import EnvironmentSpec

SET = "reasoning_gym:basic_arithmetic"


def test_the_question_is_of_the_rows_seed_and_the_score_is_the_sets_own(threads):
    entry = gym_entry("basic_arithmetic", 7, {"max_terms": 2})
    assert begun(named(SET, threads, seeded(7), options={"max_terms": 2})) == entry["question"]
    sample, heard = played(named(SET, threads, seeded(7), options={"max_terms": 2}), [entry["answer"]])
    assert heard == [None]
    assert sample.extras["turns"][0][2] == 1.0
    sample, _ = played(named(SET, threads, seeded(7), options={"max_terms": 2}), ["none"])
    assert sample.extras["turns"][0][2] < 1.0
    assert sample.extras["episode"]["right"] == 0.0


def test_a_wrong_answer_may_be_tried_again(threads):
    entry = gym_entry("basic_arithmetic", 7, {})
    sample, heard = played(named(SET, threads, seeded(7), options={"tries": 3, "wrong": "no "}), ["x", entry["answer"]])
    assert heard == ["no ", None]
    assert rewards_of_turns(sample) == [None, 1.0]


def test_the_last_turn_that_the_limits_allow_is_scored(threads):
    sample, heard = played(named(SET, threads, seeded(7), options={"tries": 3, "wrong": "no "}, turns=2), ["x", "y"])
    assert heard == ["no ", None]
    assert sample.extras["turns"][-1][2] is not None


def test_a_row_of_the_gym_source_is_asked_as_it_is(threads):
    entry = gym_entry("basic_arithmetic", 9, {})
    row = Prompt(KEY.prompt, "as rendered", columns={"task": "basic_arithmetic", "entry": entry})
    assert begun(named(SET, threads, row)) == "as rendered"
    sample, _ = played(named(SET, threads, row), [entry["answer"]])
    assert sample.extras["turns"][0][2] == 1.0


def test_an_unknown_set_is_refused_before_the_run():
    with pytest.raises(SpecError, match="there is no task"):
        env_class(EnvironmentSpec(function="reasoning_gym:basic_arithmetics"), None)

"""Algorithms and their parts chosen on the command line: by name, with the fields that a paper sets."""

import pytest

from penstock.algos import DPPO, GMPO, GPG, GRPO, OPO, PPO, ClippedRatio, ImportanceWeight
from penstock.cli.recipe import build
from penstock.config.run import RewardScaling
from penstock.core.errors import SpecError

GEOMETRIC = ("--grpo.algorithm.objective", "GMPO", "--grpo.algorithm.aggregate", "sequence")


def algorithm_of(*words):
    return build("quickstart", words).stages[1].algorithm


@pytest.mark.parametrize(
    ("name", "expected"), [("OPO", OPO()), ("GPG", GPG()), ('{"kind": "GRPO", "scale": "none"}', GRPO(scale="none"))]
)
def test_an_algorithm_is_chosen_by_its_name_or_its_fields(name, expected):
    assert algorithm_of("--grpo.algorithm", name) == expected


def test_an_objective_and_its_interval_are_chosen_apart():
    found = algorithm_of(*GEOMETRIC, "--grpo.algorithm.clip", "[0.33, 0.49]")
    assert (found.objective, found.clip, found.aggregate) == (GMPO(), (0.33, 0.49), "sequence")


def test_flags_that_fit_only_together_may_come_in_any_order():
    assert algorithm_of("--grpo.algorithm.objective", "DPPO", "--grpo.algorithm.clip", "null").objective == DPPO()


def test_an_algorithm_and_the_critic_it_needs_are_set_at_once():
    stage = build("quickstart", ["--grpo.algorithm", "PPO", "--grpo.learner.critic", "shared"]).stages[1]
    assert (stage.algorithm, stage.learner.critic) == (PPO(), "shared")


def test_flags_that_fit_neither_alone_nor_together_are_refused_by_the_first():
    with pytest.raises(SpecError, match="PPO needs a critic"):
        build("quickstart", ["--grpo.algorithm", "PPO", "--grpo.max_lag", "-1"])


def test_a_field_of_an_objective_is_a_flag():
    assert algorithm_of("--grpo.algorithm.objective.dual", "3").objective == ClippedRatio(dual=3.0)


def test_a_correction_is_a_list_of_weights():
    found = algorithm_of("--grpo.algorithm.importance_weights", '[{"high": 5}]')
    assert found.importance_weights == (ImportanceWeight(high=5.0),)


def test_dynamic_sampling_and_scaling_are_flags_of_the_stage():
    stage = build("quickstart", ["--grpo.dynamic_sampling", "4", "--grpo.scaling.by", "running"]).stages[1]
    assert (stage.dynamic_sampling, stage.scaling) == (4, RewardScaling(by="running"))


def test_an_unknown_objective_is_refused_by_its_name():
    with pytest.raises(SpecError, match="GMPPO"):
        algorithm_of("--grpo.algorithm.objective", "GMPPO")


def test_an_unknown_algorithm_is_refused_by_its_name():
    with pytest.raises(SpecError, match="GRRPO"):
        algorithm_of("--grpo.algorithm", "GRRPO")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--grpo.algorithm", "OPOO"], 'did you mean "OPO"'),
        (["--grpo.learner.lora.rank", "4"], "give lora itself first"),
    ],
)
def test_a_mistyped_spec_is_answered_with_the_way_out(words: list[str], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        build("quickstart", words)

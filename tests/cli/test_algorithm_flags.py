"""Algorithms and their parts chosen on the command line: by name, with the fields that a paper sets."""

from operator import attrgetter

import pytest

from penstock.algos import DPPO, GMPO, GPG, GRPO, OPO, PPO, ClippedRatio, ImportanceWeight
from penstock.cli.recipe import build
from penstock.config.run import RewardScaling
from penstock.core.errors import SpecError

GEOMETRIC = "--grpo.algorithm.objective GMPO --grpo.algorithm.aggregate sequence --grpo.algorithm.clip [0.33,0.49]"
CHOSEN = {
    "an algorithm by its name": ("--grpo.algorithm OPO", {"algorithm": OPO()}),
    "another algorithm by its name": ("--grpo.algorithm GPG", {"algorithm": GPG()}),
    "an algorithm by its fields": (
        '--grpo.algorithm {"kind":"GRPO","scale":"none"}',
        {"algorithm": GRPO(scale="none")},
    ),
    "an objective and its interval apart": (
        GEOMETRIC,
        {"algorithm.objective": GMPO(), "algorithm.clip": (0.33, 0.49), "algorithm.aggregate": "sequence"},
    ),
    "flags that fit only together, in any order": (
        "--grpo.algorithm.objective DPPO --grpo.algorithm.clip null",
        {"algorithm.objective": DPPO()},
    ),
    "an algorithm and the critic that it needs at once": (
        "--grpo.algorithm PPO --grpo.learner.critic shared",
        {"algorithm": PPO(), "learner.critic": "shared"},
    ),
    "a field of an objective": ("--grpo.algorithm.objective.dual 3", {"algorithm.objective": ClippedRatio(dual=3.0)}),
    "a correction as a list of weights": (
        '--grpo.algorithm.importance_weights [{"high":5}]',
        {"algorithm.importance_weights": (ImportanceWeight(high=5.0),)},
    ),
    "dynamic sampling and scaling of the stage": (
        "--grpo.dynamic_sampling 4 --grpo.scaling.by running",
        {"dynamic_sampling": 4, "scaling": RewardScaling(by="running")},
    ),
}


@pytest.mark.parametrize("case", CHOSEN)
def test_flags_choose(case):
    words, expected = CHOSEN[case]
    stage = build("quickstart", words.split()).stages[1]
    assert {name: attrgetter(name)(stage) for name in expected} == expected


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--grpo.algorithm PPO --grpo.max_lag -1", "PPO needs a critic"),  # they fit neither alone nor together
        ("--grpo.algorithm.objective GMPPO", "GMPPO"),
        ("--grpo.algorithm GRRPO", "GRRPO"),
        ("--grpo.algorithm OPOO", 'did you mean "OPO"'),
        ("--grpo.learner.lora.rank 4", "give lora itself first"),
    ],
)
def test_a_mistyped_spec_is_answered_with_the_way_out(words, said):
    with pytest.raises(SpecError, match=said):
        build("quickstart", words.split())

"""What explain warns of: settings that are known not to learn, and no others."""

from dataclasses import replace

import pytest

from penstock.algos.grpo import GRPO
from penstock.config.learner import LoRA
from penstock.config.run import DataSpec, LearnerSpec, ModelSpec, Online, RewardSpec
from penstock.models.presets import preset_shape
from penstock.plan.advice import advice

SMALL = replace(preset_shape("1m"), vocabulary=300)
STAGE = Online(
    name="grpo",
    model=ModelSpec(preset="1m"),
    data=DataSpec(source="gym:gcd", size=100),
    rewards=(RewardSpec(function="gym"),),
    algorithm=GRPO(),
)


def said(sized, **learner):
    return advice(replace(STAGE, learner=LearnerSpec(**learner)), sized)


def test_settings_that_learn_are_passed_over_in_silence():
    assert said(SMALL, learning_rate=1e-4, schedule="linear", warmup=10) == []
    assert said(None, learning_rate=1e-6) == []


@pytest.mark.parametrize(
    ("rate", "schedule", "warmup", "says"),
    [
        (3e-4, "linear", 10, "learning_rate=0.0003"),
        (1e-3, "linear", 10, "learning_rate=0.001"),
        (1e-4, "constant", 10, "schedule=constant"),
        (1e-4, "linear", 0, "warmup=0"),
    ],
    ids=["for own samples", "far too high", "that never falls", "without warm-up"],
)
def test_a_high_rate_is_warned_of(rate, schedule, warmup, says):
    (line,) = said(SMALL, learning_rate=rate, schedule=schedule, warmup=warmup)
    assert says in line


def test_a_large_model_s_rate_is_high_where_a_small_one_s_is_not():
    settings = {"learning_rate": 1e-4, "schedule": "linear", "warmup": 10}
    assert any("learning_rate=0.0001" in line for line in said(None, **settings))
    assert said(None, lora=LoRA(), **settings) == []

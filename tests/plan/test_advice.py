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


@pytest.mark.parametrize("rate", [3e-4, 1e-3])
def test_a_high_rate_for_own_samples_is_warned_of(rate):
    (line,) = said(SMALL, learning_rate=rate, schedule="linear", warmup=10)
    assert f"learning_rate={rate:g}" in line


def test_a_large_model_s_rate_is_high_where_a_small_one_s_is_not():
    settings = {"learning_rate": 1e-4, "schedule": "linear", "warmup": 10}
    assert any("learning_rate=0.0001" in line for line in said(None, **settings))
    assert said(None, lora=LoRA(), **settings) == []


def test_a_high_rate_that_never_falls_is_warned_of():
    (line,) = said(SMALL, learning_rate=1e-4, schedule="constant", warmup=10)
    assert "schedule=constant" in line


def test_a_high_rate_without_warm_up_is_warned_of():
    (line,) = said(SMALL, learning_rate=1e-4, schedule="linear")
    assert "warmup=0" in line

"""From reward models to policies: ensembles, online DPO, Safe RLHF and best-of-n, end to end on letters."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny_recipes
from processes import events
from tiny_recipes import DATA, LEARNER, LETTERS, offline, online, run_of, sft

from penstock.algos import PPO, BradleyTerry, OnlineDPO, ProcessReward, SafePPO
from penstock.config.run import DataSpec, EvaluationSpec, ModelSpec, Offline, RewardSpec
from penstock.core.errors import SpecError
from penstock.core.types import Sampling
from penstock.models.language_model import LanguageModel
from penstock.runtime import launch
from penstock.runtime.answers import answer, asked, opened

SFT_STAGE, AFTER_SFT = sft(steps=2), ModelSpec(path="@sft")
VOWELS, HARM = f"{tiny_recipes.__file__}:vowels", f"{__file__}:harm"
SHARED_CRITIC = replace(LEARNER, critic="shared")


def harm(sample: Any, columns: Any) -> float:
    return 1.0


def judge(name: str) -> Offline:
    return offline(name, BradleyTerry(), model=AFTER_SFT, steps=2)


def execute(folder: Path, *stages: Any) -> list[dict[str, Any]]:
    """The metrics of the last stage."""
    launch(run_of(*stages), folder / "run")
    return [e["values"] for e in events(folder / "run") if e["kind"] == "metrics" and e["stage"] == stages[-1].name]


def test_online_dpo_learns_from_an_ensemble_and_is_measured_by_its_best_samples(tmp_path: Path) -> None:
    both = RewardSpec(function="model:@a+@b", options={"combine": "minimum"}, name="judges")
    held_out = EvaluationSpec(
        data=replace(DATA, size=3),
        rewards=(RewardSpec(function=VOWELS, name="gold"), replace(both, weight=0.0)),
        samples=4,
        temperature=1.0,
        best_of=(1, 4),
        rank_by="judges",
    )
    stage = online("policy", OnlineDPO(), both, steps=2, evaluation=held_out)
    found = execute(tmp_path, SFT_STAGE, judge("a"), judge("b"), stage)
    assert found[0]["evaluation/best_of_1"] == pytest.approx(found[0]["evaluation/reward"])
    assert "evaluation/best_of_4" in found[-1]
    assert any("pair/accuracy" in values for values in found)


def test_an_ensembles_members_must_be_earlier_stages() -> None:
    with pytest.raises(SpecError, match='"@b" names no earlier stage'):
        run_of(SFT_STAGE, judge("a"), online("policy", OnlineDPO(), RewardSpec(function="model:@a+@b")))


def solutions() -> list[dict[str, Any]]:
    return [{"prompt": LETTERS[i], "steps": ["abc", "?!"], "labels": [1, None if i % 2 else 0]} for i in range(12)]


def test_a_process_reward_model_rewards_steps_and_ranks_samples(tmp_path: Path) -> None:
    data = DataSpec(source=f"{__file__}:solutions")
    steps = offline("steps", ProcessReward(), model=AFTER_SFT, data=data, steps=20, evaluation=EvaluationSpec(data=data))
    ranker = RewardSpec(function="process:@steps", name="ranker", options={"use": "minimum"})
    held_out = EvaluationSpec(data=replace(DATA, size=3), rewards=(ranker,), samples=2, temperature=1.0, best_of=(2,))
    rewards = RewardSpec(function="process:@steps")
    policy = online("policy", PPO(), rewards, steps=2, learner=SHARED_CRITIC, evaluation=held_out)
    found = execute(tmp_path, SFT_STAGE, steps, policy)
    judged = json.loads((tmp_path / "run" / "summary.json").read_text())["stages"]["steps"]
    assert judged["last"]["evaluation/step/accuracy"] == 1.0
    assert found[0]["evaluation/best_of_2"] >= found[0]["evaluation/reward"]
    assert all(values["reward/steps"] >= 0 for values in found if "reward/steps" in values)


def test_the_price_of_a_cost_rises_batch_by_batch(tmp_path: Path) -> None:
    rewards = RewardSpec(function=VOWELS, name="help"), RewardSpec(function=HARM, name="cost", weight=0.0)
    algorithm = SafePPO(multiplier=1.0, multiplier_rate=0.5)
    found = execute(tmp_path, SFT_STAGE, online("policy", algorithm, *rewards, learner=SHARED_CRITIC, samples=1, steps=3))
    prices = [values["cost/multiplier"] for values in found if "cost/multiplier" in values]
    assert prices[0] == 1.0
    assert prices[1] == pytest.approx(2.718281828**0.5)
    assert prices[2] > prices[1]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    """The model of a run."""
    folder = tmp_path_factory.mktemp("answers")
    execute(folder, SFT_STAGE)
    return opened(str(folder / "run" / "model"), "cpu")


def test_generate_keeps_the_best_sample(model: LanguageModel) -> None:
    sampling = Sampling(max_new_tokens=6, temperature=1.0)
    (samples,) = answer(model, asked(["a"], False), sampling, 8)
    (kept,) = answer(model, asked(["a"], False), sampling, 8, VOWELS)
    best = max(samples, key=lambda text: sum(letter in "aeiou" for letter in text))
    assert kept == [best]


def test_generate_knows_no_stages(model: LanguageModel) -> None:
    with pytest.raises(SpecError, match="there is no run here"):
        answer(model, asked(["a"], False), Sampling(max_new_tokens=2), 2, "model:@reward")

"""From reward models to policies: ensembles, online DPO, Safe RLHF and best-of-n, end to end on letters."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.algos import PPO, SFT, BradleyTerry, OnlineDPO, ProcessReward, SafePPO
from penstock.config.run import DataSpec, EvaluationSpec, LearnerSpec, ModelSpec, Offline, Online, RewardSpec, Run
from penstock.core.errors import SpecError
from penstock.core.types import Sampling
from penstock.runtime import launch
from penstock.runtime.answers import answer, asked, opened

LETTERS = "abcdefghijklmnopqrstuvwxyz"
LEARNER = LearnerSpec(learning_rate=1e-3)


def rows() -> list[dict[str, Any]]:
    return [{"prompt": LETTERS[i], "answer": LETTERS[i : i + 3], "chosen": "aa", "rejected": "?!"} for i in range(12)]


def vowels(sample: Any, columns: Any) -> float:
    return sum(letter in "aeiou" for letter in sample.text) / 4


def harm(sample: Any, columns: Any) -> float:
    return 1.0


DATA = DataSpec(source=f"{__file__}:rows", completion="{{ answer }}")
VOWELS, HARM = f"{__file__}:vowels", f"{__file__}:harm"
SFT_STAGE = Offline(
    name="sft",
    model=ModelSpec(preset="1m", layers=1, vocabulary=300, context=64),
    data=DATA,
    algorithm=SFT(),
    batch=4,
    steps=2,
    learner=LEARNER,
)


def judge(name: str) -> Offline:
    return Offline(
        name=name, model=ModelSpec(path="@sft"), data=DATA, algorithm=BradleyTerry(), batch=4, steps=2, learner=LEARNER
    )


def online(algorithm: Any, *rewards: RewardSpec, **more: Any) -> Online:
    return Online(**{
        "name": "policy", "model": ModelSpec(path="@sft"), "data": DATA, "rewards": rewards, "algorithm": algorithm,
        "learner": LEARNER, "sampling": Sampling(max_new_tokens=4), "samples": 4, "batch": 4, "steps": 2,
    } | more)  # fmt: skip


def execute(folder: Path, *stages: Any) -> list[dict[str, Any]]:
    """The metrics of the last stage."""
    launch(Run(name="r", stages=stages, device="cpu", threads=1), folder / "run")
    events = [json.loads(line) for line in (folder / "run" / "events.jsonl").read_text().splitlines()]
    return [e["values"] for e in events if e["kind"] == "metrics" and e["stage"] == stages[-1].name]


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
    stage = online(OnlineDPO(), both, evaluation=held_out)
    found = execute(tmp_path, SFT_STAGE, judge("a"), judge("b"), stage)
    assert found[0]["evaluation/best_of_1"] == pytest.approx(found[0]["evaluation/reward"])
    assert "evaluation/best_of_4" in found[-1]
    assert any("pair/accuracy" in values for values in found)


def test_an_ensembles_members_must_be_earlier_stages() -> None:
    with pytest.raises(SpecError, match='"@b" names no earlier stage'):
        Run(name="r", stages=(SFT_STAGE, judge("a"), online(OnlineDPO(), RewardSpec(function="model:@a+@b"))))


def solutions() -> list[dict[str, Any]]:
    return [{"prompt": LETTERS[i], "steps": ["abc", "?!"], "labels": [1, None if i % 2 else 0]} for i in range(12)]


def test_a_process_reward_model_rewards_steps_and_ranks_samples(tmp_path: Path) -> None:
    data = DataSpec(source=f"{__file__}:solutions")
    steps = Offline(
        name="steps",
        model=ModelSpec(path="@sft"),
        data=data,
        algorithm=ProcessReward(),
        batch=4,
        steps=20,
        learner=LEARNER,
        evaluation=EvaluationSpec(data=data),
    )
    ranker = RewardSpec(function="process:@steps", name="ranker", options={"use": "minimum"})
    held_out = EvaluationSpec(data=replace(DATA, size=3), rewards=(ranker,), samples=2, temperature=1.0, best_of=(2,))
    policy = online(
        PPO(), RewardSpec(function="process:@steps"), learner=replace(LEARNER, critic="shared"), evaluation=held_out
    )
    found = execute(tmp_path, SFT_STAGE, steps, policy)
    judged = json.loads((tmp_path / "run" / "summary.json").read_text())["stages"]["steps"]
    assert judged["last"]["evaluation/step/accuracy"] == 1.0
    assert found[0]["evaluation/best_of_2"] >= found[0]["evaluation/reward"]
    assert all(values["reward/steps"] >= 0 for values in found if "reward/steps" in values)


def test_the_price_of_a_cost_rises_batch_by_batch(tmp_path: Path) -> None:
    rewards = RewardSpec(function=VOWELS, name="help"), RewardSpec(function=HARM, name="cost", weight=0.0)
    algorithm = SafePPO(multiplier=1.0, multiplier_rate=0.5)
    stage = online(algorithm, *rewards, learner=replace(LEARNER, critic="shared"), samples=1, steps=3)
    found = execute(tmp_path, SFT_STAGE, stage)
    prices = [values["cost/multiplier"] for values in found if "cost/multiplier" in values]
    assert prices[0] == 1.0
    assert prices[1] == pytest.approx(2.718281828**0.5)
    assert prices[2] > prices[1]


def test_generate_keeps_the_best_sample(tmp_path: Path) -> None:
    execute(tmp_path, SFT_STAGE)
    model, sampling = opened(str(tmp_path / "run" / "model"), "cpu"), Sampling(max_new_tokens=6, temperature=1.0)
    (samples,) = answer(model, asked(["a"], False), sampling, 8)
    (kept,) = answer(model, asked(["a"], False), sampling, 8, VOWELS)
    best = max(samples, key=lambda text: sum(letter in "aeiou" for letter in text))
    assert kept == [best]


def test_generate_knows_no_stages(tmp_path: Path) -> None:
    execute(tmp_path, SFT_STAGE)
    model = opened(str(tmp_path / "run" / "model"), "cpu")
    with pytest.raises(SpecError, match="there is no run here"):
        answer(model, asked(["a"], False), Sampling(max_new_tokens=2), 2, "model:@reward")

"""Recipes of milliseconds a step: letters that follow each other. Tests name this file as a user names theirs."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.algos import GRPO, PPO, SFT, BradleyTerry, KLPenalty
from penstock.config.keeping import CheckpointSpec
from penstock.config.run import DataSpec, EvaluationSpec, LearnerSpec, ModelSpec, Offline, Online, RewardSpec, Run
from penstock.core.types import Sampling

LETTERS = "abcdefghijklmnopqrstuvwxyz"
LEARNER = LearnerSpec(learning_rate=1e-3)
SETTINGS: dict[str, Any] = {"device": "cpu", "threads": 1, "checkpoint": CheckpointSpec(every=2)}


def rows() -> list[dict[str, Any]]:
    return [
        {"prompt": LETTERS[i : i + 2], "answer": LETTERS[i + 2], "chosen": LETTERS[i + 2 : i + 4], "rejected": "?!"}
        for i in range(20)
    ]


DATA = DataSpec(source=f"{__file__}:rows", completion="{{ answer }}")
MODEL = ModelSpec(preset="1m", layers=1, vocabulary=300, context=64)


def vowels(sample: Any, columns: Any) -> float:
    return sum(letter in "aeiou" for letter in sample.text) / 4


def raising(sample: Any, columns: Any) -> float:
    raise ValueError("no score today")


def hanging(sample: Any, columns: Any) -> float:
    time.sleep(3600)
    return 0.0


def not_a_number(sample: Any, columns: Any) -> float:
    return float("nan")


def too_few(group: Any, columns: Any) -> list[float]:
    return [1.0]


def words(sample: Any, columns: Any) -> Any:
    return "good"


def moody(sample: Any, columns: Any) -> float:
    if columns["prompt"] < "k":
        raise ValueError("not this one")
    return vowels(sample, columns)


async def hesitant(sample: Any, columns: Any, turn: int, prompt: str = "cd") -> str:
    """Answers one sample of ``prompt`` too late, until the file ``quick`` is there."""
    if columns["prompt"] == prompt and sample.key.sample == 1 and turn == 1 and not Path("quick").exists():
        await asyncio.sleep(3600)
    return "ab"


def offline(name: str, algorithm: Any, **more: Any) -> Offline:
    """A stage on the letters; ``more`` sets any field of it."""
    usual = {"model": MODEL, "data": DATA, "batch": 4, "steps": 4, "learner": LEARNER}
    return Offline(name=name, algorithm=algorithm, **usual | more)


def online(name: str, algorithm: Any, *rewards: RewardSpec, **more: Any) -> Online:
    """A stage on the letters, from ``@sft``; ``more`` sets any field of it."""
    usual = {"model": ModelSpec(path="@sft"), "data": DATA, "learner": LEARNER, "sampling": Sampling(max_new_tokens=4)}
    return Online(name=name, algorithm=algorithm, rewards=rewards, **usual | {"samples": 4, "batch": 4, "steps": 4} | more)


def sft(name: str = "sft", **more: Any) -> Offline:
    return offline(name, SFT(), **more)


def run_of(*stages: Any, name: str = "run") -> Run:
    return Run(name=name, stages=stages, **SETTINGS)


def tiny(seed: int = 0, steps: int = 4, reward: str = "vowels", fast: bool = False) -> Run:
    """SFT and GRPO on letters.

    Args:
        seed: seed of everything.
        steps: GRPO steps.
        reward: function of this file.
        fast: one SFT step only.
    """
    evaluation = EvaluationSpec(data=replace(DATA, size=5), every=2)
    grpo = online("grpo", GRPO(), RewardSpec(function=f"{__file__}:{reward}"), steps=steps, evaluation=evaluation)
    return Run(name="tiny", seed=seed, stages=(sft(steps=1 if fast else 4), grpo), **SETTINGS)


def one_step() -> Run:
    """One stage, one step."""
    return Run(name="one", stages=(sft(steps=1),), **SETTINGS)


def rewarded(reward: str = "vowels", deadline: float = 30.0) -> Run:
    """GRPO alone from random weights, without an evaluation."""
    grpo = replace(tiny(reward=reward).stages[1], model=MODEL, evaluation=None, steps=2)
    grpo = replace(grpo, rewards=(replace(grpo.rewards[0], deadline=deadline),))  # type: ignore[union-attr,call-arg]
    return Run(name="rewarded", stages=(grpo,), **SETTINGS)


def everything(seed: int = 0, steps: int = 4) -> Run:
    """SFT, a reward model, and PPO with a critic of its own, adaptive KL, epochs and minibatches."""
    reward = offline("reward", BradleyTerry(), model=ModelSpec(path="@sft"), steps=3)
    ppo = online(
        "ppo",
        PPO(kl=KLPenalty(place="reward", coefficient=0.1, target=0.5, horizon=50)),
        RewardSpec(function="model:@reward"),
        learner=replace(LEARNER, critic="separate"),
        samples=1,
        batch=8,
        minibatches=2,
        epochs=2,
        steps=steps,
        evaluation=EvaluationSpec(data=replace(DATA, size=5), every=2, temperature=1.0),
    )
    return Run(name="everything", seed=seed, stages=(sft(steps=3), reward, ppo), **SETTINGS)


def encoder_decoder(seed: int = 0, steps: int = 4) -> Run:
    """The same with a model that encodes the prompt apart."""
    made = everything(seed, steps)
    first = replace(made.stages[0], model=replace(MODEL, architecture="encoder-decoder"))
    return replace(made, name="encoder_decoder", stages=(first, *made.stages[1:]))

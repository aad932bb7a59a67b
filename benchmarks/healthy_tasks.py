"""Runs in which nothing is wrong, from untrained models: what breakers must leave alone (``benchmarks/breakers.py healthy``).

Each task is a function of a seed that gives a run. Rewards come late, in two levels, negative, in parts; what is asked changes,
or is solved and stays so; rows are odd now and then.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np

from penstock.algos import DPO, GRPO, PPO, SFT, LeaveOneOut
from penstock.algos.kl import KLPenalty
from penstock.config.keeping import CheckpointSpec
from penstock.config.run import DataSpec, LearnerSpec, ModelSpec, Offline, Online, RewardSpec, Run
from penstock.control.stage import Control, EnvironmentsSpec
from penstock.core.types import Sampling

BATCH, SAMPLES = 16, 8
HERE = __file__
WORDS = (
    "the",
    "sky",
    "over",
    "a",
    "harbour",
    "turned",
    "slowly",
    "to",
    "colour",
    "that",
    "nobody",
    "in",
    "town",
    "had",
    "name",
)


def rows(size: int, changes: int = 0) -> list[Mapping[str, Any]]:
    """Questions in order of their batches, the batch in a column; from batch ``changes`` on they are of another kind."""
    found = []
    for number in range(size):
        batch = number // BATCH
        text = f"{number % 97} ="
        if changes and batch >= changes:
            text = f"{' '.join(WORDS[number % 7 : number % 7 + 6])} {number % 89}?"
        found.append({"prompt": text, "batch": batch, "digit": str(number % 10)})
    return found


def judged(sample: Any, columns: Mapping[str, Any], kind: str = "sparse", begins: int = 0) -> float:
    """A reward of the first letters of an answer."""
    text, batch = sample.text, int(columns["batch"])
    first = text[:1]
    right = first.isalpha() and first.isascii() and first.islower()
    if kind == "sparse":
        return float(right and batch >= begins)
    if kind == "hundred":
        return 100.0 * (right and batch >= begins) - 0.01 * len(text)
    if kind == "two levels":
        return 1.0 if first == columns["digit"] else 0.1 * first.isprintable() * bool(first)
    if kind == "signs":
        return 1.0 if first.isdigit() else -1.0
    if kind == "parts":
        return sum(letter.isdigit() for letter in text[:4]) / 4
    if kind == "curriculum":
        return float(first in ("0123456789", "02468", "aeiou", "5")[min(3, batch // 60)] and bool(first))
    assert kind == "solved", kind
    return float(first.isprintable() and bool(first))


def model(context: int = 64) -> ModelSpec:
    """An untrained one."""
    return ModelSpec(preset="1m", vocabulary=300, context=context)


def online(name: str, seed: int, steps: int, algorithm: Any, changes: int = 0, **options: Any) -> Run:
    """A run of one stage of samples."""
    source = {"source": f"{HERE}:rows", "options": {"size": steps * BATCH, "changes": changes}}
    stage = Online(
        name="task",
        model=model(),
        data=DataSpec(**source, shuffle=False),
        algorithm=algorithm,
        rewards=(RewardSpec(function=f"{HERE}:judged", options=options),),
        sampling=Sampling(max_new_tokens=6),
        learner=LearnerSpec(learning_rate=5e-4, critic="shared" if isinstance(algorithm, PPO) else "none"),
        batch=BATCH,
        samples=1 if isinstance(algorithm, PPO) else SAMPLES,
        steps=steps,
    )
    stage = replace(stage, batch=BATCH * SAMPLES) if isinstance(algorithm, PPO) else stage
    return run(name, seed, stage)


def run(name: str, seed: int, stage: Any) -> Run:
    """A run of one stage with checkpoints, so that everything that breakers do can be done."""
    return Run(name=name, seed=seed, stages=(stage,), device="cpu", threads=1, checkpoint=CheckpointSpec(every=20, keep=3))


def texts(size: int, odd: int = 0, changes: int = 0, pairs: bool = False) -> list[Mapping[str, Any]]:
    """Rows to imitate or to compare, a batch of noise every ``odd`` batches, other ones from batch ``changes`` on."""
    made, generator = [], random.Random(0)
    for number in range(size):
        batch = number // BATCH
        answer = f" {' '.join(generator.choice(WORDS) for _ in range(4))}."
        if (odd and batch % odd == odd - 1) or (changes and batch >= changes):
            answer = "".join(chr(generator.randint(33, 126)) for _ in range(40))
        row = {"prompt": f"{number % 50}:", "completion": answer}
        made.append({"prompt": row["prompt"], "chosen": answer, "rejected": answer[::-1]} if pairs else row)
    return made


def offline(name: str, seed: int, steps: int, algorithm: Any, **options: Any) -> Run:
    """A run of one stage of rows."""
    source = {"source": f"{HERE}:texts", "options": {"size": steps * BATCH, "pairs": isinstance(algorithm, DPO), **options}}
    learner = LearnerSpec(learning_rate=1e-3 if isinstance(algorithm, SFT) else 1e-4)
    data = DataSpec(**source, shuffle=False)
    given = {"model": model(128), "data": data, "learner": learner, "batch": BATCH, "steps": steps}
    return run(name, seed, Offline(name="task", algorithm=algorithm, **given))


class Corridor(gymnasium.Env[Any, Any]):
    """Ten cells; a reward at the end alone, which wandering reaches in one episode out of some hundred."""

    cells, longest = 10, 24

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 1, (self.cells,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.at = self.steps = 0

    def _seen(self) -> Any:
        return np.eye(self.cells, dtype=np.float32)[self.at]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.at = self.steps = 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.at = max(0, self.at + (1 if action == 1 else -1))
        self.steps += 1
        over = self.at == self.cells - 1
        return self._seen(), float(over), over, self.steps >= self.longest, {}


def control(name: str, seed: int, steps: int) -> Run:
    """Control with a rare reward."""
    environments = EnvironmentsSpec(id=f"{HERE}:Corridor", count=16)
    return run(name, seed, Control(name="task", environments=environments, steps=steps))


TASKS: dict[str, Callable[[str, int], Run]] = {
    "first success after 10 batches": lambda name, seed: online(name, seed, 60, GRPO(), begins=10),
    "first success after 50 batches": lambda name, seed: online(name, seed, 100, GRPO(), begins=50),
    "first success after 200 batches": lambda name, seed: online(name, seed, 250, GRPO(), begins=200),
    "the same with a KL to the reference": lambda name, seed: online(
        name, seed, 100, GRPO(kl=KLPenalty(place="loss", estimator="k3", coefficient=0.05)), begins=50
    ),
    "the same, RLOO": lambda name, seed: online(name, seed, 100, LeaveOneOut(), begins=50),
    "the same, PPO": lambda name, seed: online(name, seed, 100, PPO(), begins=50),
    "success is worth 100": lambda name, seed: online(name, seed, 100, GRPO(), kind="hundred", begins=30),
    "two levels": lambda name, seed: online(name, seed, 200, GRPO(), kind="two levels"),
    "two levels, RLOO": lambda name, seed: online(name, seed, 200, LeaveOneOut(), kind="two levels"),
    "minus one and one": lambda name, seed: online(name, seed, 150, GRPO(), kind="signs"),
    "partial credit": lambda name, seed: online(name, seed, 150, GRPO(), kind="parts"),
    "curriculum": lambda name, seed: online(name, seed, 240, GRPO(), kind="curriculum"),
    "data that change": lambda name, seed: online(name, seed, 200, GRPO(), changes=100, kind="signs"),
    "solved for 500 steps": lambda name, seed: online(name, seed, 560, GRPO(), kind="solved"),
    "control with rare rewards": lambda name, seed: control(name, seed, 200),
    "SFT with odd batches": lambda name, seed: offline(name, seed, 200, SFT(), odd=20),
    "SFT of data that change": lambda name, seed: offline(name, seed, 200, SFT(), changes=100),
    "DPO with odd batches": lambda name, seed: offline(name, seed, 200, DPO(), odd=20),
}
"""Healthy runs, by what is special about them."""

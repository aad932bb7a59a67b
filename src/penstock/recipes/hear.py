"""Naming tones from scratch: a small model that hears imitates a few answers, then GRPO on right or wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.algos.grpo import GRPO
from penstock.algos.sft import SFT
from penstock.config.media import Hearing
from penstock.config.run import DataSpec, EvaluationSpec, LearnerSpec, ModelSpec, Offline, Online, RewardSpec, Run
from penstock.core.types import Sampling

RATE = 8000
NOTES = {"do": 0, "re": 2, "mi": 4, "fa": 5, "sol": 7, "la": 9, "ti": 11}
"""Half tones above the lowest, which is 440 Hz."""
QUESTIONS = ("which note?", "what note is this?", "name the note.")
MADE = 1400


def tones(count: int, seed: int) -> tuple[list[NDArray[np.float32]], list[str]]:
    """Notes of random loudness, length (0.4 to 0.8 s), timbre (three overtones) and mistuning (up to a fifth of a half tone),
    with noise; and their names."""
    draw = np.random.Generator(np.random.Philox(seed))
    found, names = [], []
    for _ in range(count):
        name = list(NOTES)[draw.integers(len(NOTES))]
        pitch = 440 * 2 ** ((NOTES[name] + draw.uniform(-0.2, 0.2)) / 12)
        time = np.arange(int(RATE * draw.uniform(0.4, 0.8))) / RATE
        tone = sum(share * np.sin(2 * np.pi * over * pitch * time) for over, share in enumerate(draw.uniform(0, 0.5, 3), 2))
        tone = np.sin(2 * np.pi * pitch * time) + tone
        tone = tone * draw.uniform(0.1, 0.3) + draw.normal(0, 0.01, len(time))
        found.append(tone.clip(-1, 1).astype(np.float32))
        names.append(name)
    return found, names


def questions(held_out: bool, seed: int = 0) -> list[dict[str, Any]]:
    """Rows ``audio``, ``question`` and ``answer``. Every fifth tone is held out, so none is in both parts."""
    return [
        {"audio": (tone, RATE), "question": QUESTIONS[index % len(QUESTIONS)], "answer": name}
        for index, (tone, name) in enumerate(zip(*tones(MADE, seed), strict=True))
        if (index % 5 == 0) is held_out
    ]


def asked(held_out: bool = False) -> DataSpec:
    """Each tone, then a question about it."""
    return DataSpec(
        source="penstock.recipes.hear:questions",
        name="held-out" if held_out else "tones",
        options={"held_out": held_out},
        prompt="<audio>{{ question }}",
        completion=" {{ answer }}",
    )


def hear(seed: int = 0, imitated: int = 8, steps: int = 120) -> Run:
    """A small model from scratch that hears names notes; minutes on a CPU.

    Args:
        seed: seed of weights, data and sampling.
        imitated: SFT steps on given answers.
        steps: GRPO steps on right or wrong.
    """
    hearing, right, held_out = Hearing(frozen=False), (RewardSpec(function="exact_match"),), asked(held_out=True)
    return Run(
        name="hear",
        seed=seed,
        stages=(
            Offline(
                name="sft",
                model=ModelSpec(preset="1m", layers=3, vocabulary=320, context=64, media=hearing),
                data=asked(),
                algorithm=SFT(),
                learner=LearnerSpec(learning_rate=5e-4, warmup=5, token_budget=8192),
                batch=64,
                steps=imitated,
                evaluation=EvaluationSpec(data=held_out, rewards=right, max_new_tokens=4),
            ),
            Online(
                name="grpo",
                model=ModelSpec(path="@sft", media=hearing),
                data=asked(),
                rewards=right,
                algorithm=GRPO(clip=(0.2, 0.28)),
                learner=LearnerSpec(learning_rate=1e-4, warmup=5, token_budget=8192),
                sampling=Sampling(max_new_tokens=4),
                samples=8,
                batch=32,
                max_running=256,
                steps=steps,
                evaluation=EvaluationSpec(data=held_out, every=20),
            ),
        ),
        headline="held-out: {stages[sft][last][evaluation/reward]:.1%} → {last[evaluation/reward]:.1%} in {seconds:.0f} s",
    )

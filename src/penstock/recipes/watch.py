"""Seeing which way something moves, from scratch: a small model imitates a few answers, then GRPO on right or wrong.

No frame of a film tells it: only the order of frames does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.algos.grpo import GRPO
from penstock.algos.sft import SFT
from penstock.config.media import Vision
from penstock.config.run import DataSpec, EvaluationSpec, LearnerSpec, ModelSpec, Offline, Online, RewardSpec, Run
from penstock.core.types import Sampling

SIDE, FRAMES = 24, 4
WAYS = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
QUESTIONS = ("which way?", "where does it go?", "say the direction.")
MADE = 2000


def films(count: int, seed: int) -> tuple[NDArray[np.uint8], list[str]]:
    """Squares of random size and brightness that move by 3 to 4 pixels a frame over a noisy ground, ``[count, 4, 24, 24]``, and
    which way. Where a square is in the middle of its way does not depend on where it goes."""
    draw = np.random.Generator(np.random.Philox(seed))
    y, x = np.mgrid[:SIDE, :SIDE]
    found, ways = [], []
    for _ in range(count):
        way = list(WAYS)[draw.integers(len(WAYS))]
        (down, right), size, speed, light = WAYS[way], draw.integers(2, 4), draw.integers(3, 5), draw.integers(150, 256)
        middle_y, middle_x = draw.integers(8, 16, 2)
        film = draw.integers(0, 60, (FRAMES, SIDE, SIDE))
        for frame in range(FRAMES):
            along = speed * (frame - (FRAMES - 1) / 2)
            inside = (np.abs(y - middle_y - down * along) <= size) & (np.abs(x - middle_x - right * along) <= size)
            film[frame][inside] = light
        found.append(film.astype(np.uint8))
        ways.append(way)
    return np.stack(found), ways


def questions(held_out: bool, seed: int = 0) -> list[dict[str, Any]]:
    """Rows ``video``, ``question`` and ``answer``. Every fifth film is held out, so none is in both parts."""
    return [
        {"video": film, "question": QUESTIONS[index % len(QUESTIONS)], "answer": way}
        for index, (film, way) in enumerate(zip(*films(MADE, seed), strict=True))
        if (index % 5 == 0) is held_out
    ]


def asked(held_out: bool = False) -> DataSpec:
    """Each film, then a question about it."""
    return DataSpec(
        source="penstock.recipes.watch:questions",
        name="held-out" if held_out else "films",
        options={"held_out": held_out},
        prompt="<video>{{ question }}",
        completion=" {{ answer }}",
    )


def watch(seed: int = 0, imitated: int = 26, steps: int = 120) -> Run:
    """A small model from scratch that watches films says which way a square moves; minutes on a CPU.

    Args:
        seed: seed of weights, data and sampling.
        imitated: SFT steps on given answers.
        steps: GRPO steps on right or wrong.
    """
    watching, right, held_out = Vision(frozen=False), (RewardSpec(function="exact_match"),), asked(held_out=True)
    return Run(
        name="watch",
        seed=seed,
        stages=(
            Offline(
                name="sft",
                model=ModelSpec(preset="1m", layers=3, vocabulary=320, context=64, media=watching),
                data=asked(),
                algorithm=SFT(),
                learner=LearnerSpec(learning_rate=5e-4, warmup=5, token_budget=8192),
                batch=64,
                steps=imitated,
                evaluation=EvaluationSpec(data=held_out, rewards=right, max_new_tokens=4),
            ),
            Online(
                name="grpo",
                model=ModelSpec(path="@sft", media=watching),
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

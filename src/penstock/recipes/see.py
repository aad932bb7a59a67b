"""Reading handwritten digits from scratch: a small vision-language model imitates a few answers, then GRPO on right or wrong.

The pictures are scikit-learn's ``load_digits`` (1,797 of 8 x 8 pixels, enlarged to 24 x 24), or shapes made here.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.algos.grpo import GRPO
from penstock.algos.sft import SFT
from penstock.config.media import Vision
from penstock.config.run import DataSpec, EvaluationSpec, LearnerSpec, ModelSpec, Offline, Online, RewardSpec, Run
from penstock.core.errors import DataError
from penstock.core.types import Sampling

SIDE = 24
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SHAPES = ("circle", "square", "cross", "stripes")
QUESTIONS = ("which {kind}?", "what {kind} is this?", "name the {kind}.")
MADE = 2000
"""Shapes that are made."""

Kind = Literal["digits", "shapes"]


def handwritten() -> tuple[NDArray[np.uint8], list[str]]:
    """Handwritten digits as ``[count, 24, 24]`` and their names. Raises DataError where scikit-learn is missing."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataError(
            "handwritten digits come with scikit-learn: pip install 'penstock[digits]', or --pictures shapes"
        ) from error
    found = load_digits()
    pixels = np.minimum(np.asarray(found.images) * 16, 255).astype(np.uint8)
    return pixels.repeat(SIDE // 8, 1).repeat(SIDE // 8, 2), [DIGITS[int(label)] for label in found.target]


def shapes(count: int, seed: int) -> tuple[NDArray[np.uint8], list[str]]:
    """Shapes of random size, place and brightness on a noisy ground, ``[count, 24, 24]``, and their names."""
    draw = np.random.Generator(np.random.Philox(seed))
    y, x = np.mgrid[:SIDE, :SIDE]
    pictures, names = [], []
    for _ in range(count):
        name, size = SHAPES[draw.integers(len(SHAPES))], draw.integers(4, 9)
        down, right = np.abs(y - draw.integers(8, 16)), np.abs(x - draw.integers(8, 16))
        inside = (down < size) & (right < size)
        shape = {
            "circle": down**2 + right**2 < size**2,
            "square": inside,
            "cross": inside & ((down < 2) | (right < 2)),
            "stripes": inside & (y % 4 < 2),
        }[name]
        ground = draw.integers(0, 60, (SIDE, SIDE))
        pictures.append(np.where(shape, draw.integers(120, 256), ground).astype(np.uint8))
        names.append(name)
    return np.stack(pictures), names


def questions(pictures: Kind, held_out: bool, seed: int = 0) -> list[dict[str, Any]]:
    """Rows ``image``, ``question`` and ``answer``. Every fifth picture is held out, so none is in both parts."""
    images, answers = handwritten() if pictures == "digits" else shapes(MADE, seed)
    kind = "digit" if pictures == "digits" else "shape"
    return [
        {"image": image, "question": QUESTIONS[index % len(QUESTIONS)].format(kind=kind), "answer": answer}
        for index, (image, answer) in enumerate(zip(images, answers, strict=True))
        if (index % 5 == 0) is held_out
    ]


def asked(pictures: Kind, held_out: bool = False) -> DataSpec:
    """Each picture, then a question about it."""
    return DataSpec(
        source="penstock.recipes.see:questions",
        name="held-out" if held_out else pictures,
        options={"pictures": pictures, "held_out": held_out},
        prompt="<image>{{ question }}",
        completion=" {{ answer }}",
    )


def see(seed: int = 0, pictures: Kind = "digits", imitated: int = 20, steps: int = 160) -> Run:
    """A small vision-language model from scratch reads handwritten digits (or shapes); minutes on a CPU.

    Args:
        seed: seed of weights, data and sampling.
        pictures: scikit-learn's handwritten digits, or shapes made here.
        imitated: SFT steps on given answers.
        steps: GRPO steps on right or wrong.
    """
    seeing, right = Vision(frozen=False), (RewardSpec(function="exact_match"),)
    held_out = asked(pictures, held_out=True)
    return Run(
        name=f"see-{pictures}",
        seed=seed,
        stages=(
            Offline(
                name="sft",
                model=ModelSpec(preset="1m", layers=3, vocabulary=320, context=64, media=seeing),
                data=asked(pictures),
                algorithm=SFT(),
                learner=LearnerSpec(learning_rate=1e-3, warmup=5, token_budget=8192),
                batch=64,
                steps=imitated,
                evaluation=EvaluationSpec(data=held_out, rewards=right, max_new_tokens=4),
            ),
            Online(
                name="grpo",
                model=ModelSpec(path="@sft", media=seeing),
                data=asked(pictures),
                rewards=right,
                algorithm=GRPO(clip=(0.2, 0.28)),
                learner=LearnerSpec(learning_rate=1e-4, warmup=5, token_budget=8192),
                sampling=Sampling(max_new_tokens=4),
                samples=8,
                batch=32,
                max_running=256,
                steps=steps,
                evaluation=EvaluationSpec(data=held_out, every=40),
            ),
        ),
        headline="held-out: {stages[sft][last][evaluation/reward]:.1%} → {last[evaluation/reward]:.1%} in {seconds:.0f} s",
    )

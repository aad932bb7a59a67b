"""Looking, then answering: one of three pictures is asked about, and the model is shown the one that it asks to see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from penstock.algos.grpo import GRPO
from penstock.algos.sft import SFT
from penstock.config.media import Vision
from penstock.config.run import DataSpec, EvaluationSpec, LearnerSpec, ModelSpec, Offline, Online, RewardSpec, Run
from penstock.core.types import Sampling
from penstock.envs.env import Env, Said, Turn
from penstock.envs.spec import EnvironmentSpec
from penstock.recipes.see import MADE, shapes

PLACES = "abc"
HERE = "penstock.recipes.look"


def albums(held_out: bool, imitated: bool = False, seed: int = 0) -> list[dict[str, Any]]:
    """Rows of three pictures and a question about one; every fifth picture is held out, so none is in both parts.

    ``imitated``: texts instead, half of them a question with a random place to look at, half a picture with the right answer.
    """
    pictures, names = shapes(MADE, seed)
    kept = np.flatnonzero((np.arange(MADE) % 5 == 0) == held_out)
    draw = np.random.Generator(np.random.Philox([seed, 1]))
    rows: list[dict[str, Any]] = []
    for number, first in enumerate(kept):
        chosen = [first, *draw.choice(kept, len(PLACES) - 1)]
        chosen = [chosen[place] for place in draw.permutation(len(PLACES))]
        place = int(draw.integers(len(PLACES)))
        text, answer = f"which shape is {PLACES[place]}? look at", names[chosen[place]]
        if not imitated:
            rows.append({"text": text, "place": place, "album": pictures[chosen], "answer": answer})
        elif number % 2:
            rows.append({"text": text, "said": str(draw.choice(list(PLACES)))})
        else:
            rows.append(
                {"text": f"{text} {PLACES[place]}<|im_end|><image> it is", "said": answer, "image": pictures[chosen[place]]}
            )
    return rows


class Album(Env):
    """Shows the picture whose letter the first turn says; 1 for the right answer in the second."""

    def __init__(self, columns: Mapping[str, Any]) -> None:
        super().__init__(columns)
        self.shown = False

    async def step(self, said: Said) -> Turn:
        word = said.text.strip()
        if self.shown:
            return Turn(reward=float(word == self.columns["answer"]), terminated=True)
        if word not in tuple(PLACES):
            return Turn(reward=0.0, terminated=True, metrics={"lost": 1})
        self.shown, place = True, PLACES.index(word)
        parts = [{"type": "image", "image": self.columns["album"][place]}, {"type": "text", "text": " it is"}]
        return Turn(parts, 0.0, metrics={"right_place": float(place == self.columns["place"])})


def look(seed: int = 0, imitated: int = 250, steps: int = 80) -> Run:
    """A small model from scratch asks to be shown one of three pictures, then says what it is; minutes on a CPU.

    Args:
        seed: seed of weights, data and sampling.
        imitated: SFT steps on random places and given answers.
        steps: GRPO steps on right or wrong.
    """
    seeing = Vision(frozen=False)
    held_out = DataSpec(source=f"{HERE}:albums", name="held-out", prompt="{{ text }}", options={"held_out": True})
    return Run(
        name="look",
        seed=seed,
        stages=(
            Offline(
                name="sft",
                model=ModelSpec(preset="1m", layers=3, vocabulary=320, context=64, media=seeing),
                data=DataSpec(
                    source=f"{HERE}:albums",
                    name="turns",
                    options={"held_out": False, "imitated": True},
                    prompt="{{ text }}",
                    completion=" {{ said }}",
                ),
                algorithm=SFT(),
                learner=LearnerSpec(learning_rate=1e-3, warmup=5, token_budget=8192),
                batch=64,
                steps=imitated,
            ),
            Online(
                name="grpo",
                model=ModelSpec(path="@sft", media=seeing),
                data=DataSpec(source=f"{HERE}:albums", name="albums", prompt="{{ text }}", options={"held_out": False}),
                environment=EnvironmentSpec(function=f"{HERE}:Album", turns=2),
                rewards=(RewardSpec(function="environment"),),
                algorithm=GRPO(clip=(0.2, 0.28)),
                learner=LearnerSpec(learning_rate=5e-4, schedule="linear", warmup=5, token_budget=8192),
                sampling=Sampling(max_new_tokens=4),
                samples=8,
                batch=32,
                max_running=256,
                steps=steps,
                evaluation=EvaluationSpec(data=held_out, every=20),
            ),
        ),
        headline="held-out: {first[evaluation/reward]:.1%} → {last[evaluation/reward]:.1%} in {seconds:.0f} s",
    )

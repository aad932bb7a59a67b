"""Film reviews: a small model learns to write them, reward models learn to tell praise from blame, PPO teaches it to praise.

The reward model that PPO climbs and the gold classifier that judges the result were trained on two disjoint halves of the
reviews. What the policy gains with the first and not with the second is over-optimisation (Gao et al. 2022, arXiv
2210.10760); the evaluation shows both.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from penstock.algos import PPO, SFT, KLPenalty, LabelScore
from penstock.core.errors import DataError
from penstock.core.run import DataSpec, EvaluationSpec, LearnerSpec, ModelSpec, Offline, Online, RewardSpec, Run
from penstock.core.types import Sampling
from penstock.data.sources import open_source

PARTS = {"held-out": 0.1, "half-a": 0.45, "half-b": 0.45}
"""The parts that the reviews are split into, and their shares."""


def reviews(folder: str, part: str, seed: int = 0, words: int = 3) -> list[dict[str, Any]]:
    """Reviews with their labels: columns ``text``, ``label`` (1 praise, 0 blame) and ``start`` (the first words).

    Args:
        folder: where ``pos.txt`` and ``neg.txt`` are, one review a line.
        part: one of :data:`PARTS`, or several joined by ``+``; parts share no review.
        seed: seed of the split.
        words: words of the ``start``; at least one is left to write.
    """
    wanted = part.split("+")
    if unknown := sorted(set(wanted) - set(PARTS)):
        raise DataError(f'no part "{unknown[0]}"; parts are {", ".join(PARTS)}')
    labelled: dict[str, int] = {}
    for label, name in enumerate(("neg", "pos")):
        lines = open_source(DataSpec(source=f"{folder}/{name}.txt"), Path.cwd())
        labelled |= {lines[index]["text"].strip(): label for index in range(len(lines))}
    rows = [{"text": text, "label": label, "start": " ".join(text.split(" ")[:-1][:words])} for text, label in labelled.items()]
    order = np.argsort(np.random.Philox(key=seed % 2**64).random_raw(len(rows)), kind="stable")
    ends = np.rint(np.cumsum(list(PARTS.values())) * len(rows)).astype(int)
    split = dict(zip(PARTS, np.split(order, ends[:-1]), strict=True))
    return [rows[index] for name in wanted for index in split[name]]


def _data(folder: str, seed: int, part: str) -> DataSpec:
    return DataSpec(
        source="penstock.recipes.sentiment:reviews",
        name=part,
        options={"folder": folder, "part": part, "seed": seed},
        prompt="",
        completion="{{ text }}",
    )


def _classifier(name: str, data: DataSpec, held_out: DataSpec) -> Offline:
    return Offline(
        name=name,
        model=ModelSpec(path="@sft"),
        data=data,
        algorithm=LabelScore(),
        learner=LearnerSpec(
            learning_rate=1e-3, schedule="cosine", warmup=45, betas=(0.9, 0.99), token_dropout=0.4, dropout=0.2
        ),
        steps=450,
        evaluation=EvaluationSpec(data=held_out),
    )


def sentiment(seed: int = 0, steps: int = 30, folder: str = "../shared/data/rt-polarity") -> Run:
    """SFT, reward model, gold classifier and PPO on film reviews; minutes on a laptop CPU.

    Args:
        seed: seed of weights, split and sampling.
        steps: PPO steps.
        folder: folder of pos.txt and neg.txt (Pang and Lee 2005), relative to the working directory.
    """
    train, held_out = _data(folder, seed, "half-a+half-b"), _data(folder, seed, "held-out")
    start = "<|im_end|>{{ start }}"  # as in training, where an empty prompt is one end token
    judges = [f"reward-{number}" for number in (1, 2, 3)]
    gold = RewardSpec(function="model:@gold", options={"sigmoid": True})
    proxy = RewardSpec(function="model:@reward-1", options={"sigmoid": True}, weight=0.0, name="proxy")
    return Run(
        name="sentiment",
        seed=seed,
        stages=(
            Offline(
                name="sft",
                model=ModelSpec(preset="1m", layers=2, vocabulary=4000, context=128, initializer_range=0.02),
                data=train,
                algorithm=SFT(),
                learner=LearnerSpec(
                    learning_rate=3e-3, schedule="cosine", warmup=100, betas=(0.9, 0.98), weight_decay=0.1, dropout=0.1
                ),
                steps=1500,
                evaluation=EvaluationSpec(data=held_out),
            ),
            *(_classifier(judge, _data(folder, seed, "half-a"), held_out) for judge in judges),
            _classifier("gold", _data(folder, seed, "half-b"), held_out),
            Online(
                name="ppo",
                model=ModelSpec(path="@sft"),
                data=replace(train, prompt=start),
                rewards=tuple(RewardSpec(function=f"model:@{judge}", weight=1 / 3) for judge in judges),
                algorithm=PPO(kl=KLPenalty(place="reward", coefficient=0.1, target=8.0, horizon=2000)),
                learner=LearnerSpec(learning_rate=3e-4, critic="separate"),
                sampling=Sampling(temperature=0.7, max_new_tokens=32),
                samples=1,
                batch=128,
                minibatches=2,
                epochs=2,
                steps=steps,
                evaluation=EvaluationSpec(
                    data=replace(held_out, prompt=start, size=256),
                    rewards=(gold, proxy),
                    temperature=0.7,
                    every=15,
                    labelled=held_out,
                ),
            ),
        ),
        headline="gold probability of praise {first[evaluation/gold]:.2f} → {last[evaluation/gold]:.2f} in {seconds:.0f} s",
    )

"""Film reviews: a small model learns to write them, then one of several algorithms teaches it to praise.

Reward models learn to tell praise from blame from the labels of one half of the reviews, a gold classifier from those of the
other. What the policy gains with the first and not with the second is over-optimisation (Gao et al. 2022, arXiv 2210.10760);
the evaluation shows both, and how varied the samples stay.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from penstock.algos import DPO, ILQL, PPO, RFT, SFT, BinaryRewardModel, KLPenalty, OnlineDPO
from penstock.config.optimizers import AdamW
from penstock.config.run import (
    DataSpec,
    EvaluationSpec,
    LearnerSpec,
    ModelSpec,
    Offline,
    Online,
    RewardSpec,
    Run,
    Stage,
)
from penstock.core.errors import DataError
from penstock.core.types import Sampling
from penstock.data.sources import open_source

Algorithm = Literal["sft", "ppo", "rft", "online-dpo", "dpo", "ilql"]
Architecture = Literal["decoder", "encoder-decoder"]

PARTS = {"held-out": 0.1, "half-a": 0.45, "half-b": 0.45}
"""The parts that the reviews are split into, and their shares."""

BETAS = (1.0, 4.0, 16.0)
"""By how much the Q heads shift the logits when ILQL is measured; the last is the headline."""


def reviews(folder: str, part: str, seed: int = 0, words: int = 3) -> list[dict[str, Any]]:
    """Reviews with their labels: columns ``text``, ``label`` (1 praise, 0 blame; ``reward`` is the same), ``start`` (the
    first words) and ``rest``.

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
    rows = []
    for text, label in labelled.items():
        start = " ".join(text.split(" ")[:-1][:words])
        rows.append({"text": text, "label": label, "reward": label, "start": start, "rest": text[len(start) :]})
    order = np.argsort(np.random.Philox(key=seed % 2**64).random_raw(len(rows)), kind="stable")
    ends = np.rint(np.cumsum(list(PARTS.values())) * len(rows)).astype(int)
    split = dict(zip(PARTS, np.split(order, ends[:-1]), strict=True))
    return [rows[index] for name in wanted for index in split[name]]


def contests(folder: str, part: str, seed: int = 0) -> list[dict[str, Any]]:
    """Pairs of reviews that begin with the same word: columns ``start``, ``better`` (rest of a praise), ``worse`` (of a blame).

    A review is in one pair at most.
    """
    blames: dict[str, list[dict[str, Any]]] = {}
    rows = reviews(folder, part, seed, words=1)
    for row in rows:
        if not row["label"]:
            blames.setdefault(row["start"], []).append(row)
    return [
        {"start": row["start"], "better": row["rest"], "worse": blames[row["start"]].pop()["rest"]}
        for row in rows
        if row["label"] and blames.get(row["start"])
    ]


def _data(folder: str, seed: int, part: str) -> DataSpec:
    """Whole reviews of a part, after nothing."""
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
        algorithm=BinaryRewardModel(),
        learner=LearnerSpec(
            learning_rate=1e-3,
            schedule="cosine_with_min_lr",
            warmup=45,
            optimizer=AdamW(betas=(0.9, 0.99)),
            token_dropout=0.4,
            dropout=0.2,
        ),
        steps=450,
        evaluation=EvaluationSpec(data=held_out),
    )


def _online(algorithm: Algorithm, prompts: DataSpec, judges: list[str], evaluation: EvaluationSpec) -> Online:
    """From samples, by the mean score of the judges; every step draws 128 samples."""
    ppo = Online(
        name="ppo",
        model=ModelSpec(path="@sft"),
        data=prompts,
        rewards=tuple(RewardSpec(function=f"model:@{judge}", weight=1 / len(judges)) for judge in judges),
        algorithm=PPO(kl=KLPenalty(place="reward", coefficient=0.1, target=8.0, horizon=2000)),
        learner=LearnerSpec(learning_rate=3e-4, critic="separate"),
        sampling=Sampling(temperature=0.7, max_new_tokens=32),
        samples=1,
        batch=128,
        minibatches=2,
        epochs=2,
        evaluation=evaluation,
    )
    alone = LearnerSpec(learning_rate=3e-4)
    if algorithm == "rft":
        return replace(ppo, name="rft", algorithm=RFT(), learner=alone, samples=8, batch=16, epochs=1, minibatches=1)
    if algorithm == "online-dpo":
        pairs = OnlineDPO(preference=DPO(beta=0.1))
        return replace(ppo, name="online-dpo", algorithm=pairs, learner=alone, samples=4, batch=32, epochs=1, minibatches=1)
    return ppo


def _offline(algorithm: Algorithm, data: DataSpec, evaluation: EvaluationSpec) -> Offline:
    """From the human labels that the first reward model learned from; no reward model is asked."""
    stage = Offline(
        name=algorithm,
        model=ModelSpec(path="@sft"),
        data=replace(data, completion="{{ rest }}"),
        # A review has one reward, at its end: half of what Q is fitted to is what came of the text.
        algorithm=ILQL(monte_carlo=0.5, discount=1.0, conservative=0.01),
        learner=LearnerSpec(learning_rate=1e-3, schedule="cosine_with_min_lr", warmup=20, token_dropout=0.3, dropout=0.2),
        evaluation=evaluation,
    )
    if algorithm == "dpo":
        pairs = replace(
            data, source="penstock.recipes.sentiment:contests", name="contests", chosen="{{ better }}", rejected="{{ worse }}"
        )
        return replace(
            stage, data=pairs, algorithm=DPO(beta=0.1), learner=replace(stage.learner, learning_rate=1e-4, token_dropout=0.0)
        )
    return replace(stage, evaluation=replace(evaluation, betas=BETAS))


def _imitation(train: DataSpec, held_out: DataSpec, architecture: Architecture) -> Offline:
    decoder = ModelSpec(preset="1m", layers=2, vocabulary=4000, context=128, initializer_range=0.02)
    return Offline(
        name="sft",
        model=decoder if architecture == "decoder" else replace(decoder, architecture=architecture, initializer_range=0.0),
        data=train,
        algorithm=SFT(),
        learner=LearnerSpec(
            learning_rate=3e-3,
            schedule="cosine_with_min_lr",
            warmup=100,
            optimizer=AdamW(betas=(0.9, 0.98), weight_decay=0.1),
            dropout=0.1,
        ),
        steps=1500,
        evaluation=EvaluationSpec(data=held_out),
    )


def sentiment(
    data: str,
    seed: int = 0,
    steps: int = 0,
    algorithm: Algorithm = "ppo",
    architecture: Architecture = "decoder",
) -> Run:
    """SFT, reward models, gold classifier and one algorithm on film reviews; minutes on a laptop CPU.

    Args:
        data: folder with pos.txt and neg.txt, a film review a line (Pang and Lee 2005: rt-polarity).
        seed: seed of weights, split and sampling.
        steps: steps of the algorithm; 0: 30 of 128 samples, or 300 of 32 reviews or pairs.
        algorithm: what follows the imitation; nothing does after "sft".
        architecture: shape of the model; in an encoder-decoder (T5's) the encoder reads how a review begins.
    """
    parts = {part: _data(data, seed, part) for part in ("half-a+half-b", "half-a", "half-b", "held-out")}
    begin = "<|im_end|>{{ start }}"  # as in training, where an empty prompt is one end token
    if architecture == "encoder-decoder":
        begin = "{{ start }}"
        parts = {part: replace(whole, prompt=begin, completion="{{ rest }}") for part, whole in parts.items()}
    train, half_a, half_b, held_out = parts.values()
    judges = [f"reward-{number}" for number in ((1, 2, 3) if algorithm in ("ppo", "rft", "online-dpo") else (1,))]
    gold = RewardSpec(function="model:@gold", options={"sigmoid": True})
    proxy = RewardSpec(function="model:@reward-1", options={"sigmoid": True}, weight=0.0, name="proxy")
    sampled = EvaluationSpec(data=replace(held_out, prompt=begin, size=256), rewards=(gold, proxy), temperature=0.7)
    stages: list[Stage] = [_imitation(train, held_out, architecture)]
    if algorithm != "sft":
        stages += [_classifier(judge, half_a, held_out) for judge in judges]
        stages += [_classifier("gold", half_b, held_out)]
    if algorithm in ("dpo", "ilql"):
        evaluation = replace(sampled, max_new_tokens=32)
        stages += [replace(_offline(algorithm, replace(half_a, prompt=begin), evaluation), steps=steps or 300)]
    elif algorithm != "sft":
        online = _online(algorithm, replace(train, prompt=begin), judges, replace(sampled, every=15, labelled=held_out))
        stages += [replace(online, steps=steps or 30)]
    measured = f"evaluation/beta={BETAS[-1]:g}/gold" if algorithm == "ilql" else "evaluation/gold"
    praise = "gold probability of praise {first[evaluation/gold]:.2f} → {last[" + measured + "]:.2f} in {seconds:.0f} s"
    return Run(
        name="sentiment",
        seed=seed,
        stages=tuple(stages),
        headline="held-out perplexity {last[evaluation/perplexity]:.0f} in {seconds:.0f} s" if algorithm == "sft" else praise,
    )

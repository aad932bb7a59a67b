"""What asking by a strategy is worth to neural reward models: held-out accuracy against votes, as in the recipe human_loop.

    penstock train human_loop --rounds 1 --name asking
    python benchmarks/asking_neural.py runs/asking/models/sft --seeds 4

The pool is pairs of postcards; a vote is the truth, wrong in 30% of cases, one vote a pair. Each round an ensemble of three
reward models, trained from the given model on all votes so far, chooses the next pairs: one in five at random, the rest by the
strategy. Printed are the ensemble's accuracies on held-out true pairs after each round, as means over seeds, with the standard
error of the difference to random asking on the same pools. The first round is random and the same for all strategies.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from pathlib import Path

import numpy as np

from penstock.algos import BradleyTerry
from penstock.config.run import DataSpec, LearnerSpec, ModelSpec, Offline, Run
from penstock.feedback.select import Mix, select
from penstock.models.language_policy import LanguagePolicy
from penstock.recipes.human_loop import true_pairs
from penstock.runtime.build import Models
from penstock.runtime.stages import prepare
from penstock.train.device import set_up
from penstock.train.learner import Scoring

NOISE, MEMBERS = 0.3, 3
MIXES = {
    "random": Mix({"random": 1.0}),
    **{name: Mix({"random": 0.2, name: 0.8}) for name in ("disagreement", "near_tie", "large_gap")},
}


def fitted(model: str, rows: list[dict], folder: Path, seed: int, member: int, epochs: int) -> Scoring:
    """A reward model trained on rows, in memory."""
    file = folder / f"votes-{member}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    stage = Offline(
        name=f"member-{member}",
        model=ModelSpec(path=model),
        data=DataSpec(source=str(file)),
        algorithm=BradleyTerry(centring=0.01),
        learner=LearnerSpec(learning_rate=1e-3, schedule="cosine_with_min_lr", warmup=5, dropout=0.1, token_budget=16384),
        batch=32,
        steps=max(1, epochs * len(rows) // 32),
    )
    run = Run(name="asking", stages=(stage,), seed=seed)
    ready = prepare(stage, run, Models(lambda name: Path(name), set_up("cpu", 1), seed), folder)

    async def train() -> None:
        async for _ in ready.steps(0):
            pass
        await ready.close()

    asyncio.run(train())
    return Scoring(LanguagePolicy(ready.model.eval().requires_grad_(False)))


def scores(scorer: Scoring, rows: list[dict], text: object) -> np.ndarray:
    """Scores ``[pairs, 2]`` of both completions of rows."""
    units = [BradleyTerry().rows(row, text) for row in rows]  # type: ignore[arg-type]
    return np.asarray(scorer.score(units, frozenset({"score"}))["score"], np.float64).reshape(-1, 2)


def swapped(rows: list[dict], draw: np.random.Generator) -> tuple[list[dict], np.ndarray]:
    """Pairs whose first response is the better one in half of the cases, and whether it is."""
    better_U = draw.random(len(rows)) < 0.5
    turned = [{**row, "chosen": row["rejected"], "rejected": row["chosen"]} for row in rows]
    return [row if better else turn for row, turn, better in zip(rows, turned, better_U, strict=True)], better_U


def curve(mix: Mix, seed: int, options: argparse.Namespace, folder: Path, first: dict) -> list[float]:
    """Accuracy on held-out truth after each round. ``first`` keeps what the first round gave, which all strategies share."""
    draw = np.random.default_rng(seed)
    pool, first_better_U = swapped(true_pairs(options.pool, 1000 + seed), draw)
    says_first_U = first_better_U ^ (draw.random(options.pool) < NOISE)
    held_out = true_pairs(400, 10**6)
    asked: list[int] = []
    score_EU2 = np.zeros((MEMBERS, options.pool, 2))
    found = []
    for round in range(options.rounds):
        left = np.setdiff1d(np.arange(options.pool), asked)
        chosen = select(score_EU2[:, left], options.round, mix if round else MIXES["random"], seed)
        asked += [int(left[index]) for index, _ in chosen]
        if not round and seed in first:
            score_EU2[:], value = first[seed]
            found.append(value)
            continue
        votes = [pool[u] if says_first_U[u] else swap(pool[u]) for u in asked]
        right = np.zeros(len(held_out))
        for member in range(MEMBERS):
            scorer = fitted(options.model, votes, folder, 100 * seed + member, member, options.epochs)
            text = scorer.model.text
            score_EU2[member] = scores(scorer, pool, text)
            pair_U2 = scores(scorer, held_out, text)
            right += (pair_U2[:, 0] - pair_U2[:, 1]) / MEMBERS
        found.append(float((right > 0).mean()))
        first.setdefault(seed, (score_EU2.copy(), found[0]))
    return found


def swap(row: dict) -> dict:
    return {**row, "chosen": row["rejected"], "rejected": row["chosen"]}


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("model", type=str)
    given.add_argument("--seeds", type=int, default=4)
    given.add_argument("--pool", type=int, default=600)
    given.add_argument("--round", type=int, default=75)
    given.add_argument("--rounds", type=int, default=4)
    given.add_argument("--epochs", type=int, default=10)
    options = given.parse_args()
    curves: dict[str, list[list[float]]] = {name: [] for name in MIXES}
    first: dict = {}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(options.seeds):
            for name, mix in MIXES.items():
                curves[name].append(curve(mix, seed, options, Path(folder), first))
                print(f"seed {seed} {name:13} " + "  ".join(f"{value:.1%}" for value in curves[name][-1]), flush=True)
    for name, made in curves.items():
        mean_R = np.mean(made, 0)
        gap_S = np.array(made)[:, -1] - np.array(curves["random"])[:, -1]
        error = gap_S.std(ddof=1) / len(gap_S) ** 0.5 if len(gap_S) > 1 else float("nan")
        told = "  ".join(f"{options.round * (r + 1)}: {value:.1%}" for r, value in enumerate(mean_R))
        print(f"{name:13} {told}  at the end against random {gap_S.mean():+.1%} ± {error:.1%}")


if __name__ == "__main__":
    main()

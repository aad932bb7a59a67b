"""How often a gate promotes a worse policy and holds back a better one: simulated gates of a known truth.

    python benchmarks/promotion_gate.py

Votes come from the annotators of the recipe human_loop: five who err in 30% of their votes, and one who always says the
opposite. They are weighed by Dawid-Skene on 400 questions with three votes each. Then a policy is judged whose samples are
truly better than those before in a known share of duels. Compared are

- ``before``: what the gate was until decision 23. Promoted unless the upper end of the 95% interval of the majorities won lies
  below one half, if the reward models surely agree with 45% of the majorities on duels and on 100 random questions;
- ``now``: promoted if the chance is at least 95% that the policy is the better one, with the votes' errors taken out.

The reward models are right on 70% of the random questions and expect to win 95% of the duels.
"""

from __future__ import annotations

import argparse

import numpy as np

from penstock.feedback.quality.dawid_skene import dawid_skene
from penstock.feedback.quality.reliability import Share
from penstock.feedback.quality.true_share import true_share

ACCURACY_A = np.array([0.7] * 5 + [0.0])
"""Chance of each annotator to say what is true."""
QUESTIONS, RANDOM, OVERLAP = 400, 100, 3
REWARD_MODELS, EXPECTED = 0.7, 0.95
TRUTHS = (0.3, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.8)
SIZES = ((100, 3), (100, 1), (300, 1), (400, 1), (400, 3), (1000, 1), (2000, 1))
"""Duels, and votes on each."""


def votes(truth_U: np.ndarray, overlap: int, draw: np.random.Generator) -> np.ndarray:
    """What each annotator says of each unit ``[A, U]``, 1 or -1, and 0 of those that they are not asked about."""
    shape = len(ACCURACY_A), len(truth_U)
    asked_AU = draw.random(shape).argsort(0) < overlap
    right_AU = draw.random(shape) < ACCURACY_A[:, None]
    return np.where(asked_AU, np.where(right_AU, truth_U, -truth_U), 0)


def signs(share: float, units: int, draw: np.random.Generator) -> np.ndarray:
    """True sides of units: 1 in a share of them, else -1."""
    return np.where(draw.random(units) < share, 1, -1)


def weights(draw: np.random.Generator) -> np.ndarray:
    """What each annotator's word is worth by the votes on the questions."""
    said_AU = votes(signs(0.5, QUESTIONS, draw), OVERLAP, draw)
    return dawid_skene(np.select([said_AU > 0, said_AU < 0], [0, 1], -1), 2).weight_A


def before(duel_U: np.ndarray, expected_U: np.ndarray, random_U: np.ndarray, agree_U: np.ndarray) -> bool:
    """The gate before: evidence on duels and random questions, and what the reward models say of each."""
    won, agreed = duel_U[duel_U != 0] > 0, np.concatenate([duel_U * expected_U, random_U * agree_U])
    wins, agreement = (Share(int((x > 0).sum()), int((x != 0).sum())) for x in (won * 2 - 1, agreed))
    return wins.interval[1] >= 0.5 and agreement.interval[0] >= 0.45


def gates(share: float, duels: int, overlap: int, worth_SA: np.ndarray, seed: int) -> tuple[float, float]:
    """Shares of simulated gates that promote: before, and now."""
    promoted = np.zeros(2)
    for number, weight_A in enumerate(worth_SA):
        draw = np.random.default_rng([seed, number, duels, overlap, int(100 * share)])
        duel_U = weight_A @ votes(signs(share, duels, draw), overlap, draw)
        true_U = signs(0.5, RANDOM, draw)
        random_U, agree_U = weight_A @ votes(true_U, OVERLAP, draw), true_U * signs(REWARD_MODELS, RANDOM, draw)
        promoted += before(duel_U, signs(EXPECTED, duels, draw), random_U, agree_U), true_share(duel_U).above_half >= 0.95
    was, now = promoted / len(worth_SA)
    return float(was), float(now)


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--gates", type=int, default=400, help="simulated gates of each kind")
    given.add_argument("--seed", type=int, default=0)
    options = given.parse_args()
    worth_SA = np.stack([weights(np.random.default_rng([options.seed, number])) for number in range(options.gates)])
    print(f"promoted, of {options.gates} gates; columns: true share of duels that the policy wins")
    print(f"{'duels x votes':14} {'gate':7}" + "".join(f"{share:>8.0%}" for share in TRUTHS))
    for duels, overlap in SIZES:
        rates = np.array([gates(share, duels, overlap, worth_SA, options.seed) for share in TRUTHS])
        for name, rate_T in zip(("before", "now"), rates.T, strict=True):
            print(f"{f'{duels} x {overlap}':14} {name:7}" + "".join(f"{rate:>8.1%}" for rate in rate_T), flush=True)


if __name__ == "__main__":
    main()

"""What asking by a strategy is worth: votes until a reward model reaches an accuracy, against asking at random.

    python benchmarks/asking.py

A linear reward model learns from one vote a pair. People prefer by Bradley-Terry of the true utility and err in 30% of cases on
top. Each round an ensemble of models, trained on resampled votes, chooses the next pairs. The factor is votes at random over
votes by the strategy; below 1 the strategy loses.
"""

from __future__ import annotations

import numpy as np

from penstock.feedback.select import Mix, select

FEATURES, POOL, ROUND, ROUNDS, MEMBERS, SEEDS = 20, 3000, 40, 30, 5, 16
GOAL = 0.8
MIXES = {
    "random": Mix({"random": 1.0}),
    **{name: Mix({"random": 0.2, name: 0.8}) for name in ("disagreement", "near_tie", "large_gap")},
    "all": Mix(),
}


def fit(feature_UF: np.ndarray, first_U: np.ndarray, ridge: float = 1.0) -> np.ndarray:
    """A logistic model of "the first is better" on differences of features, by Newton steps."""
    weight_F = np.zeros(feature_UF.shape[1])
    for _ in range(8):
        chance_U = 1 / (1 + np.exp(-feature_UF @ weight_F))
        slope_F = feature_UF.T @ (first_U - chance_U) - ridge * weight_F
        curve_FF = (feature_UF.T * (chance_U * (1 - chance_U))) @ feature_UF + ridge * np.eye(len(weight_F))
        weight_F = weight_F + np.linalg.solve(curve_FF, slope_F)
    return weight_F


def curve(mix: Mix, seed: int) -> list[float]:
    """Accuracy on held-out truth after each round."""
    draw = np.random.Generator(np.random.Philox(seed))
    true_F, pool_U2F = draw.normal(size=FEATURES), draw.normal(size=(POOL, 2, FEATURES))
    gap_U = (pool_U2F[:, 0] - pool_U2F[:, 1]) @ true_F / 3
    likes_first_U = draw.random(POOL) < 1 / (1 + np.exp(-gap_U))
    said_U = np.where(draw.random(POOL) < 0.3, ~likes_first_U, likes_first_U).astype(float)
    test_UF = draw.normal(size=(3000, FEATURES))
    asked: list[int] = []
    member_EF = np.zeros((MEMBERS, FEATURES))
    found = []
    for round in range(ROUNDS):
        left = np.setdiff1d(np.arange(POOL), asked)
        score_EU2 = np.einsum("ef,ukf->euk", member_EF, pool_U2F[left])
        asked += [int(left[index]) for index, _ in select(score_EU2, ROUND, mix if round else MIXES["random"], seed)]
        difference_UF, first_U = pool_U2F[asked, 0] - pool_U2F[asked, 1], said_U[asked]
        drawn_EU = draw.integers(0, len(asked), (MEMBERS, len(asked)))
        member_EF = np.stack([fit(difference_UF[drawn_U], first_U[drawn_U]) for drawn_U in drawn_EU])
        whole_F = fit(difference_UF, first_U)
        found.append(float((np.sign(test_UF @ whole_F) == np.sign(test_UF @ true_F)).mean()))
    return found


def main() -> None:
    votes = {}
    for name, mix in MIXES.items():
        curve_SR = np.array([curve(mix, seed) for seed in range(SEEDS)])
        mean_R = curve_SR.mean(0)
        reached = np.flatnonzero(mean_R >= GOAL)
        votes[name] = ROUND * (int(reached[0]) + 1) if len(reached) else None
        error = curve_SR[:, -1].std() / SEEDS**0.5
        factor = votes["random"] / votes[name] if votes["random"] and votes[name] else float("nan")
        print(
            f"{name:13} votes to {GOAL:.0%}: {votes[name]}  factor {factor:.2f}  "
            f"after 400: {mean_R[9]:.1%}  after {ROUND * ROUNDS}: {mean_R[-1]:.1%} ± {error:.1%}"
        )


if __name__ == "__main__":
    main()

"""Algorithms of the literature that are GRPO or leave-one-out with other parts: functions that return a spec.

Each takes any field of the spec by keyword, so a paper's setting is a point to start from:
``dapo(kl=KLPenalty(place="loss", estimator="k3", coefficient=0.01))``.
"""

from __future__ import annotations

from typing import Any

from penstock.algos.grpo import GRPO
from penstock.algos.importance_weights import ImportanceWeight
from penstock.algos.objectives import CISPO, DPPO, GMPO, SAPO, TOPR, ClipCov, ClippedRatio, KLCov
from penstock.algos.rloo import LeaveOneOut


def dr_grpo(constant: int, **fields: Any) -> GRPO:
    """Dr. GRPO (Liu et al. 2025, arXiv 2503.20783): no division by the deviation, sums over ``constant`` (longest answer)."""
    return _grpo(fields, scale="none", aggregate="constant", constant=constant)


def dapo(**fields: Any) -> GRPO:
    """DAPO (Yu et al. 2025, arXiv 2503.14476): clip-higher and token mean. With it set ``Online(dynamic_sampling=…)``
    and add ``RewardSpec(function="overlong", options={"longest": …, "buffer": …})``."""
    return _grpo(fields, clip=(0.2, 0.28), aggregate="token")


def gspo(level: Any = "sequence", **fields: Any) -> GRPO:
    """GSPO (Zheng et al. 2025, arXiv 2507.18071): the ratio of a sequence; ``level="sequence-token"`` is GSPO-token."""
    return _grpo(fields, objective=ClippedRatio(level=level), clip=(3e-4, 4e-4), aggregate="sequence")


def cispo(**fields: Any) -> GRPO:
    """CISPO (MiniMax 2025, arXiv 2506.13585): clipped importance weights, no lower border, token mean."""
    return _grpo(fields, objective=CISPO(), clip=(1.0, 3.0), aggregate="token")


def gmpo(**fields: Any) -> GRPO:
    """GMPO (Zhao et al. 2025, arXiv 2507.20673): the geometric mean of token ratios, clipped to (e^-0.4, e^0.4)."""
    return _grpo(fields, objective=GMPO(), clip=(0.33, 0.49), aggregate="sequence")


def sapo(**fields: Any) -> GRPO:
    """SAPO (arXiv 2511.20347): a soft gate in the place of the clip, mean over sequences of token means."""
    return _grpo(fields, objective=SAPO(), clip=None, aggregate="sequence")


def topr(**fields: Any) -> GRPO:
    """TOPR (Le Roux et al. 2025, arXiv 2503.14286) on centred rewards; a whole answer is one action."""
    return _grpo(fields, objective=TOPR(), clip=None, scale="none", aggregate="constant", constant=1)


def dppo(divergence: Any = "tv", **fields: Any) -> GRPO:
    """DPPO (arXiv 2602.04879) with the mask by total variation, or by KL (``divergence="kl"``, threshold 0.05)."""
    objective = DPPO(divergence=divergence, threshold=0.15 if divergence == "tv" else 0.05)
    return _grpo(fields, objective=objective, clip=None)


def clip_cov(**fields: Any) -> GRPO:
    """Clip-Cov (Cui et al. 2025, arXiv 2505.22617): no gradient for a few tokens of high covariance."""
    return _grpo(fields, objective=ClipCov())


def kl_cov(**fields: Any) -> GRPO:
    """KL-Cov (Cui et al. 2025, arXiv 2505.22617): a penalty on the few tokens of highest covariance."""
    return _grpo(fields, objective=KLCov(), clip=None)


def pipeline_rl(**fields: Any) -> LeaveOneOut:
    """PipelineRL (arXiv 2509.19128): leave-one-out and the truncated weight ``min(ratio, 5)`` for in-flight updates."""
    return LeaveOneOut(**{"objective": CISPO(), "clip": (1.0, 4.0), **fields})


def icepop(**fields: Any) -> GRPO:
    """IcePop (Ring-1T, arXiv 2510.18855): GRPO without the tokens on which engine and learner disagree."""
    return _grpo(fields, importance_weights=(ImportanceWeight(outside="mask", low=0.5, high=5.0),))


def _grpo(fields: dict[str, Any], **paper: Any) -> GRPO:
    return GRPO(**{**paper, **fields})

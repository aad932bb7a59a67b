"""Divergences of whole next-token distributions, ``student`` from ``teacher``, per position.

Arguments are log-probs ``[A, V]``; the result is ``[A]``, in nats, never below 0 and 0 only where both agree. Unlike an
estimate from the sampled token alone, each has no noise except that of the texts, and a gradient at every token.
"""

from __future__ import annotations

import math

from torch import Tensor


def reverse_kl(student_AV: Tensor, teacher_AV: Tensor) -> Tensor:
    """``KL(student ‖ teacher) = Σ_v s (log s - log t)``: avoids what the teacher finds unlikely (mode-seeking).

    The loss of on-policy distillation (Gu et al. 2024, arXiv 2306.08543), and the KL that a policy is held near its
    reference by.
    """
    return _kl(student_AV, teacher_AV)


def forward_kl(student_AV: Tensor, teacher_AV: Tensor) -> Tensor:
    """``KL(teacher ‖ student) = Σ_v t (log t - log s)``: covers all that the teacher finds likely (Hinton et al. 2015)."""
    return _kl(teacher_AV, student_AV)


def jensen_shannon(student_AV: Tensor, teacher_AV: Tensor, mixture: float) -> Tensor:
    """``β KL(teacher ‖ M) + (1 - β) KL(student ‖ M)`` with ``M = β teacher + (1 - β) student`` (arXiv 2306.13649, eq. 1).

    Bounded by ln 2. Divided by β it tends to the forward KL as β → 0, divided by 1 - β to the reverse KL as β → 1.

    Args:
        mixture: β, in (0, 1).
    """
    middle_AV = (teacher_AV + math.log(mixture)).logaddexp(student_AV + math.log(1 - mixture))
    return mixture * _kl(teacher_AV, middle_AV) + (1 - mixture) * _kl(student_AV, middle_AV)


def _kl(first_AV: Tensor, second_AV: Tensor) -> Tensor:
    # A token of probability 0 has log-prob -inf; it adds 0, not NaN.
    gap_AV = (first_AV - second_AV).masked_fill(first_AV == -math.inf, 0.0)
    return (first_AV.exp() * gap_AV).sum(-1)

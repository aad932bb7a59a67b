"""Rewards of an answer's length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.core.errors import RewardError

if TYPE_CHECKING:
    from penstock.core.types import Sample


def overlong(sample: Sample, columns: Mapping[str, Any], *, longest: int, buffer: int) -> float:
    """Soft punishment of overlong answers (DAPO: Yu et al. 2025, arXiv 2503.14476, eq. 13).

    0 up to ``longest - buffer`` action tokens, then a line down to -1 at ``longest``, and -1 beyond. Added to the reward of
    the task, with the weight that -1 is to have.

    Raises:
        RewardError: a buffer that is not within 1 … ``longest``.
    """
    if not 0 < buffer <= longest:
        raise RewardError(f"overlong needs 0 < buffer <= longest, got buffer={buffer} and longest={longest}")
    excess = int(sample.action_T.sum()) - (longest - buffer)
    return -min(max(excess / buffer, 0.0), 1.0)

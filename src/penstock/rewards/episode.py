"""The rewards that a sample's environment gave, turn by turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.core.errors import RewardError

if TYPE_CHECKING:
    from penstock.core.types import Sample


def environment(sample: Sample, columns: Mapping[str, Any]) -> list[float | None] | None:
    """Each turn's reward on the turn's last action, where a step ends (``GRPO(supervision="process")``); 0 for one without.

    None where the environment rewarded no turn. What a turn earned that is not trained on (``history="mask"``) counts for the
    first action that is.

    Raises:
        RewardError: the stage has no environment of several turns.
    """
    turns = sample.extras.get("turns")
    if turns is None:
        raise RewardError("found no turns; set the stage's environment, or leave the reward environment out")
    rewards = [reward for _, _, reward, _ in turns]
    actions = int(sample.action_T.sum())
    if not actions or all(reward is None for reward in rewards):
        return None
    found: list[float | None] = [None] * actions
    place_T = np.cumsum(sample.action_T) - 1
    for _, end, reward, _ in turns:
        place = max(0, int(place_T[end - 1]))
        found[place] = (found[place] or 0.0) + (reward or 0.0)
    return found

"""What answers back between the turns of an episode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from penstock.config.spec import require, spec


@spec
class EnvironmentSpec:
    """An environment of several turns, such as a tool or a simulated user."""

    function: str
    """``MODULE:FUNCTION`` or ``FILE.py:FUNCTION``: ``function(sample, columns, turn, **options)``, plain or ``async``, gives
    the text that follows the policy's turn, or None where the episode is over."""
    turns: int = 8
    """Turns of the policy in an episode at most."""
    deadline: float = 60.0
    """Seconds one call of the function may take; a sample whose call takes longer fails, and no sibling."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments passed on to the function."""

    def __post_init__(self) -> None:
        require(bool(self.function), "environment.function is empty; name MODULE:FUNCTION or FILE.py:FUNCTION")
        require(self.turns >= 1, f"environment.turns={self.turns}; at least 1")
        require(self.deadline > 0, f"environment.deadline={self.deadline}; give a positive number of seconds")

"""The spec of an environment. No torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Literal

from penstock.config.spec import Count, NotNegative, Positive, require, spec

History = Literal["refuse", "split", "mask"]


@spec
class EnvironmentSpec:
    """An environment of several turns: a tool, a game, a simulated user (``docs/environments.md``)."""

    function: str
    """A registered name (``tools``); one of another package (``gymnasium:ID``, ``textarena:NAME``, ``openenv:URL``,
    ``reasoning_gym:SET``); or ``MODULE:NAME`` or ``FILE.py:NAME`` of a class that derives from
    :class:`penstock.envs.env.Env`, or of a function ``function(sample, columns, turn, **options)``, plain or ``async``, that
    gives the text after the policy's turn, or None where the episode is over."""
    turns: Count = 8
    """Turns of the policy in an episode at most."""
    tokens: int = 0
    """Tokens of an episode after its first prompt at most, looked at between turns; 0: what the context leaves."""
    seconds: NotNegative = 0.0
    """Seconds of an episode after which no further turn begins; 0: no limit."""
    deadline: Positive = 60.0
    """Seconds one call of the environment may take; a sample whose call takes longer fails, and no sibling."""
    history: History = "refuse"
    """What is done where the chat template writes earlier turns in another way than they were generated: ``refuse`` the run;
    ``split`` the episode into one sequence for each rendering, all trained; ``mask``: split, and train on the last alone."""
    show_tools: bool = True
    """Give the chat template the schemas of tools; if not, the policy must know its tools from its training or the prompt."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the class or function."""

    def __post_init__(self) -> None:
        require(bool(self.function), "environment.function is empty; name tools, MODULE:NAME or FILE.py:NAME")
        require(self.tokens >= 0, f"environment.tokens={self.tokens} is negative; 0 is what the context leaves")

    def check(self, base: Path) -> None:
        """Find the class or function. Raises SpecError where it is not there or its options do not fit."""
        from penstock.envs.making import env_class

        env_class(self, base)

    def build(self, text: Any, base: Path | None) -> Callable[..., Any]:
        """What makes an episode of a prompt, for a stage whose tokenizer is ``text``."""
        from penstock.envs.making import conversations

        return conversations(self, text, base)

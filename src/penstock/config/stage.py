"""What callers ask of a stage, whatever it does; each member has a default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from penstock.config.learner import Dtype
from penstock.config.parts import DataSpec, EvaluationSpec, ModelSpec, RewardSpec, models_behind
from penstock.config.strategies import OneDevice

SIGNALS, OTHER = "signals", "other"
"""Kinds of feedback: what users did unasked; and votes, labels and rewards of any other origin."""


class Stage:
    """Base of the specs that ``Run.stages`` takes.

    A stage of a user's own is a registered spec (:func:`penstock.config.spec.spec`) that derives from this, in a module that
    ``Run.modules`` names.
    """

    name: str
    model: ModelSpec
    data: DataSpec
    evaluation: EvaluationSpec | None
    steps: int

    program: ClassVar[str] = ""
    """``MODULE:FUNCTION`` or ``FILE.py:FUNCTION`` that makes it ready, called as ``prepare`` in ``runtime/stages/*.py`` is;
    empty: ours."""
    uses_stream: ClassVar[bool] = False
    """Whether it trains on its own samples, which go through a stream, so that other processes can generate and score."""
    pinned: ClassVar[bool] = True
    """Whether data that grows is pinned to what it was when the stage began."""
    actors: int = 0
    """Processes that step environments for it, where roles are processes."""
    asks: str = ""
    """The feedback store that the stage fills with votes; empty: none."""
    reference: ModelSpec | None = None
    environment: Any = None

    @property
    def strategy(self) -> Any:
        """How its learner's model is spread over processes."""
        return OneDevice()

    @property
    def facts(self) -> Sequence[tuple[str, str]]:
        """(what, value) for ``penstock explain``; empty: those of a language model's stage."""
        return ()

    @property
    def sources(self) -> tuple[DataSpec, ...]:
        """The data that it reads."""
        return (self.data, self.evaluation.data) if self.evaluation else (self.data,)

    def dtype_in(self, stages: Sequence[Stage]) -> Dtype:
        """Arithmetic of what it computes, as one of a run's ``stages``."""
        return "float32"

    @property
    def trains_adapters(self) -> bool:
        """Whether it trains low-rank adapters alone, on one device."""
        return False

    @property
    def replays_routes(self) -> bool:
        """Whether it trains with the experts that the generator chose."""
        return False

    @property
    def reads_media(self) -> bool:
        """Whether its model reads pictures, films or sounds."""
        return self.model.media is not None

    def reads_some(self, kinds: Sequence[str]) -> bool:
        """Whether its model reads media of one of these kinds."""
        return self.model.media is not None and not set(kinds).isdisjoint(self.model.media.kinds)

    @property
    def needs_reference(self) -> bool:
        """Whether log-probs of a reference model are learned from."""
        return False

    @property
    def row_kind(self) -> str:
        """What its rows become: prompts, examples or pairs."""
        return "prompts"

    @property
    def imitates(self) -> bool:
        """Whether it learns what to write from given texts, good or bad."""
        return False

    def feedback(self, learned: Mapping[str, set[str]]) -> set[str]:
        """Kinds of feedback that it adds; ``learned``: those behind the models of earlier stages. Demonstrations are none: they
        say what to write, not what is good."""
        return set()

    def all_rewards(self) -> tuple[RewardSpec, ...]:
        """Every reward that it names."""
        return self.evaluation.rewards if self.evaluation else ()

    def mixtures(self) -> list[tuple[RewardSpec, ...]]:
        """The rewards that it names, those together that score together."""
        return [self.evaluation.rewards] if self.evaluation and self.evaluation.rewards else []

    def reward_models(self) -> list[str]:
        """The models behind the rewards that it trains on."""
        return []

    def models(self) -> list[str]:
        """The models that it names."""
        found = [self.model.path] + ([self.reference.path] if self.reference else [])
        return found + [model for reward in self.all_rewards() for model in models_behind(reward)]

    def on_one_process(self) -> Any:
        """The stage as one process can carry it out."""
        return self

"""The kinds of processes that a run has: what each needs, registered by name by the module that brings it.

What a role does is one file, ``runtime/roles/NAME.py``, or the function that it names itself.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from penstock.config.run import Run, Stage


def is_listed(module: str, names: Iterable[str]) -> bool:
    """Whether a module that is imported is among ``names``."""
    file = Path(getattr(sys.modules.get(module), "__file__", None) or "")
    return any(name == module or (name.endswith(".py") and file.resolve().match(Path(name).name)) for name in names)


class Role:
    """A kind of process. What callers ask of one; each has a default.

    A role of a user's own is a class in a module that ``Run.modules`` names, given to :func:`register`.
    """

    name: ClassVar[str]
    program: ClassVar[str] = ""
    """``MODULE:FUNCTION`` or ``FILE.py:FUNCTION`` of ``async function(bootstrap)``, which is the process; empty: ours."""
    column: ClassVar[str] = ""
    """The column that it writes on every group, without which none is trained on; empty: none."""
    reads_weights: ClassVar[bool] = False
    """Whether the learner's weights must reach it."""
    whole_run: ClassVar[bool] = False
    """Whether its processes live as long as the run rather than with one stage, and may start before its folder is there."""

    def count(self, run: Run, stage: Stage) -> int:
        """Its processes in a stage; by default one, where samples go through a stream and the run lists the role's module."""
        return int(stage.uses_stream and is_listed(type(self).__module__, run.modules))

    def gpus(self, run: Run) -> float:
        """Accelerators that one of its processes takes where the run computes on them."""
        return 1.0

    def names(self, run: Run, stage: Stage | None = None) -> list[str]:
        """Its processes in a stage; in none: all that the run has in any of its stages."""
        most = max((self.count(run, one) for one in ((stage,) if stage else run.stages)), default=0)
        return [f"{self.name}-{index}" for index in range(most)]


_ROLES: dict[str, Role] = {}


def register(kind: type[Role]) -> type[Role]:
    """Class decorator: a run may have processes of this kind from now on."""
    _ROLES[kind.name] = kind()
    return kind


def roles() -> Mapping[str, Role]:
    """All registered roles by name, in the order in which they came."""
    return _ROLES


def columns(run: Run, stage: Stage) -> list[str]:
    """The columns that processes of a stage write, in the order of their roles."""
    return [role.column for role in _ROLES.values() if role.column and role.count(run, stage)]


def processes(run: Run) -> Iterator[tuple[str, str]]:
    """(role, name) of all processes that a run has in any of its stages, except the supervisor."""
    for role in _ROLES.values():
        yield from ((role.name, name) for name in role.names(run))


def most_ranks(run: Run) -> int:
    """Ranks of the learner in the stage that has most of them."""
    return max((stage.strategy.ranks for stage in run.stages), default=1)


def ranks_apart(run: Run) -> bool:
    """Whether the ranks of the learner are placed one by one."""
    return run.runtime == "ray" and run.roles.placement.places("rank")


@register
class Learner(Role):
    """Trains, and carries the run out."""

    name = "learner"
    whole_run = True

    def gpus(self, run: Run) -> float:
        return 1.0 if ranks_apart(run) else float(most_ranks(run))

    def names(self, run: Run, stage: Stage | None = None) -> list[str]:
        return [] if stage else [self.name]


@register
class Rank(Role):
    """One rank of the learner on a node of its own."""

    name = "rank"
    whole_run = True

    def names(self, run: Run, stage: Stage | None = None) -> list[str]:
        return [] if stage or not ranks_apart(run) else [f"{self.name}-{number}" for number in range(1, most_ranks(run))]


@register
class Generator(Role):
    """Generates groups with an engine of its own."""

    name = "generator"
    reads_weights = True

    def count(self, run: Run, stage: Stage) -> int:
        return run.roles.generators if stage.uses_stream else 0

    def gpus(self, run: Run) -> float:
        return float(run.roles.engine.devices)


@register
class Actor(Role):
    """Steps environments of its own, with the learner's weights."""

    name = "actor"
    reads_weights = True

    def count(self, run: Run, stage: Stage) -> int:
        return stage.actors

    def gpus(self, run: Run) -> float:
        return 0.0


@register
class Reward(Role):
    """Scores groups."""

    name = "reward"
    column = "reward"

    def count(self, run: Run, stage: Stage) -> int:
        return run.roles.rewards if stage.uses_stream else 0

    def gpus(self, run: Run) -> float:
        return float(any(stage.reward_models() for stage in run.stages))


@register
class Reference(Role):
    """Computes the log-probs of the reference model."""

    name = "reference"
    column = "reference"

    def count(self, run: Run, stage: Stage) -> int:
        return run.roles.references if stage.uses_stream and stage.needs_reference else 0


@register
class Evaluator(Role):
    """Evaluates while training goes on."""

    name = "evaluator"
    reads_weights = True

    def count(self, run: Run, stage: Stage) -> int:
        return int(run.roles.evaluator and stage.uses_stream and stage.evaluation is not None)

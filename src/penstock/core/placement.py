"""What lands where: the registered specs that ``roles.placement`` takes, for a run on a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from penstock.core.spec import require, spec


@spec
class Resources:
    """What one process of a role takes."""

    cpus: float = 1.0
    gpus: float = 0.0
    custom: Mapping[str, float] = field(default_factory=dict)
    """Custom resources of the cluster by name, such as the kind of a node."""
    node: str = ""
    """Processes with the same word share a node; empty: wherever there is room."""

    def __post_init__(self) -> None:
        for name, amount in {"cpus": self.cpus, "gpus": self.gpus, **self.custom}.items():
            require(amount >= 0, f"placement: {name}={amount} is negative")


@spec
class Colocate:
    """Learner and generators share nodes, and the same accelerators by turns."""


@spec
class Split:
    """Learner and generators have accelerators of their own; every process takes a core."""


@spec
class Placed:
    """Each role as a file says it: ``[learner]``, ``[generator]``, ``[reward]``, ``[reference]``, ``[evaluator]``."""

    roles: Mapping[str, Resources] = field(default_factory=dict)
    """Resources of one process, by role; a role that is not named takes a core."""

    def __post_init__(self) -> None:
        unknown = [role for role in self.roles if role not in ROLES]
        require(not unknown, f"placement: unknown role {', '.join(unknown)}; roles are {', '.join(ROLES)}")


ROLES = ("learner", "generator", "reward", "reference", "evaluator")

PLACEMENTS = (Colocate, Split, Placed)
"""What ``roles.placement`` may be."""

"""What lands where: the registered specs that ``roles.placement`` takes, for a run on a cluster, and what follows from them.

A cluster reserves *bundles*: each is on one node, so processes that must share a node share a bundle.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from penstock.config.roles import processes, roles
from penstock.config.spec import require, spec
from penstock.core.errors import SpecError

if TYPE_CHECKING:
    from penstock.config.run import Run


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


@dataclass(frozen=True)
class Bundle:
    """Processes that share a node, by name, and what each takes there."""

    processes: Mapping[str, Resources]

    @property
    def total(self) -> dict[str, float]:
        """What they take together, by the cluster's names of resources; what is not needed is left out."""
        sums: dict[str, float] = {}
        for resources in self.processes.values():
            for name, amount in {"CPU": resources.cpus, "GPU": resources.gpus, **resources.custom}.items():
                sums[name] = sums.get(name, 0.0) + amount
        return {name: round(amount, 4) for name, amount in sums.items() if amount}


@dataclass(frozen=True)
class Bundles:
    """The bundles of a run, in order. ``strategy``: ``PACK`` them on few nodes, or ``SPREAD`` them, as far as there is room."""

    strategy: str
    bundles: tuple[Bundle, ...]

    def find(self, name: str) -> tuple[int, Resources]:
        """Which bundle a process is in, and what it takes.

        Raises:
            SpecError: the run has no such process.
        """
        for index, bundle in enumerate(self.bundles):
            if name in bundle.processes:
                return index, bundle.processes[name]
        raise SpecError(f"placement: the run has no process {name}")


class Placement(ABC):
    """What lands where; each kind of it makes the bundles of a run."""

    def places(self, role: str) -> bool:
        """Whether it says of a role by itself what its processes take."""
        return False

    @abstractmethod
    def bundles(self, run: Run) -> Bundles:
        """What lands where. Raises SpecError where that cannot be."""


@spec
class Colocate(Placement):
    """Learner and generators share nodes, and the same accelerators by turns."""

    def bundles(self, run: Run) -> Bundles:
        takes = defaults(run)
        together = {name: takes.pop(name) for role, name in processes(run) if role in ("learner", "generator")}
        if run.device == "cuda":
            together = _sharing(together)
        return Bundles("PACK", (Bundle(together), *(Bundle({name: resources}) for name, resources in takes.items())))


@spec
class Split(Placement):
    """Learner and generators have accelerators of their own; every process takes a core."""

    def bundles(self, run: Run) -> Bundles:
        return Bundles("SPREAD", tuple(Bundle({name: resources}) for name, resources in defaults(run).items()))


@spec
class Placed(Placement):
    """Each role as a file says it: ``[learner]``, ``[rank]``, ``[generator]``, ``[reward]``, ``[reference]``, ``[evaluator]``.

    With ``[rank]`` each rank of the learner but the first is placed by itself; without, all are on the learner's node.
    """

    roles: Mapping[str, Resources] = field(default_factory=dict)
    """Resources of one process, by role; a role that is not named takes a core."""

    def __post_init__(self) -> None:
        unknown = [role for role in self.roles if role not in roles()]
        require(not unknown, f"placement: unknown role {', '.join(unknown)}; roles are {', '.join(roles())}")

    def places(self, role: str) -> bool:
        return role in self.roles

    def bundles(self, run: Run) -> Bundles:
        """Each process as the file says it; those with the same word for their node share a bundle."""
        groups: dict[str, dict[str, Resources]] = {}
        usual = defaults(run)
        for role, name in processes(run):
            resources = self.roles.get(role) or usual[name]
            groups.setdefault(f"node {resources.node}" if resources.node else name, {})[name] = resources
        return Bundles("PACK", tuple(Bundle(group) for group in groups.values()))


def defaults(run: Run) -> dict[str, Resources]:
    """A core for each process, and with ``device="cuda"`` the accelerators that its role computes on."""
    cuda = run.device == "cuda"
    return {name: Resources(gpus=roles()[role].gpus(run) if cuda else 0.0) for role, name in processes(run)}


def _sharing(together: Mapping[str, Resources]) -> dict[str, Resources]:
    """One accelerator between the learner, which has half of it, and its generators."""
    several = [name for name, resources in together.items() if resources.gpus > 1]
    require(
        not several,
        f"placement Colocate shares one accelerator, and {', '.join(several)} takes several; use Split, or Placed with a file",
    )
    half = {name: 0.5 if name == "learner" else 0.5 / (len(together) - 1) for name in together}
    return {name: replace(resources, gpus=half[name]) for name, resources in together.items()}

"""What lands where: the registered specs that ``roles.placement`` takes, for a run on a cluster, and what follows from them.

A cluster reserves *bundles*: each is on one node, so processes that must share a node share a bundle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

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


@spec
class Colocate:
    """Learner and generators share nodes, and the same accelerators by turns."""


@spec
class Split:
    """Learner and generators have accelerators of their own; every process takes a core."""


@spec
class Placed:
    """Each role as a file says it: ``[learner]``, ``[rank]``, ``[generator]``, ``[reward]``, ``[reference]``, ``[evaluator]``.

    With ``[rank]`` each rank of the learner but the first is placed by itself; without, all are on the learner's node.
    """

    roles: Mapping[str, Resources] = field(default_factory=dict)
    """Resources of one process, by role; a role that is not named takes a core."""

    def __post_init__(self) -> None:
        unknown = [role for role in self.roles if role not in ROLES]
        require(not unknown, f"placement: unknown role {', '.join(unknown)}; roles are {', '.join(ROLES)}")


ROLES = ("learner", "rank", "generator", "reward", "reference", "evaluator")

PLACEMENTS = (Colocate, Split, Placed)
"""What ``roles.placement`` may be."""


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


def processes(run: Run) -> Iterator[tuple[str, str]]:
    """(role, name) of all processes that a run has in any of its stages, beside the supervisor."""
    online = [stage for stage in run.stages if hasattr(stage, "rewards")]
    yield "learner", "learner"
    if ranks_apart(run):
        yield from (("rank", f"rank-{number}") for number in range(1, most_ranks(run)))
    counts: dict[str, int] = {}
    if online:
        counts |= {"generator": run.roles.generators, "reward": run.roles.rewards}
    if any("reference" in getattr(stage.algorithm, "needs", ()) for stage in online):
        counts["reference"] = run.roles.references
    if run.roles.evaluator and any(stage.evaluation is not None for stage in online):
        counts["evaluator"] = 1
    for role, count in counts.items():
        yield from ((role, f"{role}-{index}") for index in range(count))


def most_ranks(run: Run) -> int:
    """Ranks of the learner in the stage that has most of them."""
    return max((getattr(stage.learner.strategy, "ranks", 1) for stage in run.stages if hasattr(stage, "learner")), default=1)


def ranks_apart(run: Run) -> bool:
    """Whether the ranks of the learner are placed one by one."""
    return run.runtime == "ray" and isinstance(run.roles.placement, Placed) and "rank" in run.roles.placement.roles


def bundles(run: Run) -> Bundles:
    """What lands where.

    Raises:
        SpecError: learner and generators cannot share an accelerator, because either takes several.
    """
    chosen: Any = run.roles.placement
    if isinstance(chosen, Placed):
        return _placed(run, chosen)
    takes = {name: _default(run, role) for role, name in processes(run)}
    if isinstance(chosen, Split):
        return Bundles("SPREAD", tuple(Bundle({name: resources}) for name, resources in takes.items()))
    together = {name: takes.pop(name) for role, name in processes(run) if role in ("learner", "generator")}
    if run.device == "cuda":
        together = _sharing(together)
    return Bundles("PACK", (Bundle(together), *(Bundle({name: resources}) for name, resources in takes.items())))


def _placed(run: Run, chosen: Placed) -> Bundles:
    """Each process as the file says it; those with the same word for their node share a bundle."""
    groups: dict[str, dict[str, Resources]] = {}
    for role, name in processes(run):
        resources = chosen.roles.get(role) or _default(run, role)
        groups.setdefault(f"node {resources.node}" if resources.node else name, {})[name] = resources
    return Bundles("PACK", tuple(Bundle(group) for group in groups.values()))


def _default(run: Run, role: str) -> Resources:
    """A core, and with ``device="cuda"`` the accelerators that the role computes on."""
    gpus = 0.0
    if run.device == "cuda":
        ranks = 1 if ranks_apart(run) else most_ranks(run)
        rewards = [reward for stage in run.stages for reward in getattr(stage, "rewards", ())]
        models = any(reward.function.startswith(("model:", "process:")) for reward in rewards)
        engine = getattr(run.roles.engine, "tensor_parallel", 1)
        gpus = {"learner": float(ranks), "generator": float(engine), "reward": float(models)}.get(role, 1.0)
    return Resources(gpus=gpus)


def _sharing(together: Mapping[str, Resources]) -> dict[str, Resources]:
    """One accelerator between the learner, which has half of it, and its generators."""
    several = [name for name, resources in together.items() if resources.gpus > 1]
    require(
        not several,
        f"placement Colocate shares one accelerator, and {', '.join(several)} takes several; use Split, or Placed with a file",
    )
    half = {name: 0.5 if name == "learner" else 0.5 / (len(together) - 1) for name in together}
    return {name: replace(resources, gpus=half[name]) for name, resources in together.items()}

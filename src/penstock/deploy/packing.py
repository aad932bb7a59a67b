"""How many nodes a run takes, what is on each, and what of them it needs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.config.spec import require
from penstock.deploy.options import Options

if TYPE_CHECKING:
    from penstock.config.run import Run

USUAL_GPUS, USUAL_CPUS = 8, 8
"""GPUs of a node at most, and its cores at least, unless it is said how many it has."""


@dataclass
class Node:
    """Processes that come to one node, and what they take there."""

    names: list[str] = field(default_factory=list)
    gpus: float = 0.0
    cpus: float = 0.0

    def add(self, names: Sequence[str], gpus: float, cpus: float) -> None:
        self.names += names
        self.gpus, self.cpus = round(self.gpus + gpus, 4), round(self.cpus + cpus, 4)


@dataclass(frozen=True)
class Layout:
    """Nodes of a run, all alike, the GPUs and cores of each, and what comes to each as the cluster is likely to place it."""

    nodes: int
    gpus: int
    cpus: int
    packed: tuple[Node, ...]

    def lines(self) -> Iterator[str]:
        """A table: what each node holds, and what of it is needed."""
        for number, node in enumerate(self.packed, 1):
            gpus = f"{node.gpus:g} of {self.gpus} GPUs, " if self.gpus else ""
            yield f"node {number}: {gpus}{node.cpus:g} of {self.cpus} cores: {', '.join(_ranges(node.names))}"
        needed = sum(node.gpus for node in self.packed)
        spare = self.nodes * self.gpus - needed
        if spare >= 1:
            yield f"{self.nodes * self.gpus} GPUs are asked for and {needed:g} needed: all nodes are alike"


def _ranges(names: Sequence[str]) -> list[str]:
    """``generator-0``, ``generator-1``, ``generator-2`` as ``generator-0 to 2``."""
    found: dict[str, list[int]] = {}
    for name in names:
        kind, _, number = name.rpartition("-")
        found.setdefault(kind if number.isdecimal() else name, []).extend([int(number)] if number.isdecimal() else [])
    texts = []
    for kind, numbers in found.items():
        row = numbers == list(range(numbers[0], numbers[-1] + 1)) and len(numbers) > 1 if numbers else False
        texts += [f"{kind}-{numbers[0]} to {numbers[-1]}"] if row else [f"{kind}-{n}" for n in numbers] or [kind]
    return texts


def layout(run: Run, options: Options) -> Layout:
    """How many nodes a run takes.

    Raises:
        SpecError: it does not fit on the nodes that were asked for; says what does.
    """
    from penstock.config.roles import most_ranks, processes, roles

    require(
        run.device == "cuda" or not options.gpus,
        f'--gpus {options.gpus} would be left alone: device="{run.device}" takes no GPU in a cluster; add --device cuda',
    )
    if run.runtime == "ray":
        return _packed(run, options)
    require(
        options.nodes <= 1,
        f'--nodes {options.nodes}: runtime="{run.runtime}" lives on one node; add --runtime ray, or leave --nodes out',
    )
    node = Node()
    for role, name in processes(run) if run.runtime == "procs" else [("learner", "the run")]:
        gpus = float(roles()[role].gpus(run) if run.runtime == "procs" else most_ranks(run))
        node.add([name], gpus if run.device == "cuda" else 0.0, 1.0 if run.runtime == "procs" else most_ranks(run))
    require(
        not options.gpus or options.gpus >= most_ranks(run),
        f"--gpus {options.gpus}: the learner has {most_ranks(run)} ranks; give the node as many GPUs",
    )
    return Layout(1, options.gpus or math.ceil(node.gpus), options.cpus or max(USUAL_CPUS, math.ceil(node.cpus)), (node,))


def _packed(run: Run, options: Options) -> Layout:
    """The placement's bundles on as few nodes as hold them, all alike, with as few GPUs as that leaves."""
    bundles = run.roles.placement.bundles(run).bundles
    custom = sorted({name for bundle in bundles for name in bundle.total} - {"CPU", "GPU"})
    require(
        not custom,
        f"the placement asks for nodes with {', '.join(custom)}, and the printed ones have none; leave [role] custom out",
    )
    needed = [(bundle.total.get("GPU", 0.0), bundle.total.get("CPU", 0.0), list(bundle.processes)) for bundle in bundles]
    largest, most = max(gpu for gpu, _, _ in needed), max(cpu for _, cpu, _ in needed)
    limit = options.gpus or USUAL_GPUS
    require(
        largest <= limit,
        f"{largest:g} GPUs of one node are needed, and a node has {limit}; give it more with --gpus {largest:g}, fewer ranks, "
        "or a --placement file with [rank], which places each rank by itself",
    )
    require(
        not options.cpus or most <= options.cpus,
        f"{most:g} cores of one node are needed, and a node has {options.cpus}; add --cpus {most:g}",
    )
    total = math.ceil(sum(gpu for gpu, _, _ in needed))
    sizes = [options.gpus] if options.gpus else range(math.ceil(largest), min(USUAL_GPUS, total) + 1)
    tried = {size: _pack(needed, size, 0, options.nodes) for size in sizes}
    gpus = min(tried, key=lambda size: (len(tried[size]), size))
    nodes = _pack(needed, gpus, options.cpus or (0 if gpus else max(USUAL_CPUS, math.ceil(most))), options.nodes)
    fewest, cpus = len(tried[gpus]), max(math.ceil(node.cpus) for node in (tried[gpus] if gpus else nodes))
    require(
        not gpus or len(nodes) <= fewest,
        f"--cpus {options.cpus}: {len(nodes)} nodes of {gpus} GPUs would be asked for, where {fewest} with {cpus} cores each "
        f"hold everything; add --cpus {cpus}, or leave --cpus out",
    )
    require(
        not options.nodes or options.nodes >= len(nodes),
        f"--nodes {options.nodes}: the placement needs {len(nodes)} nodes of {gpus} GPUs and {options.cpus or cpus} cores each",
    )
    return Layout(options.nodes or len(nodes), gpus, options.cpus or max(USUAL_CPUS, cpus), tuple(nodes))


def _pack(needed: Sequence[tuple[float, float, list[str]]], gpus: int, cpus: int, count: int) -> list[Node]:
    """The largest first, each on the first node with room; what needs no GPU on the one with the fewest cores taken.

    ``cpus``: cores of a node, 0 for as many as it takes; ``count``: nodes that there are anyway.
    """
    nodes = [Node() for _ in range(count)]
    for gpu, cpu, names in sorted(needed, key=lambda one: one[:2], reverse=True):
        fits = [node for node in nodes if node.gpus + gpu <= gpus and (not cpus or node.cpus + cpu <= cpus)]
        if not fits:
            nodes.append(Node())
            fits = nodes[-1:]
        (fits[0] if gpu else min(fits, key=lambda node: node.cpus)).add(names, gpu, cpu)
    return nodes

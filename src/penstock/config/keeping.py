"""What keeps a run going: how often it becomes durable, and which processes carry it."""

from __future__ import annotations

from typing import Literal

from penstock.config.engines import Embedded, Engine
from penstock.config.placement import Placement, Split
from penstock.config.spec import AnySpec, require, spec


@spec
class CheckpointSpec:
    """How often a run becomes durable and what is kept."""

    every: int = 50
    """Steps between checkpoints (0: only at the end of a stage)."""
    keep: int = 2
    """Newest checkpoints kept, besides the best one and the last good one."""
    store: str = ""
    """URL of an object store that the run's folder is mirrored into (s3://BUCKET/PREFIX, file:///MOUNT …), for another machine
    to go on from; empty: none. Credentials come from the environment."""

    def __post_init__(self) -> None:
        require(self.every >= 0, f"checkpoint.every={self.every} is negative; 0 saves at the end of a stage only")
        require(self.keep >= 1, f"checkpoint.keep={self.keep}; at least one must stay")
        whole = not self.store or ("://" in self.store and "::" not in self.store and "?" not in self.store)
        require(whole, f"checkpoint.store={self.store} is no URL of a store; use s3://BUCKET/PREFIX or file:///FOLDER")


@spec
class RolesSpec:
    """The processes of ``runtime="procs"`` and ``runtime="ray"`` other than the learner."""

    generators: int = 1
    """Processes that generate, each with a model and a cache of its own."""
    rewards: int = 1
    """Processes that score groups."""
    references: int = 0
    """Processes that compute the log-probs of the reference model; 0: the learner does."""
    evaluator: bool = False
    """Whether a process of its own evaluates while training goes on; the learner does it itself otherwise, and at both ends
    of a stage."""
    channel: Literal["shared memory", "disk", "process group"] = "shared memory"
    """How weights travel to the generators; by ``process group`` they go straight to vLLM's workers, if these generate."""
    engine: AnySpec = Embedded()
    """What generates: Embedded, VLLM, SGLang or Served (``docs/backends.md``)."""
    placement: AnySpec = Split()
    """What lands where in a cluster: Colocate, Split or Placed (``docs/placement.md``)."""

    def __post_init__(self) -> None:
        for name, kind in (("engine", Engine), ("placement", Placement)):
            value = getattr(self, name)
            names = ", ".join(one.__name__ for one in kind.__subclasses__())
            require(isinstance(value, kind), f"roles.{name}={type(value).__name__} is none; use one of: {names}")
        for count in ("generators", "rewards"):
            require(getattr(self, count) >= 1, f"roles.{count}={getattr(self, count)}; at least 1")
        require(self.references >= 0, f"roles.references={self.references} is negative; 0: the learner computes them")

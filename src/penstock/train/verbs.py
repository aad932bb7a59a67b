"""What every rank of a learner can be asked to do. Rank 0 calls these functions itself; the others are sent their arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from penstock.config.learner import LearnerSpec
from penstock.config.strategies import DDP, FSDP2
from penstock.core.errors import ModelError
from penstock.core.types import FloatArray, Metrics
from penstock.models.language_model import LanguageModel
from penstock.models.language_policy import LanguagePolicy
from penstock.train.learner import LearnerPlan
from penstock.train.part import Item, Part, Replica, Table
from penstock.train.skeleton import Shape, build, fill, materialise, tensors_of
from penstock.train.world import World


class Parts:
    """This rank's parts of all learners, by number."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.held: dict[int, Any] = {}


def make(parts: Parts, learner: int, shape: Shape, spec: LearnerSpec, plan: LearnerPlan, model: Any = None) -> None:
    """Build this rank's part. ``model`` is the whole one, on rank 0 only."""
    parts.held[learner] = part_of(parts.world, shape, spec, plan, model)


def part_of(world: World, shape: Shape, spec: LearnerSpec, plan: LearnerPlan, model: LanguageModel | None) -> Part:
    """A part by the strategy of a spec."""
    source = None if model is None else tensors_of(model)
    if isinstance(spec.strategy, DDP):
        own = model if model is not None else build(shape, spec, plan.seed)
        materialise(own, world.device)
        fill(tensors_of(own), source, world)
        return Replica(LanguagePolicy(own, shape.temperature), spec, world, plan)
    kind = type(spec.strategy).__name__
    if shape.heads:
        raise ModelError(f'strategy={kind} does not shard heads such as "{shape.heads[0][0]}"; set strategy=DDP')
    if shape.face != LanguageModel.__name__:
        raise ModelError(
            f"strategy={kind} gathers modules when they are called, and an encoder-decoder's are not; set strategy=DDP"
        )
    own = build(shape, replace(spec, dtype="float32"), plan.seed)  # shards are float32 whatever is computed in
    policy = LanguagePolicy(own, shape.temperature)
    if isinstance(spec.strategy, FSDP2):
        from penstock.train.fsdp import ShardedPart

        return ShardedPart(policy, spec, world, source, plan)
    from penstock.train.deepspeed import ZeroPart

    return ZeroPart(policy, spec, world, source, plan)


def accumulate(parts: Parts, learner: int, item: Item | None, needs: frozenset[str]) -> Metrics:
    found: Metrics = parts.held[learner].accumulate_item(item, needs)
    return found


def step(parts: Parts, learner: int) -> Metrics:
    found: Metrics = parts.held[learner].step()
    return found


def numbers(parts: Parts, learner: int, batch: Any, needs: frozenset[str]) -> dict[str, FloatArray]:
    found: dict[str, FloatArray] = parts.held[learner].numbers_of(batch, needs)
    return found


def whole(parts: Parts, learner: int, names: list[str]) -> list[Tensor] | None:
    """Whole arrays, on rank 0."""
    found = [parts.held[learner].whole(name) for name in names]
    return found if parts.world.rank == 0 else None


def load(parts: Parts, learner: int, table: Table, values: dict[str, Any], source: Mapping[str, Any] | None = None) -> None:
    parts.held[learner].load_from_first(table, source, values)


def drop(parts: Parts, learner: int) -> None:
    parts.held.pop(learner, None)


VERBS: Mapping[str, Callable[..., Any]] = {
    "make": make,
    "accumulate": accumulate,
    "step": step,
    "score": numbers,
    "gather": whole,
    "load": load,
    "drop": drop,
}


def perform(parts: Parts, verb: str, given: Mapping[str, Any]) -> Any:
    """Carry one verb out."""
    return VERBS[verb](parts, **given)

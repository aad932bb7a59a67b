"""What every rank of a learner can be asked to do. Rank 0 does it itself; the others are sent the verb and its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock.config.learner import LearnerSpec
from penstock.config.strategies import DDP, FSDP2, refuse_shape
from penstock.core.errors import ModelError
from penstock.models.language_model import LanguageModel
from penstock.models.language_policy import LanguagePolicy
from penstock.train.learner import LearnerPlan
from penstock.train.part import Part, Replica
from penstock.train.skeleton import Shape, build, tensors_of
from penstock.train.world import World

VERBS = {
    "accumulate": "accumulate_item",
    "flush": "flush",
    "step": "optimise",
    "score": "numbers_of_item",
    "gather": "gather",
    "load": "load_from_first",
}
"""Methods of :class:`Part` by the verb that asks for them."""

UNANSWERED = frozenset({"accumulate"})
"""Verbs that give nothing and refuse nothing, so that rank 0 need not wait for what the others say."""


class Parts:
    """This rank's parts of all learners, by number."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.held: dict[int, Part] = {}

    def perform(self, verb: str, learner: int, **given: Any) -> Any:
        """Carry one verb out: build this rank's part of a learner, give it up, or what the part does itself."""
        if verb == "make":
            self.held[learner] = part_of(self.world, **given)
        elif verb == "drop":
            self.held.pop(learner, None)
        else:
            return getattr(self.held[learner], VERBS[verb])(**given)


def part_of(world: World, shape: Shape, spec: LearnerSpec, plan: LearnerPlan, model: LanguageModel | None = None) -> Part:
    """A part by the strategy of a spec. ``model`` is the whole one, on rank 0 only."""
    source: Mapping[str, Any] | None = None if model is None else tensors_of(model)
    if isinstance(spec.strategy, DDP):
        own = model if model is not None else build(shape, spec, plan.seed)
        return Replica(LanguagePolicy(own, shape.temperature), spec, world, plan, source)
    if shape.heads:
        kind = type(spec.strategy).__name__
        raise ModelError(f'strategy={kind} does not shard heads such as "{shape.heads[0][0]}"; set strategy=DDP')
    if shape.encoder:
        refuse_shape(spec.strategy, 0, 0, encoder=True)
    own = build(shape, replace(spec, dtype="float32"), plan.seed)  # shards are float32 whatever is computed in
    policy = LanguagePolicy(own, shape.temperature)
    if isinstance(spec.strategy, FSDP2):
        from penstock.train.fsdp import ShardedPart

        return ShardedPart(policy, spec, world, plan, source)
    from penstock.train.deepspeed import ZeroPart

    return ZeroPart(policy, spec, world, plan, source)

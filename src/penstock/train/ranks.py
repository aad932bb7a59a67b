"""A learner on several ranks behind the face of one: this process is rank 0, the loops see no other."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from penstock.config.learner import LearnerSpec
from penstock.config.strategies import DDP, DeepSpeed, OneDevice
from penstock.core.contracts import FULL_STEP, Batch, Caution, Denominator, Loss, State
from penstock.core.errors import DeviceError
from penstock.core.types import FloatArray, Metrics, added
from penstock.models.language_policy import LanguagePolicy
from penstock.train.fleet import fleet_of
from penstock.train.learner import DeviceLearner, LearnerPlan, Scoring
from penstock.train.part import Item, Part, Table
from penstock.train.skeleton import hollow, materialise, shape_of
from penstock.train.world import buckets

_numbers = itertools.count()


class RankedLearner(Scoring):
    """Implements the ``Learner`` contract on ``spec.strategy.ranks`` processes.

    Micro-batches go to the copies of the model in turn, so ``accumulate`` keeps one until each copy has its own; ``flush`` and
    ``step`` carry out the rest next to empty ones. With a whole copy on each rank, ``model`` is the trained one. With shards it
    is a copy for generation, evaluation and saving, which :meth:`refresh` brings up to date; where ``plan`` says that this
    process neither generates nor evaluates, it has no memory from the first step to then.

    Raises:
        RoleError: a rank does not start, dies or does not answer; from every verb.
    """

    policy: LanguagePolicy

    def __init__(self, policy: LanguagePolicy, spec: LearnerSpec, plan: LearnerPlan) -> None:
        super().__init__(policy, spec.token_budget)
        self.model, self.spec = policy.model, spec
        policy.prepare(spec, plan.seed)
        model = policy.model
        strategy: Any = spec.strategy
        self._span: int = strategy.span
        self.copies: int = strategy.ranks // strategy.span
        self._aliased = isinstance(strategy, DDP)
        self._fresh = True
        self._keeps = self._aliased or plan.whole
        self._waiting: list[Item] = []
        self.fleet = fleet_of(strategy.ranks, model.device)
        self.fleet.hold()
        if isinstance(strategy, DeepSpeed):
            self.fleet.keep()
        self.number = next(_numbers)
        self._let_go = weakref.finalize(self, self.fleet.release, self.number)
        common = {"learner": self.number, "shape": shape_of(policy), "spec": spec, "plan": plan}
        self.fleet.call("make", {**common, "model": model}, [common] * (strategy.ranks - 1))
        self._part: Part = self.fleet.parts.held[self.number]

    def close(self) -> None:
        """Give the ranks up; the last learner to do so ends them."""
        self._let_go()

    def _call(self, verb: str, **given: Any) -> list[Any]:
        return self.fleet.call(verb, {"learner": self.number, **given})

    def _each(self, verb: str, items: Sequence[Any], name: str, **given: Any) -> list[Any]:
        """A verb with an argument of its own for each copy (all ranks of a copy get the same); the answers of the copies."""
        padded = [*items, *[None] * (self.copies - len(items))]
        asked = [{"learner": self.number, name: item, **given} for item in padded for _ in range(self._span)]
        return self.fleet.call(verb, asked[0], asked[1:])[:: self._span]

    def accumulate(self, batch: Batch, loss: Loss, denominator: Denominator) -> None:
        """Forward and backward one micro-batch on each copy, once each has one."""
        if self._waiting and (len(self._waiting) == self.copies or self._waiting[0][1].needs != loss.needs):
            self._send(last=False)
        self._waiting.append((batch, loss, denominator))

    def _send(self, last: bool) -> None:
        """Carry out the micro-batches that wait, next to empty ones."""
        items, self._waiting = self._waiting, []
        self._each("accumulate", items, "item", needs=items[0][1].needs, last=last)

    def flush(self) -> Metrics:
        """Carry out the micro-batches that wait; gives the metrics of all since the last flush.

        Raises:
            NonFiniteError: a loss is not finite; gradients gathered so far are dropped on all ranks.
        """
        if not self._waiting:
            return {}
        self._send(last=True)
        return reduce(added, self._call("flush")[:: self._span], Metrics())

    def step(self, caution: Caution = FULL_STEP) -> Metrics:
        """Clip by the norm over all ranks, optimise, advance the schedule."""
        found = self.flush()
        metrics: Metrics = self._call("step", caution=caution)[0]
        self._fresh = self._aliased
        if not self._keeps and self.model.device.type != "meta":
            hollow(self.model)
        return found | metrics

    def numbers_of(self, batches: Sequence[Batch], needs: frozenset[str]) -> Iterator[Mapping[str, FloatArray]]:
        """Outputs of micro-batches, which are spread over the copies."""
        for start in range(0, len(batches), self.copies):
            asked = batches[start : start + self.copies]
            yield from self._each("score", asked, "batch", needs=needs)[: len(asked)]

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor) of the policy, one by one, gathered from the shards bucket by bucket where there are any."""
        if self._aliased:
            yield from self.policy.weights()
            return
        own = dict(self.model.policy_weights())
        if self._fresh:
            yield from ((name, tensor.detach()) for name, tensor in own.items())
            return
        prefix = "network."
        for name, tensor in self._gathered([prefix + name for name in own]):
            yield name.removeprefix(prefix), tensor

    def refresh(self) -> None:
        """Bring ``model`` up to date with the shards: before it generates, is evaluated or is saved."""
        if self._fresh:
            return
        if not self._keeps:
            materialise(self.model, torch.device("cpu"))
        for _ in self._gathered([name for name, _ in self.model.named_parameters()]):
            pass
        self._fresh = True

    @torch.no_grad()
    def _gathered(self, names: list[str]) -> Iterator[tuple[str, Tensor]]:
        """Parameters from the shards, written into ``model`` on the way where it has memory."""
        own = dict(self.model.named_parameters())
        for bucket in buckets(names, lambda name: own[name].nbytes):
            (arrays, *_) = self._call("gather", names=[f"parameter.{name}" for name in bucket])
            for name, array in zip(bucket, arrays, strict=True):
                yield name, array if own[name].is_meta else own[name].copy_(array).detach()

    def state(self) -> State:
        """The whole state, in the form of a learner on one device; sharded arrays are gathered when they are read."""
        if self._aliased:
            return self._part.state()
        arrays: Any = GatheredArrays(self, self._part.table(), self._part.noise.get_state())
        return State(arrays, {"updates": self._part.updates})

    def load_state(self, state: State) -> None:
        """Take a state back that a learner on any number of ranks gave."""
        self._waiting = []
        source = {name: torch.as_tensor(array) for name, array in state.arrays.items()}
        table = {name: (str(array.dtype).removeprefix("torch."), tuple(array.shape)) for name, array in source.items()}
        common = {"learner": self.number, "table": table, "values": dict(state.values)}
        self.fleet.call("load", {**common, "source": source}, [common] * (self.fleet.size - 1))
        self._fresh = self._aliased
        if self._keeps:
            self.refresh()


class GatheredArrays(Mapping[str, Tensor]):
    """Arrays of a sharded state: each is gathered when it is read, so never all at once.

    ``table`` tells type and shape before that. Read them before the next step.
    """

    def __init__(self, learner: RankedLearner, table: Table, noise: Tensor) -> None:
        self.learner, self.noise = learner, noise
        self.table: Table = {**table, "noise": ("uint8", tuple(noise.shape))}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.table:
            raise KeyError(name)
        if name == "noise":
            return self.noise
        array: Tensor = self.learner._call("gather", names=[name])[0][0]
        return array.cpu()

    def __iter__(self) -> Iterator[str]:
        return iter(self.table)

    def __len__(self) -> int:
        return len(self.table)


AnyLearner = DeviceLearner | RankedLearner


def learner_of(policy: Any, spec: LearnerSpec, plan: LearnerPlan) -> AnyLearner:
    """The learner of a spec's strategy."""
    ranks = spec.strategy.ranks
    if isinstance(spec.strategy, OneDevice):
        return DeviceLearner(policy, spec, plan)
    if policy.device.type == "cuda" and torch.cuda.device_count() < ranks:
        raise DeviceError(f"strategy.ranks={ranks} needs as many CUDA devices; this machine has {torch.cuda.device_count()}")
    return RankedLearner(policy, spec, plan)

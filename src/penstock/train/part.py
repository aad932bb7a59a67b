"""One rank's part of a learner. Its verbs are carried out by all ranks together, in the same order.

:class:`Part` is what every strategy does; :class:`Replica` is data parallelism with a whole copy on each rank (DDP).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from itertools import groupby
from typing import Any

import torch
import torch.distributed as distributed
from torch import Tensor, nn

from penstock.config.learner import LearnerSpec
from penstock.core.contracts import FULL_STEP, Batch, Caution, Denominator, Loss, Outputs, State
from penstock.core.errors import NonFiniteError, PenstockError, TrainingError
from penstock.core.types import FloatArray, Metrics
from penstock.models.language_policy import LanguagePolicy
from penstock.models.packing import idle_batch
from penstock.train.learner import DeviceLearner, LearnerPlan
from penstock.train.optimizer import Masters
from penstock.train.skeleton import fill, materialise, tensors_of
from penstock.train.world import World, buckets

Sent = tuple[Any, Tensor, list[Tensor]]
"""What is on its way: the sum, its tensor, and the masters whose gradients it holds, one after the other; then, for each of
them, on how many ranks there is a gradient."""


class Reduction:
    """The sum over ranks of the gradients of a replica's masters, while the last backward pass of a step still runs.

    Parameters are put into buckets in the reverse of their order, which is about the order in which gradients come. A bucket
    goes out as soon as all of its gradients are there, in the same order on all ranks (Li et al. 2020, arXiv:2006.15704).
    """

    def __init__(self, masters: Masters) -> None:
        pairs = list(zip(masters.parameters.values(), masters.masters, strict=True))[::-1]
        kinds = [list(same) for _, same in groupby(pairs, lambda pair: pair[1].dtype)]
        self.members = [bucket for kind in kinds for bucket in buckets(kind, lambda pair: pair[1].nbytes)]
        self._place = {id(parameter): place for place, bucket in enumerate(self.members) for parameter, _ in bucket}
        self._missing: list[int] = []
        """How many gradients each bucket waits for; none outside of a last backward pass."""
        self._sent: list[Sent] = []
        for parameter, _ in pairs:
            parameter.register_post_accumulate_grad_hook(self._arrived)

    @property
    def summed(self) -> bool:
        """Whether gradients are sums over the ranks already, or on their way to be."""
        return bool(self._sent)

    def begin(self) -> None:
        """The next backward pass of this rank, if it has one, is the last before the step."""
        self._missing = [len(bucket) for bucket in self.members]

    def end(self) -> None:
        """Send what has not been sent, because its gradients did not come in this pass."""
        while len(self._sent) < len(self.members):
            self._send()
        self._missing = []

    def _arrived(self, parameter: Tensor) -> None:
        if self._missing:
            self._missing[self._place[id(parameter)]] -= 1
            while len(self._sent) < len(self.members) and not self._missing[len(self._sent)]:
                self._send()

    @torch.no_grad()
    def _send(self) -> None:
        """Send the next bucket."""
        held = [master for _, master in self.members[len(self._sent)]]
        here = held[0].new_ones(len(held))
        for place, master in enumerate(held):
            if master.grad is None:
                here[place] = 0
                master.grad = torch.zeros_like(master)
        flat = torch.cat([*(master.grad.flatten() for master in held if master.grad is not None), here])
        for master in held:
            master.grad = None
        self._sent.append((distributed.all_reduce(flat, async_op=True), flat, held))

    def finish(self) -> None:
        """Wait for the sums, which become the gradients; one that no rank has stays None."""
        sent, self._sent = self._sent, []
        for work, _, _ in sent:
            work.wait()
        ranks = iter([count for _, flat, held in sent for count in flat[-len(held) :].tolist()])
        for _, flat, held in sent:
            *sums, _ = flat.split([*(master.numel() for master in held), len(held)])
            for master, total in zip(held, sums, strict=True):
                master.grad = total.view_as(master) if next(ranks) else None


Item = tuple[Batch, Loss, Denominator]
Table = Mapping[str, tuple[str, tuple[int, ...]]]
"""Type (as torch names it) and whole shape of arrays by name."""

GOOD, NOT_FINITE, REFUSED = 0.0, 1.0, 2.0


class RefusedElsewhere(TrainingError):
    """Another rank refused its micro-batch; what it said is the error to raise."""


class Pass(nn.Module):
    """One forward pass as a module, so that what no block holds is gathered around the whole of it."""

    def __init__(self, policy: LanguagePolicy) -> None:
        super().__init__()
        self.model, self.policy = policy.model, policy

    def forward(self, tensors: Any, needs: frozenset[str]) -> dict[str, Tensor]:
        return self.policy.run(tensors, needs)


class Part(DeviceLearner, ABC):
    """A learner on one rank, over a language policy whose model is this rank's own."""

    policy: LanguagePolicy

    together = True
    """Whether a forward pass needs all ranks, so that one without a micro-batch computes as well."""

    def __init__(
        self, policy: LanguagePolicy, spec: LearnerSpec, world: World, plan: LearnerPlan, source: Mapping[str, Tensor] | None
    ) -> None:
        """``source`` holds rank 0's whole tensors by name; on the other ranks it is None."""
        self.world, self.model, self._source = world, policy.model, source
        self._problem: PenstockError | None = None
        super().__init__(policy, spec, plan)
        self._source, policy.replays = None, spec.replay_routes
        policy.narrow = policy.narrow and not self.together  # modules that are gathered in blocks cannot be probed by one rank

    def accumulate_item(self, item: Item | None, needs: frozenset[str], last: bool) -> None:
        """Forward and backward this rank's micro-batch, or an empty one next to those of the others.

        ``last``: no other follows before the gradients are asked for. The ranks do not agree on anything here; what a loss
        refuses is raised by :meth:`flush`.
        """
        needs = self.needed(needs)
        outputs: Outputs | None = None
        value: Tensor | None = None
        try:
            if item is not None:
                outputs = self.outputs(item[0], needs)
                value, metrics = self.loss_of(outputs, *item)
                self.note(value, metrics)
        except PenstockError as error:
            self._problem = self._problem or error
        if value is None and self.together:
            value = _nothing(outputs or self.outputs(idle_batch(), needs))
        if value is not None:
            self.backward(value)

    def flush(self) -> Metrics:
        """Metrics of this rank's micro-batches since the last flush; the ranks agree on whether all is well.

        Raises:
            NonFiniteError: the loss of some rank is not finite; gradients gathered so far are dropped on all.
            TrainingError: a loss refuses its micro-batch, on all ranks likewise.
        """
        value, found = self.read()
        problem, self._problem = self._problem, None
        worst = self.world.highest(REFUSED if problem is not None else GOOD if math.isfinite(value) else NOT_FINITE)
        if worst != GOOD:
            self.masters.drop()
            self.settle()
        if worst == REFUSED:
            raise problem or RefusedElsewhere("another rank refused its micro-batch")
        if worst == NOT_FINITE:
            raise NonFiniteError(f"the loss is not finite at optimizer step {self.updates}; the step was not taken")
        return found

    def backward(self, value: Tensor) -> None:
        """Gradients of this rank's loss."""
        value.backward()

    def numbers_of_item(self, batch: Batch | None, needs: frozenset[str]) -> dict[str, FloatArray]:
        """Outputs of this rank's micro-batch, as :meth:`Scoring.numbers` gives them; none for a rank without one."""
        found: dict[str, FloatArray] = {}
        if batch is not None or self.together:
            found = self.numbers(batch if batch is not None else idle_batch(), needs)
            self.settle()
        return {} if batch is None else found

    def settle(self) -> None:
        """Give up what a pass without a backward pass leaves behind."""

    def table(self) -> Table:
        """Every array of the learner's whole state."""
        return {name: (str(a.dtype).removeprefix("torch."), tuple(a.shape)) for name, a in self.state().arrays.items()}

    @abstractmethod
    def whole(self, name: str) -> Tensor:
        """One whole array of the state, or under ``parameter.NAME`` a parameter; all ranks call it."""

    def share(self, name: str, array: Tensor) -> Tensor:
        """This rank's share of a whole array of the state: all of it, unless parts differ."""
        return array

    def gather(self, names: list[str]) -> list[Tensor] | None:
        """Whole arrays, on rank 0."""
        found = [self.whole(name) for name in names]
        return found if self.world.rank == 0 else None

    @torch.no_grad()
    def load_from_first(self, table: Table, values: dict[str, Any], source: Mapping[str, Any] | None = None) -> None:
        """Take a state that rank 0 has (``source``, on rank 0 only); whole arrays come one by one.

        Raises:
            CheckpointError: it does not fit.
        """
        found: dict[str, Any] = {}
        for name, (kind, shape) in table.items():
            array = torch.as_tensor(source[name]) if source is not None else torch.empty(shape, dtype=getattr(torch, kind))
            array = self.world.from_first(array.detach().to(self.world.device, copy=True))
            found[name] = self.share(name, array).clone() if name != "noise" else array.cpu()
        self.load_state(State(found, values))
        self.settle()


def _nothing(outputs: Outputs) -> Tensor:
    """A loss of 0 that depends on every output."""
    given = [output for output in outputs.values() if output.requires_grad]
    return torch.stack([output.float().sum() * 0.0 for output in given]).sum()


class Replica(Part):
    """A whole copy of the model: ranks sum their gradients during the last backward pass before each step."""

    together = False

    def _made_ready(self) -> Masters:
        materialise(self.model, self.world.device)
        fill(tensors_of(self.model), self._source, self.world)
        masters = super()._made_ready()
        self.reduction = Reduction(masters)
        return masters

    def accumulate_item(self, item: Item | None, needs: frozenset[str], last: bool) -> None:
        if self.reduction.summed:  # it was not the last after all: one rank keeps the sums, all add to them
            self.reduction.finish()
            if self.world.rank:
                self.masters.drop()
        if last:
            self.reduction.begin()
        super().accumulate_item(item, needs, last)
        if last:
            self.reduction.end()

    def flush(self) -> Metrics:
        try:
            return super().flush()
        except PenstockError:
            self._forget()
            raise

    def optimise(self, caution: Caution = FULL_STEP) -> Metrics:
        """Wait for the sums of gradients, then clip and optimise on each rank alike."""
        if not self.reduction.summed:
            self.reduction.end()
        self.reduction.finish()
        return super().optimise(caution)

    def load_state(self, state: State) -> None:
        self._forget()
        super().load_state(state)

    def _forget(self) -> None:
        """Drop gradients that are on their way."""
        if self.reduction.summed:
            self.reduction.finish()
            self.masters.drop()

    def whole(self, name: str) -> Tensor:
        return torch.as_tensor(self.state().arrays[name])

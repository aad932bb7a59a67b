"""The one-device learner: runs a loss over a policy's micro-batches, forward and backward, clips and steps; scores rows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.config.run import LearnerSpec
from penstock.core.contracts import FULL_STEP, Batch, Caution, Denominator, Loss, LossOutput, Outputs, Policy, Scores, State
from penstock.core.errors import CheckpointError, NonFiniteError
from penstock.core.types import FloatArray, Metrics, Unit, added
from penstock.models.uploads import uploaded
from penstock.train.optimizer import Masters, rate_at


class Scoring:
    """Scores rows with a policy and no gradient: a frozen reference or reward model, and the learner's own ``score``."""

    def __init__(self, policy: Policy, budget: int = 8192) -> None:
        self.policy, self.budget = policy, budget

    @property
    def gives_values(self) -> bool:
        """Whether it gives the critic's values as well, from the same pass."""
        return self.policy.gives_values

    def lay_out(self, units: Sequence[Unit], coupled: bool = True) -> Sequence[Batch]:
        """Units as the policy's micro-batches under this budget, split between rows unless these are ``coupled``."""
        return self.policy.lay_out(units, self.budget, coupled)

    def score(self, units: Sequence[Unit], needs: frozenset[str]) -> Scores:
        """The outputs named in ``needs``, one entry a row, in order of ``units``."""
        batches = self.lay_out(units, coupled=False)
        return by_row(units, batches, needs, self.policy.per_row, self.numbers_of(batches, needs))

    def numbers_of(self, batches: Sequence[Batch], needs: frozenset[str]) -> Iterator[Mapping[str, FloatArray]]:
        """Outputs of micro-batches, in their order."""
        return (self.numbers(batch, needs) for batch in batches)

    @torch.no_grad()
    def numbers(self, batch: Any, needs: frozenset[str]) -> dict[str, FloatArray]:
        """Outputs of one micro-batch, over its actions or its rows."""
        outputs = self.outputs(batch, needs)
        return {name: outputs[name].float().cpu().numpy() for name in needs}

    def outputs(self, batch: Any, needs: frozenset[str]) -> Outputs:
        """One pass over a laid out batch."""
        return self.policy.outputs(batch, needs)


def by_row(
    units: Sequence[Unit],
    batches: Sequence[Batch],
    needs: frozenset[str],
    per_row: frozenset[str],
    numbers: Iterable[Mapping[str, FloatArray]],
) -> Scores:
    """The outputs of micro-batches, one entry a row, in order of the units that were laid out."""
    rows = sum(len(unit) for unit in units)
    found: dict[str, list[Any]] = {name: [np.zeros(0, np.float32)] * rows for name in needs}
    for batch, named in zip(batches, numbers, strict=True):
        ends = np.cumsum(np.bincount(batch.row_A, minlength=len(batch.row_ids)))[:-1]
        for name, values in named.items():
            parts = values.tolist() if name in per_row else np.split(values, ends)
            for row, part in zip(batch.row_ids, parts, strict=True):
                found[name][row] = part
    return found


@dataclass(frozen=True)
class LearnerPlan:
    """What a learner is made for, besides its spec; the same on every rank."""

    total_steps: int
    """Optimizer steps that the schedule is laid out for."""
    seed: int = 0
    """Seed of dropout, and of the first weights of adapters."""
    whole: bool = True
    """Whether this process computes with the model between steps, to generate or to evaluate. Else rank 0 of shards gives its
    copy up."""


class DeviceLearner(Scoring):
    """Implements the ``Learner`` contract on one device."""

    def __init__(self, policy: Policy, spec: LearnerSpec, plan: LearnerPlan) -> None:
        super().__init__(policy, spec.token_budget)
        self.spec, self.plan = spec, plan
        self.masters = self._made_ready()
        self.updates = 0
        self.noted: list[LossOutput] = []
        """Loss and metrics of each micro-batch since the last flush, on the device."""
        self.noise = torch.Generator().manual_seed(plan.seed)

    def _made_ready(self) -> Masters:
        """Prepare the policy; gives the masters of what is trained."""
        self.policy.prepare(self.spec, self.plan.seed)
        return Masters(self.policy.module, self.spec)

    def accumulate(self, batch: Batch, loss: Loss, denominator: Denominator) -> None:
        """Forward and backward one micro-batch; its loss is already its share of the whole (global denominator)."""
        with self.policy.dropout(self.spec, self.noise):
            value, metrics = self.loss_of(self.outputs(batch, self.needed(loss.needs)), batch, loss, denominator)
        value.backward()
        self.note(value, metrics)

    def note(self, value: Tensor, metrics: Mapping[str, Any]) -> None:
        """Keep a micro-batch's loss and metrics, without what they were computed from, until they are asked for."""
        kept = {name: torch.as_tensor(m, dtype=None if isinstance(m, Tensor) else torch.float64) for name, m in metrics.items()}
        self.noted.append((value.detach(), {name: tensor.detach() for name, tensor in kept.items()}))

    def needed(self, named: frozenset[str]) -> frozenset[str]:
        """What a pass has to compute so that a loss finds the outputs of these names."""
        return named | {"balance"} if self.spec.router_loss else named

    def loss_of(self, outputs: Outputs, batch: Batch, loss: Loss, denominator: Denominator) -> LossOutput:
        """A micro-batch's share of the loss, and its metrics."""
        seen = on_device(batch, self.policy.device)
        value, metrics = loss(outputs, seen.fields, seen, denominator)
        if not self.spec.router_loss:
            return value, metrics
        balance = outputs["balance"] * (len(batch.unit_B) / denominator.rows)
        return value + self.spec.router_loss * balance, {**metrics, "router_balance": balance.detach()}

    def refresh(self) -> None:
        """The policy is what is trained, so there is nothing to bring up to date."""

    def close(self) -> None:
        """There is nothing to give up."""

    def flush(self) -> Metrics:
        """Metrics of the micro-batches since the last flush.

        Raises:
            NonFiniteError: a loss is not finite; gradients gathered so far are dropped.
        """
        value, found = self.read()
        if not math.isfinite(value):
            self.masters.drop()
            raise NonFiniteError(f"the loss is {value} at optimizer step {self.updates}; the step was not taken")
        return found

    def read(self) -> tuple[float, Metrics]:
        """Summed losses and metrics of the micro-batches since the last time: one synchronisation with the device."""
        noted, self.noted = self.noted, []
        values = numbers_of([tensor for value, metrics in noted for tensor in (value, *metrics.values())])
        total, found = 0.0, Metrics()
        for _, metrics in noted:
            value, *more = itertools.islice(values, 1 + len(metrics))
            total += value
            found = added(found, {"loss": value} | dict(zip(metrics, more, strict=True)))
        return total, found

    def step(self, caution: Caution = FULL_STEP) -> Metrics:
        """Clip, optimise, advance the schedule; gives gradient norm and learning rate, and what :meth:`flush` gives."""
        return self.flush() | self.optimise(caution)

    def optimise(self, caution: Caution = FULL_STEP) -> Metrics:
        """The step itself, once the losses are known to be finite."""
        rate = self.rate(caution)
        taken = self.masters.step(rate, caution.limit)
        self.updates += 1
        self.policy.stepped(self.updates)
        return taken | {"learning_rate": rate}

    def rate(self, caution: Caution) -> float:
        """The learning rate of the step that comes next."""
        planned = self.updates if caution.planned is None else caution.planned
        return caution.rate * rate_at(self.spec, planned, self.plan.total_steps)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor) of the policy, one by one."""
        yield from self.policy.weights()

    def state(self) -> State:
        state = self.masters.state()
        state.arrays["noise"] = self.noise.get_state()
        state.arrays |= {f"slow.{name}": tensor for name, tensor in self.policy.slow()}
        state.values = {"updates": self.updates}
        return state

    def load_state(self, state: State) -> None:
        self.masters.load_state(state)
        for name, tensor in self.policy.slow():
            if f"slow.{name}" not in state.arrays:
                raise CheckpointError(f'checkpoint does not fit the model: target head "{name}" is missing')
            tensor.copy_(state.arrays[f"slow.{name}"])
        self.noise.set_state(state.arrays["noise"])
        self.updates = int(state.values["updates"])


def numbers_of(values: Sequence[Tensor]) -> Iterator[float]:
    """Tensors of one number each as Python's numbers; the device is waited for once."""
    tensors = [value.reshape(()) for value in values]
    device = next((tensor.device for tensor in tensors if tensor.device.type != "cpu"), None)
    moved = [tensor.to(device, torch.float64, non_blocking=True) for tensor in tensors]
    return iter(torch.stack(moved).tolist() if moved else ())


def on_device(batch: Batch, device: Any) -> Any:
    """What a loss sees of a batch, as tensors: a namespace with ``row_A`` and ``unit_B`` (int64) and ``fields`` (float32)."""

    return SimpleNamespace(
        row_A=uploaded(batch.row_A, device, torch.int64),
        unit_B=uploaded(batch.unit_B, device, torch.int64),
        fields={name: uploaded(array, device, torch.float32) for name, array in batch.fields.items()},
    )

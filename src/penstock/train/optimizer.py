"""AdamW over float32 masters, whatever the compute type of the parameters and of its own moments."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from penstock.config import optimizers
from penstock.config.learner import LearnerSpec
from penstock.core.contracts import State
from penstock.core.errors import CheckpointError, LargeGradientError, NonFiniteError, TrainingError
from penstock.core.types import Metrics
from penstock.train.adam8bit import AdamW8bit

SAMPLED = 1024
"""Values of each tensor, about, by which it is measured how far a step moved the weights."""


class AdamW:
    """torch's fused AdamW under the verbs that :class:`Masters` uses."""

    def __init__(self, groups: list[dict[str, Any]], rate: float, spec: optimizers.AdamW) -> None:
        self.inner = torch.optim.AdamW(groups, lr=rate, betas=spec.betas, eps=spec.epsilon, fused=True)

    def step(self, rate: float) -> None:
        """One step at a learning rate."""
        for group in self.inner.param_groups:
            group["lr"] = rate
        self.inner.step()

    def arrays(self, master: Tensor) -> dict[str, Tensor]:
        """The state of one tensor: ``step`` and both moments; empty before the first step."""
        return dict(self.inner.state.get(master, {}))

    def load_arrays(self, master: Tensor, arrays: Mapping[str, Tensor]) -> None:
        """Take back what :meth:`arrays` gave; fused AdamW counts steps on the device.

        Raises CheckpointError where they are the state of another optimizer.
        """
        self.inner.state.pop(master, None)
        if arrays and arrays.keys() != {"step", "exp_avg", "exp_avg_sq"}:
            raise CheckpointError("checkpoint does not fit: its moments are those of another optimizer")
        if arrays:
            self.inner.state[master] = {key: value.to(master.device).clone() for key, value in arrays.items()}


@torch.no_grad()
def strided(tensors: Iterable[Tensor], most: int = SAMPLED) -> Tensor:
    """About ``most`` evenly spaced values of each tensor, copied into one ``[N]`` of float32."""
    return torch.cat([t.detach().flatten()[:: max(1, t.numel() // most)].float() for t in tensors])


def groups_of(module: nn.Module, masters: Iterable[tuple[nn.Parameter, Tensor]], decay: float) -> list[dict[str, Any]]:
    """An optimizer's groups of the masters of a module's parameters: weight decay acts on matrices, but not on embeddings."""
    embeddings = {id(m.weight) for m in module.modules() if isinstance(m, nn.Embedding)}
    groups: dict[bool, list[Tensor]] = {True: [], False: []}
    for parameter, master in masters:
        groups[parameter.ndim >= 2 and id(parameter) not in embeddings].append(master)
    if not decay:  # one group is one fused step
        return [{"params": [*groups[True], *groups[False]], "weight_decay": 0.0}]
    return [{"params": members, "weight_decay": decay if yes else 0.0} for yes, members in groups.items() if members]


class Masters:
    """Float32 masters of a module's parameters with their AdamW state.

    Where a parameter is float32 (or float64) it is its own master. A bfloat16 parameter gets a float32 copy: its gradient is
    added to the master's in float32 as soon as the backward pass has it (so micro-batches accumulate without rounding), and
    the parameter is rewritten from the master after each step.
    """

    def __init__(self, module: nn.Module, spec: LearnerSpec) -> None:
        self.spec = spec
        self.parameters = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
        self.masters = [self._master_of(parameter) for parameter in self.parameters.values()]
        groups = groups_of(module, zip(self.parameters.values(), self.masters, strict=True), spec.optimizer.weight_decay)
        made = AdamW8bit if isinstance(spec.optimizer, optimizers.AdamW8bit) else AdamW
        self.adam = made(groups, spec.learning_rate, spec.optimizer)

    def _master_of(self, parameter: nn.Parameter) -> Tensor:
        if parameter.dtype in (torch.float32, torch.float64):
            return parameter
        master = parameter.detach().float().requires_grad_(True)

        def move_gradient(p: Tensor) -> None:
            if p.grad is not None:
                master.grad = p.grad.float() if master.grad is None else master.grad.add_(p.grad)
                p.grad = None

        parameter.register_post_accumulate_grad_hook(move_gradient)
        return master

    def step(self, rate: float, limit: float = math.inf) -> Metrics:
        """Clip, step at ``rate``, clear gradients.

        Gives ``gradient_norm`` before clipping, and ``update_size``: the root mean square of what was added to a weight, over
        about SAMPLED evenly spaced values of each tensor (of each shard, where ranks hold shards).

        Raises:
            SkippedStepError: the norm is not finite or above ``limit``; gradients are cleared and the weights are unchanged.
        """
        gradients = [m.grad for m in self.masters if m.grad is not None]
        if not gradients:
            raise TrainingError("optimizer step without any gradient: nothing was accumulated")
        total = self.norm(gradients)
        norm = float(total)
        if not torch.isfinite(total):
            self.drop()
            raise NonFiniteError(f"gradient norm is {norm}; the step was not taken (lower learner.learning_rate?)")
        if norm > limit:
            self.drop()
            raise LargeGradientError(f"gradient norm is {norm:.4g}, above {limit:.4g}; the step was not taken", norm)
        torch.nn.utils.clip_grads_with_norm_(self.masters, self.spec.clip_norm or float("inf"), total)
        before = self.sample()
        self.adam.step(rate)
        self.drop()
        self._write_back()
        return {"gradient_norm": norm, "update_size": self.mean_square(self.sample() - before) ** 0.5}

    def sample(self) -> Tensor:
        """Some of the masters' values, as one copy."""
        return strided(self.masters)

    def mean_square(self, values: Tensor) -> float:
        """Of numbers that :meth:`sample` gave, over all ranks."""
        return float(values.square().mean())

    def norm(self, gradients: list[Tensor]) -> Tensor:
        """The norm of all gradients together."""
        return torch.nn.utils.get_total_norm(gradients)

    def drop(self) -> None:
        """Forget the gradients gathered so far."""
        for master in self.masters:
            master.grad = None

    @torch.no_grad()
    def _write_back(self) -> None:
        for parameter, master in zip(self.parameters.values(), self.masters, strict=True):
            if parameter is not master:
                parameter.copy_(master)

    def state(self) -> State:
        """Masters and moments by parameter name."""
        arrays: dict[str, Any] = {}
        for name, master in zip(self.parameters, self.masters, strict=True):
            arrays[f"master.{name}"] = master.detach()
            for key, value in self.adam.arrays(master).items():
                arrays[f"{key}.{name}"] = value
        return State(arrays, {})

    @torch.no_grad()
    def load_state(self, state: State) -> None:
        """Take back what :meth:`state` gave; gradients gathered so far are dropped.

        Raises CheckpointError for a missing name or another shape.
        """
        self.drop()
        for name, master in zip(self.parameters, self.masters, strict=True):
            saved = state.arrays.get(f"master.{name}")
            if saved is None or saved.shape != master.shape:
                raise CheckpointError(f'checkpoint does not fit the model: parameter "{name}" is missing or has another shape')
            master.copy_(saved)
            keys = (key for key, _, of in (entry.partition(".") for entry in state.arrays) if of == name and key != "master")
            self.adam.load_arrays(master, {key: state.arrays[f"{key}.{name}"] for key in keys})
        self._write_back()


FLOOR = 0.1
"""Share of the peak rate that a schedule ``with_min_lr`` ends at."""


def rate_at(spec: LearnerSpec, step: int, total: int) -> float:
    """Learning rate of optimizer step ``step`` (from 0) out of ``total``."""
    if step < spec.warmup:
        return spec.learning_rate * (step + 1) / spec.warmup
    if spec.schedule == "constant":
        return spec.learning_rate
    progress = min(1.0, (step - spec.warmup) / max(1, total - spec.warmup))
    linear, floor = spec.schedule.startswith("linear"), FLOOR if spec.schedule.endswith("min_lr") else 0.0
    shape = 1 - progress if linear else 0.5 * (1 + math.cos(math.pi * progress))
    return spec.learning_rate * (floor + (1 - floor) * shape)

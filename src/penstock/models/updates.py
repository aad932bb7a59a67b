"""Weight updates: checked whole before the first byte changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from penstock.core.errors import WeightError
from penstock.core.types import Version, WeightUpdate
from penstock.models.arithmetic import cast_again


def require_newer(update: WeightUpdate, current: tuple[int, Version]) -> None:
    """Refuse an update that is not newer than ``current``, a (learner epoch, version).

    Raises:
        WeightError: it is older, or the same again.
    """
    if (update.learner_epoch, update.version) <= current:
        again = f" of learner_epoch {update.learner_epoch}" if update.learner_epoch != current[0] else ""
        raise WeightError(f"weight update refused: version {update.version}{again} is not newer than {current[1]}")


@torch.no_grad()
def verified(own: Mapping[str, Tensor], update: WeightUpdate) -> dict[str, Tensor]:
    """An update's tensors by name, checked whole against the engine's ``own``; none where it aliases the learner's.

    Those of an owned update have the type of ``own``, of which only shapes and types are read: it may run in a thread.

    Raises:
        WeightError: a missing or unknown name or one that comes twice, a wrong shape or kind of number, a value that is not
            finite (in the type of ``own``).
    """
    if update.tensors is None:
        return {}
    given = list(update.tensors)
    new = dict(given)
    missing, unknown = sorted(own.keys() - new.keys()), sorted(new.keys() - own.keys())
    if missing or unknown:
        problem = f'"{missing[0]}" is missing' if missing else f'"{unknown[0]}" is unknown'
        raise WeightError(f"weight update {update.version} refused: parameter {problem}")
    if len(new) != len(given):
        raise WeightError(f"weight update {update.version} refused: {len(given)} tensors for {len(new)} parameters")
    cast = {}
    for name, tensor in given:
        if tensor.shape != own[name].shape:
            shapes = f"shape {tuple(tensor.shape)}, not {tuple(own[name].shape)}"
            raise WeightError(f'weight update {update.version} refused: "{name}" has {shapes}')
        if own[name].is_floating_point() != tensor.is_floating_point():
            kinds = f"{str(tensor.dtype).removeprefix('torch.')}, not {str(own[name].dtype).removeprefix('torch.')}"
            raise WeightError(f'weight update {update.version} refused: "{name}" is {kinds}')
        as_own = tensor.to(own[name].dtype)
        if not finite(as_own):
            raise WeightError(f'weight update {update.version} refused: "{name}" holds a value that is not finite')
        if update.owned:
            cast[name] = as_own
    return cast if update.owned else new


def finite(tensor: Tensor) -> bool:
    """Whether every value is finite: NaN and infinity both show in the extremes, which are found at memory speed.

    A tensor without values (on torch's ``meta`` device) has none that is not: they are looked at where they arrive.
    """
    return tensor.is_meta or tensor.numel() == 0 or all(bool(torch.isfinite(extreme)) for extreme in torch.aminmax(tensor))


@torch.no_grad()
def switch(model: Any, tensors: Mapping[str, Tensor], owned: bool) -> None:
    """Put verified tensors into the model's parameters; runs between two decode steps.

    Owned tensors on the CPU become the parameters' storage, which moves no byte: modules, tied weights and recorded steps hold
    the parameter and not its memory. On CUDA captured graphs hold addresses, so bytes are copied there.
    """
    own = dict(model.policy_weights())
    for name, tensor in tensors.items():
        if owned and own[name].device == tensor.device and not tensor.is_cuda:
            own[name].data = tensor
        else:
            own[name].copy_(tensor)
    cast_again(model)

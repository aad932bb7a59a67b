"""Weight updates: checked whole before the first byte changes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from penstock.core.errors import WeightError
from penstock.core.types import Version, WeightUpdate
from penstock.models.language_model import LanguageModel


def checksum(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """SHA-256 over names, shapes, types and bytes, in order of name."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors, key=lambda pair: pair[0]):
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def require_newer(update: WeightUpdate, current: tuple[int, Version]) -> None:
    """Refuse an update that is not newer than ``current``, an (incarnation, version).

    Raises:
        WeightError: it is older, or the same again.
    """
    if (update.incarnation, update.version) <= current:
        again = f" of incarnation {update.incarnation}" if update.incarnation != current[0] else ""
        raise WeightError(f"weight update refused: version {update.version}{again} is not newer than {current[1]}")


@torch.no_grad()
def verified(own: Mapping[str, Tensor], update: WeightUpdate) -> dict[str, Tensor]:
    """An update's tensors by name, checked whole against the engine's ``own``; none where it aliases the learner's.

    Those of an owned update have the type of ``own``, of which only shapes and types are read: it may run in a thread.

    Raises:
        WeightError: a missing or unknown name, a wrong shape, a value that is not finite, or a wrong checksum.
    """
    if update.tensors is None:
        return {}
    new = dict(update.tensors)
    missing, unknown = sorted(own.keys() - new.keys()), sorted(new.keys() - own.keys())
    if missing or unknown:
        problem = f'"{missing[0]}" is missing' if missing else f'"{unknown[0]}" is unknown'
        raise WeightError(f"weight update {update.version} refused: parameter {problem}")
    for name, tensor in new.items():
        if tensor.shape != own[name].shape:
            shapes = f"shape {tuple(tensor.shape)}, not {tuple(own[name].shape)}"
            raise WeightError(f'weight update {update.version} refused: "{name}" has {shapes}')
        if not finite(tensor):
            raise WeightError(f'weight update {update.version} refused: "{name}" holds a value that is not finite')
    if update.checksum is not None and checksum(new.items()) != update.checksum:
        raise WeightError(f"weight update {update.version} refused: the checksum does not match")
    return {name: tensor.to(own[name].dtype) for name, tensor in new.items()} if update.owned else new


def finite(tensor: Tensor) -> bool:
    """Whether every value is finite: NaN and infinity both show in the extremes, which are found at memory speed."""
    return tensor.numel() == 0 or all(bool(torch.isfinite(extreme)) for extreme in torch.aminmax(tensor))


@torch.no_grad()
def switch(model: LanguageModel, tensors: Mapping[str, Tensor], owned: bool) -> None:
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

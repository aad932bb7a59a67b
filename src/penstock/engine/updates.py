"""Weight updates: checked whole before the first byte changes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

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


@torch.no_grad()
def apply_update(model: LanguageModel, update: WeightUpdate, current: Version) -> None:
    """Put an update's tensors into the model's parameters, all or none.

    Raises:
        WeightError: not newer than the current version, a missing or unknown name, a wrong shape, a value that is not
            finite, or a wrong checksum. The old weights are still in place.
    """
    if update.version <= current:
        raise WeightError(f"weight update refused: version {update.version} is not newer than {current}")
    if update.tensors is None:
        return  # the generator aliases the learner's parameters: they are already there
    own, new = dict(model.policy_weights()), dict(update.tensors)
    missing, unknown = sorted(own.keys() - new.keys()), sorted(new.keys() - own.keys())
    if missing or unknown:
        problem = f'"{missing[0]}" is missing' if missing else f'"{unknown[0]}" is unknown'
        raise WeightError(f"weight update {update.version} refused: parameter {problem}")
    for name, tensor in new.items():
        if tensor.shape != own[name].shape:
            shapes = f"shape {tuple(tensor.shape)}, not {tuple(own[name].shape)}"
            raise WeightError(f'weight update {update.version} refused: "{name}" has {shapes}')
        if not bool(torch.isfinite(tensor).all()):
            raise WeightError(f'weight update {update.version} refused: "{name}" holds a value that is not finite')
    if update.checksum is not None and checksum(new.items()) != update.checksum:
        raise WeightError(f"weight update {update.version} refused: the checksum does not match")
    for name, tensor in new.items():
        own[name].copy_(tensor)

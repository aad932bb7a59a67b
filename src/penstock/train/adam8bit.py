"""AdamW with moments in 8 bits through the torchao package. Its only home.

Moments of tensors with at least 4,096 entries (a multiple of 256) are quantized in blocks of 256 to a table of 256 values,
with one float32 scale a block (Dettmers et al. 2021, arXiv:2110.02861): 2.03 bytes a parameter instead of 8. Moments of
smaller tensors stay float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from penstock.config import optimizers
from penstock.core.errors import CheckpointError, TrainingError

SIGNED = {"exp_avg": True, "exp_avg_sq": False}
"""Moments, and whether their values have a sign."""


class AdamW8bit:
    """torchao's optimizer under the verbs that :class:`penstock.train.optimizer.Masters` uses.

    On the CPU its step runs as plain operations, because compiling it takes minutes there and saves nothing.

    Raises:
        TrainingError: torchao is missing or cannot be imported.
    """

    def __init__(self, groups: list[dict[str, Any]], rate: float, spec: optimizers.AdamW) -> None:
        try:
            from torchao.optim import AdamW8bit as Torchao
        except ImportError as error:
            raise TrainingError(
                f"learner.optimizer=AdamW8bit needs the torchao package ({error}); run: pip install penstock[adam8bit]"
            ) from error
        self.inner: Optimizer = Torchao(groups, lr=rate, betas=spec.betas, eps=spec.epsilon)

    def step(self, rate: float) -> None:
        """One step at a learning rate."""
        for group in self.inner.param_groups:
            group["lr"].fill_(rate)  # torchao keeps it as a tensor, so that a compiled step is not compiled anew
        on_cpu = all(p.device.type == "cpu" for group in self.inner.param_groups for p in group["params"])
        with torch.compiler.set_stance("force_eager" if on_cpu else "default"):
            self.inner.step()

    def arrays(self, master: Tensor) -> dict[str, Tensor]:
        """The state of one tensor as plain tensors: ``step``, and of each moment itself or its codes and scales."""
        found: dict[str, Tensor] = {}
        for key, value in self.inner.state.get(master, {}).items():
            if hasattr(value, "codes"):
                found |= {f"{key}_codes": value.codes, f"{key}_scale": value.scale}
            else:
                found[key] = value
        return found

    def load_arrays(self, master: Tensor, arrays: Mapping[str, Tensor]) -> None:
        """Take back what :meth:`arrays` gave; an empty mapping is the state before the first step.

        Raises CheckpointError where they are the state of another optimizer.
        """
        self.inner.state.pop(master, None)
        if not arrays:
            return
        made: dict[str, Tensor] = {"step": arrays["step"].detach().cpu().clone()}
        for key, signed in SIGNED.items():
            buffer = self.inner._new_buffer(master, signed)  # type: ignore[attr-defined]
            quantized = hasattr(buffer, "codes")
            if quantized != (f"{key}_codes" in arrays) or quantized == (key in arrays):
                raise CheckpointError("checkpoint does not fit: its moments are those of another optimizer")
            if quantized:
                buffer.codes.copy_(arrays[f"{key}_codes"])
                buffer.scale.copy_(arrays[f"{key}_scale"])
            else:
                buffer.copy_(arrays[key])
            made[key] = buffer
        self.inner.state[master] = made

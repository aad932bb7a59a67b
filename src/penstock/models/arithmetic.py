"""In what type a model computes: float32, bfloat16, or ``mixed``: matrix products in bfloat16 and everything else in float32.

A mixed linear layer keeps its float32 weight, which is what is trained, saved and published, and holds it in bfloat16 as
well, for products. Sums within a product are float32, its result is rounded to bfloat16 once. (Mixed precision: Micikevicius
et al. 2017, arXiv:1710.03740; bfloat16 needs no scaling of the loss: Kalamkar et al. 2019, arXiv:1905.12322.)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from penstock.config.learner import Dtype
from penstock.core.errors import ModelError
from penstock.models.language_model import LanguageModel


class _Product(torch.autograd.Function):
    """``x @ half.T`` in bfloat16, and the same for both gradients; ``weight`` is what ``half`` was rounded from."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, half_OI: Tensor, weight_OI: Tensor) -> Tensor:
        half_x = x.to(torch.bfloat16)
        ctx.save_for_backward(half_x, half_OI)
        return functional.linear(half_x, half_OI).float()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, Tensor | None]:
        half_x, half_OI = ctx.saved_tensors
        gradient = gradients[0].to(torch.bfloat16)
        of_x = (gradient @ half_OI).float() if ctx.needs_input_grad[0] else None
        of_weight = (gradient.flatten(0, -2).T @ half_x.flatten(0, -2)).float() if ctx.needs_input_grad[2] else None
        return of_x, None, of_weight


class Mixed(nn.Module):
    """A linear layer whose product is in bfloat16; ``rounded`` is :attr:`matrix` in it, as of the weight's ``version``."""

    weight: Any
    bias: Any
    rounded: Tensor
    version = -1

    @property
    def matrix(self) -> Tensor:
        """The weight as ``[outputs, inputs]``."""
        return self.weight

    @torch.no_grad()
    def cast(self) -> None:
        """Round the weight anew, in place, so that a recorded step reads it too."""
        self.rounded.copy_(self.matrix)
        self.version = self.weight._version

    def forward(self, x: Tensor) -> Tensor:
        if self.version != self.weight._version and not torch.jit.is_tracing():
            self.cast()
        if torch.is_grad_enabled():
            product: Tensor = _Product.apply(x, self.rounded, self.matrix)
        else:
            product = functional.linear(x.to(torch.bfloat16), self.rounded).float()
        return product if self.bias is None else product + self.bias


class MixedLinear(Mixed, nn.Linear):
    """``nn.Linear`` with its product in bfloat16."""


class MixedConv1D(Mixed, Conv1D):
    """GPT-2's linear layer, whose weight is ``[inputs, outputs]``, with its product in bfloat16."""

    @property
    def matrix(self) -> Tensor:
        return self.weight.T


MIXED: dict[type[nn.Module], type[Mixed]] = {nn.Linear: MixedLinear, Conv1D: MixedConv1D}


def to_compute_type(model: LanguageModel, dtype: Dtype) -> None:
    """Let the trunks compute in a type; buffers (rotary frequencies) and the value head stay float32.

    Raises:
        ModelError: ``mixed`` on a GPU.
    """
    if dtype == "mixed":
        for trunk in (model.network.base_model, model.critic_trunk):
            mix(trunk)
    else:
        for module in (model.network, model.critic_trunk):
            convert(module, dtype)


def convert(module: nn.Module | None, dtype: Dtype) -> None:
    """Let a module compute in a type: convert its parameters, but not its buffers, or mix."""
    if dtype == "mixed":
        mix(module)
        return
    for parameter in () if module is None else module.parameters():
        if parameter.is_floating_point():  # not the bytes of a matrix in 4 bits
            parameter.data = parameter.data.to(getattr(torch, dtype))


def mix(module: nn.Module | None) -> None:
    """Give the linear layers of a module products in bfloat16; a second call changes nothing.

    Raises:
        ModelError: it is on a GPU, where captured steps would not see new weights.
    """
    for part in () if module is None else module.modules():
        made = MIXED.get(type(part))
        if made is None:
            continue
        weight: Any = part.weight
        if weight.is_cuda:
            raise ModelError("dtype=mixed is for processors; on a GPU set dtype=bfloat16")
        part.__class__ = made
        assert isinstance(part, Mixed)
        part.register_buffer("rounded", torch.empty_like(part.matrix, dtype=torch.bfloat16).contiguous(), persistent=False)
        part.cast()


def cast_again(module: nn.Module) -> None:
    """Round the weights of mixed layers anew, after they have changed."""
    for part in module.modules():
        if isinstance(part, Mixed):
            part.cast()

"""Dropout for any architecture, by hooks, from a random stream of our own (so that a resume repeats it)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from penstock.models.language_model import LanguageModel

BRANCHES = ("self_attn", "attn", "attention", "mlp", "o", "DenseReluDense")
"""Names of the modules whose output is added to the residual stream in the architectures of transformers (the last two: T5)."""


@contextmanager
def dropped(
    model: LanguageModel, tokens: float, branches: float, noise: torch.Generator, adapters: float = 0.0
) -> Iterator[None]:
    """Inside, whole token embeddings are zeroed with probability ``tokens`` and entries of each attention and feed-forward
    output with probability ``branches`` (the rest scaled up, Srivastava et al. 2014), and likewise of what goes into low-rank
    adapters with probability ``adapters``.

    End tokens are never zeroed: a reward model reads its score there, and would learn far slower from a blank.
    """

    def mask(shape: torch.Size, rate: float, like: Tensor) -> Tensor:
        return (torch.rand(shape, generator=noise) >= rate).to(like)

    def drop_tokens(module: nn.Module, arguments: Any, embedded: Tensor) -> Tensor:
        kept = mask(embedded.shape[:-1], tokens, embedded).masked_fill_(arguments[0] == model.text.end, 1)
        return embedded * kept[..., None]

    def drop_branch(module: nn.Module, arguments: Any, output: Any) -> Any:
        added = output[0] if isinstance(output, tuple) else output
        added = added * mask(added.shape, branches, added) / (1 - branches)
        return (added, *output[1:]) if isinstance(output, tuple) else added

    def drop_input(module: nn.Module, arguments: Any) -> Any:
        return (arguments[0] * mask(arguments[0].shape, adapters, arguments[0]) / (1 - adapters), *arguments[1:])

    hooks = []
    if tokens:
        hooks.append(model.network.get_input_embeddings().register_forward_hook(drop_tokens))
    if branches:
        named = model.network.named_modules()
        hooks += [m.register_forward_hook(drop_branch) for n, m in named if n.rpartition(".")[2] in BRANCHES]
    if adapters:
        inputs = (m for n, m in model.network.named_modules() if ".lora_A." in n)
        hooks += [m.register_forward_pre_hook(drop_input) for m in inputs]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()

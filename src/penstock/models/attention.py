"""One attention function for every decoder architecture of transformers, driven by a plan.

transformers looks its attention up in a registry by name. We register one function, ``penstock``; it hands queries, keys and
values (after rotary embedding, before any cache) to the *plan* that the caller passed to the model's forward. The learner's
plan attends within packed rows; the generator's plans read and write its pooled cache. So model classes are reused as they
are, and who owns the memory is decided outside them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface
from transformers.utils import logging as transformers_logging

from penstock.core.errors import ModelError

NAME = "penstock"

_REFUSED_UNLESS_NONE = {"softcap", "s_aux", "head_mask", "position_bias"}


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """transformers reports every new head and registry name as a problem; our own errors say what matters."""
    before = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers_logging.set_verbosity(before)


class AttentionPlan(Protocol):
    """How one forward pass attends. ``heads`` H may be a multiple of key-value heads K (grouped queries)."""

    longest: int
    """Most keys that any query of this pass may see."""

    def attend(self, layer: int, query_1HND: Tensor, key_1KND: Tensor, value_1KND: Tensor, scale: float) -> Tensor:
        """Attention output ``[1, N, H, D]`` (or ``[B, 1, H, D]`` for a decode step of ``[B, H, 1, D]`` queries)."""
        ...


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    plan: AttentionPlan | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    """The function behind the registry name; refuses whatever it would otherwise silently leave out."""
    if plan is None:
        raise ModelError(f"{type(module).__name__} did not hand on the attention plan; this architecture is not supported")
    window = rest.get("sliding_window")
    if window is not None and plan.longest > window:
        raise ModelError(
            f"a sequence of {plan.longest} tokens is longer than the sliding window ({window}) of {type(module).__name__}; "
            f"use shorter sequences"
        )
    for name in _REFUSED_UNLESS_NONE:
        if rest.get(name) is not None:
            raise ModelError(f"{type(module).__name__} asks for {name}, which Penstock's attention does not compute")
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    return plan.attend(int(module.layer_idx), query, key, value, scale), None  # type: ignore[arg-type]


def register() -> None:
    """Make ``penstock`` known to transformers (idempotent)."""
    AttentionInterface.register(NAME, _attention)


class PackedPlan:
    """Causal attention within the rows of a packed batch, without a cache (learner, scoring).

    Packed tokens are expanded to ``[B, T]`` rows by ``gather_BT``, so that a prefix shared by several rows is *computed*
    once by every other layer and merely *read* by each row here. Cells past a row's end lie after all its real tokens, so
    the causal mask alone keeps them out.
    """

    def __init__(self, gather_BT: Tensor, scatter_N: Tensor) -> None:
        self.rows, self.longest = gather_BT.shape
        self.gather = gather_BT.reshape(-1)
        self.scatter = scatter_N
        cells = self.rows * self.longest
        self.dense = cells == scatter_N.shape[0] and bool((self.gather == scatter_N).all())

    def attend(self, layer: int, query_1HND: Tensor, key_1KND: Tensor, value_1KND: Tensor, scale: float) -> Tensor:
        query, key, value = (self._expand(x) for x in (query_1HND, key_1KND, value_1KND))
        grouped = query.shape[1] != key.shape[1]
        out_BHTD = functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=grouped)
        out_ND = out_BHTD.transpose(1, 2).reshape(self.rows * self.longest, -1)
        heads, width = query_1HND.shape[1], query_1HND.shape[3]
        if not self.dense:
            out_ND = out_ND.index_select(0, self.scatter)
        return out_ND.view(1, -1, heads, width)

    def _expand(self, x_1HND: Tensor) -> Tensor:
        """``[1, H, N, D]`` → ``[B, H, T, D]``."""
        x_NHD = x_1HND[0].transpose(0, 1)
        heads, width = x_NHD.shape[1:]
        x_ND = x_NHD.reshape(-1, heads * width)
        if not self.dense:
            x_ND = x_ND.index_select(0, self.gather)
        return x_ND.view(self.rows, self.longest, heads, width).transpose(1, 2)


def single_row_plan(length: int, device: torch.device | str = "cpu") -> PackedPlan:
    """The plan of one unpacked sequence."""
    index = torch.arange(length, device=device)
    return PackedPlan(index[None], index)

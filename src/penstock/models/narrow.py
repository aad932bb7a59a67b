"""The end of the last block, computed only for the tokens whose hidden states are read.

What follows attention in a decoder's last block (output projection, feed-forward) works token by token, and nothing after it
mixes tokens. An output reads few of them: a reward model one a row, a policy those before its actions. Which modules these are
is seen by running the model once, as is that nothing but work is saved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn

from penstock.core.errors import ModelError
from penstock.models.attention import AttentionPlan, LayerAttention, single_row_plan
from penstock.models.branches import FrozenBlock
from penstock.models.freezing import blocks_of
from penstock.models.language_model import LanguageModel

PROBE = 4
"""Tokens of the pass by which the modules are found."""
ROUNDING = 0.01
"""Share of the largest number that products of other sizes may differ by, in bfloat16; what mixes tokens differs far more."""


@contextmanager
def narrowed(model: LanguageModel, needed_n: Tensor | None, count: int) -> Iterator[None]:
    """Within it passes of this thread over ``count`` packed tokens give hidden states of the tokens ``needed_n`` alone (their
    indices; None: all). Those of others have no meaning."""
    if needed_n is None:
        yield
        return
    trunks = {"policy": model.network.base_model, "critic": model.critic_trunk}
    parts = [part for kind, trunk in trunks.items() if trunk is not None for part in _ends(model, kind, trunk)]
    with _only(parts, needed_n, count):
        yield


@contextmanager
def _only(parts: Sequence[nn.Module], needed_n: Tensor, count: int) -> Iterator[None]:
    """Let modules compute some of ``count`` tokens; what they give of the others is 0."""
    own = get_ident()

    def take(module: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if get_ident() != own:
            return None
        return tuple(value.index_select(1, needed_n) if _of_tokens(value, count) else value for value in arguments)

    def put(module: nn.Module, arguments: Any, output: Tensor) -> Tensor | None:
        if get_ident() != own:
            return None
        return output.new_zeros(1, count, output.shape[2]).index_copy_(1, needed_n, output)

    hooks = [hook for part in parts for hook in (part.register_forward_pre_hook(take), part.register_forward_hook(put))]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _of_tokens(value: Any, count: int) -> bool:
    return isinstance(value, Tensor) and value.ndim == 3 and value.shape[:2] == (1, count)


def _ends(model: LanguageModel, kind: str, trunk: Any) -> list[nn.Module]:
    """The modules of a trunk that follow the last attention, each a function of single tokens."""
    if kind not in model.ends:
        model.ends[kind] = _found(model, trunk)
    return [trunk.get_submodule(name) for name in model.ends[kind]]


@torch.no_grad()
def _found(model: LanguageModel, trunk: Any) -> tuple[str, ...]:
    """Their names; none where models share the last block, of which each may read other tokens, or where narrowing would change
    what is read."""
    if model.config.is_encoder_decoder or model.context < PROBE:
        return ()
    try:
        blocks = blocks_of(trunk)
    except ModelError:
        return ()
    border = blocks[0].border if isinstance(blocks[0], FrozenBlock) else model.border
    if border is not None and border.below == len(blocks):
        return ()
    tokens_1N = torch.arange(1, PROBE + 1, device=model.device)[None] % model.config.vocab_size
    position_1N, seen = torch.arange(PROBE, device=model.device)[None], _AfterAttention(trunk, blocks[-1])
    needed_n = torch.tensor([1, PROBE - 1], device=model.device)
    with border.aside() if border is not None else nullcontext():
        with seen.watched():
            whole_NH = model.hidden(tokens_1N, position_1N, seen, trunk)[0]
        names = tuple(seen.names)
        with _only([trunk.get_submodule(name) for name in names], needed_n, PROBE):
            narrow_NH = model.hidden(tokens_1N, position_1N, single_row_plan(PROBE, model.device), trunk)[0]
    gap, largest = (narrow_NH - whole_NH)[needed_n].abs().max(), whole_NH[needed_n].abs().max()
    return names if len(set(names)) == len(names) and bool(gap <= ROUNDING * largest) else ()


class _AfterAttention:
    """A plan that notes which modules with matrices run after the last attention of a pass: the outermost that give each token
    a vector."""

    def __init__(self, trunk: nn.Module, last: nn.Module) -> None:
        self.inner: AttentionPlan = single_row_plan(PROBE, next(trunk.parameters()).device)
        inside = {id(part) for part in last.modules() if part is not last and any(p.ndim > 1 for p in part.parameters())}
        self.named = {name: part for name, part in trunk.named_modules() if id(part) in inside}
        self.names: list[str] = []
        self.open: str | None = None
        self.attended = False

    def attend(self, query_1HND: Tensor, key_1KND: Tensor, value_1KNE: Tensor, how: LayerAttention) -> Tensor:
        self.names, self.open, self.attended = [], None, True
        return self.inner.attend(query_1HND, key_1KND, value_1KNE, how)

    @contextmanager
    def watched(self) -> Iterator[None]:
        hooks: list[Any] = []
        for name, part in self.named.items():
            hooks.append(part.register_forward_pre_hook(self._entering(name), with_kwargs=True))
            hooks.append(part.register_forward_hook(self._leaving(name)))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _entering(self, name: str) -> Any:
        def enter(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            tensors = [value for value in arguments if isinstance(value, Tensor)]
            able = tensors and all(_of_tokens(value, PROBE) for value in tensors)
            if self.attended and self.open is None and able and not any(isinstance(value, Tensor) for value in named.values()):
                self.open = name

        return enter

    def _leaving(self, name: str) -> Any:
        def leave(module: nn.Module, arguments: Any, output: Any) -> None:
            if self.open == name:
                self.open = None
                if _of_tokens(output, PROBE):
                    self.names.append(name)

        return leave

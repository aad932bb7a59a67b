"""Train only the top of a model: everything below a border is frozen and takes part in no backward pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn

from penstock.core.errors import ModelError
from penstock.models.attention import single_row_plan
from penstock.models.language_model import LanguageModel


class Border:
    """Where the trainable part of a trunk begins: after its ``below`` lowest blocks, which are frozen.

    Inside :meth:`once`, what comes out of the frozen part is kept, so that other views of the same trunk
    (:mod:`penstock.models.branches`) go on from there instead of computing it again. The inputs of all views must be the
    same there. Each thread keeps its own: a reward model may score in one while the policy learns in another.
    """

    def __init__(self, blocks: nn.ModuleList, below: int) -> None:
        self.below = below
        self.frozen: tuple[nn.Module, ...] = tuple(blocks)[:below]
        self._kept: dict[int, Any] = {}
        """Output of the last frozen block by thread, inside :meth:`once`; None before it has run."""

    @property
    def value(self) -> Any:
        """What this thread keeps, or None."""
        return self._kept.get(get_ident())

    def _keep(self, module: nn.Module, arguments: Any, output: Any) -> None:
        if get_ident() in self._kept:
            self._kept[get_ident()] = output

    @contextmanager
    def once(self) -> Iterator[None]:
        """Within it the frozen blocks run at most once; nested uses belong to the outermost."""
        if get_ident() in self._kept or not self.frozen:
            yield
            return
        hook = self.frozen[-1].register_forward_hook(self._keep)
        self._kept[get_ident()] = None
        try:
            yield
        finally:
            del self._kept[get_ident()]
            hook.remove()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Within it this thread keeps nothing and sees nothing of what it kept, so that other inputs may pass."""
        own = get_ident()
        kept = {own: self._kept.pop(own)} if own in self._kept else {}
        try:
            yield
        finally:
            self._kept |= kept


def blocks_of(trunk: nn.Module) -> nn.ModuleList:
    """The list of a decoder's blocks: the outermost list with as many entries as the config has layers.

    Raises:
        ModelError: there is none, or more than one on the same level.
    """
    count = getattr(getattr(trunk, "config", None), "num_hidden_layers", None)
    level: list[nn.Module] = [trunk]
    while level:
        found = [m for m in level if isinstance(m, nn.ModuleList) and len(m) == count]
        if len(found) == 1:
            return found[0]
        if found:
            break
        level = [child for module in level for child in module.children()]
    raise ModelError(
        f"{type(trunk).__name__}: cannot tell which modules are its {count} blocks, so none of them can be frozen; "
        f"set learner.unfrozen_layers=-1"
    )


def freeze_below(model: LanguageModel, layers: int) -> Border:
    """Leave only the top ``layers`` blocks, what comes after them (the final norm) and the output head trainable.

    The input embeddings are frozen whatever ``layers`` is, and an output head that is tied to them is frozen with them: it
    is one tensor, so training the head would change the trunk from below. The border is noted on the model.

    Raises:
        ModelError: more layers than there are, blocks that cannot be found, or an encoder-decoder.
    """
    if getattr(model.config, "is_encoder_decoder", False):
        raise ModelError(
            f"unfrozen_layers={layers}: {type(model.network).__name__} has two stacks of blocks, and only decoders can be "
            f"frozen below a border; set learner.unfrozen_layers=-1"
        )
    trunk = model.network.base_model
    blocks = blocks_of(trunk)
    if not 0 <= layers <= len(blocks):
        raise ModelError(
            f"unfrozen_layers={layers}, but {type(trunk).__name__} has {len(blocks)} blocks; "
            f"use 0 to {len(blocks)}, or -1 to train everything"
        )
    below = len(blocks) - layers
    trainable = {id(p) for block in list(blocks)[below:] for p in block.parameters()}
    trainable |= {id(p) for module in _after_blocks(model, blocks) for p in module.parameters()}
    within = {id(p) for p in trunk.parameters()}
    trainable |= {id(p) for p in model.network.parameters() if id(p) not in within}  # an untied head
    trainable -= {id(p) for p in model.network.get_input_embeddings().parameters()}
    for parameter in model.network.parameters():
        parameter.requires_grad_(id(parameter) in trainable)
    model.border = Border(blocks, below)
    return model.border


@torch.no_grad()
def _after_blocks(model: LanguageModel, blocks: nn.ModuleList) -> list[nn.Module]:
    """Modules of the trunk outside its blocks that run after the last block, seen by running two tokens through."""
    trunk = model.network.base_model
    inside = {id(m) for m in blocks.modules()}
    outside = [m for m in trunk.modules() if id(m) not in inside and next(m.parameters(recurse=False), None) is not None]
    ran: list[nn.Module] = []
    hooks = [m.register_forward_hook(lambda module, arguments, output: ran.append(module)) for m in (blocks[-1], *outside)]
    try:
        tokens: Tensor = torch.ones(1, 2, dtype=torch.int64, device=model.device)
        model.hidden(tokens, torch.arange(2, device=model.device)[None], single_row_plan(2, model.device))
    finally:
        for hook in hooks:
            hook.remove()
    return ran[ran.index(blocks[-1]) + 1 :]

"""Several models on one trunk: a reference, a critic and reward models that share the frozen blocks of the policy.

With most of the policy frozen, a frozen copy of it differs from it only above the border. A *branch* therefore shares every
frozen tensor with the policy and copies the rest, for any architecture: it is an ordinary model of the same class in whose
list of blocks the frozen ones stand for the policy's own. Inside ``model.once()`` the policy's frozen blocks run once for all
branches (Ziegler et al. 2019, arXiv:1909.08593, share a policy with its value head; the shared-trunk reference was made known
as "hydra" by trlX).
"""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import torch
from torch import nn

from penstock.core.errors import ModelError
from penstock.models.attention import single_row_plan
from penstock.models.freezing import Border, blocks_of
from penstock.models.language_model import LanguageModel

Module = TypeVar("Module", bound=nn.Module)


class FrozenBlock(nn.Module):
    """Replaces, in a branch, a frozen block of the policy: runs it, or passes on what the policy's pass left at the border."""

    def __init__(self, block: nn.Module, border: Border) -> None:
        super().__init__()
        self._held = (block, border)  # in a tuple: its parameters are the policy's and not listed as the branch's

    def __getattr__(self, name: str) -> Any:
        if name == "_held":
            raise AttributeError(name)
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self._held[0], name)

    @property
    def border(self) -> Border:
        """That of the policy whose block it stands for."""
        held: Border = self._held[1]
        return held

    def forward(self, *arguments: Any, **more: Any) -> Any:
        block, border = self._held
        if border.value is not None:
            return border.value
        return block(*arguments, **more)  # the border's hook on the last frozen block keeps its output

    def __deepcopy__(self, memo: dict[int, Any]) -> FrozenBlock:
        block, border = self._held
        if id(block) in memo:  # the policy is copied too, and its copy's branches belong to the copy
            block, border = memo[id(block)], copy.deepcopy(border, memo)
        memo[id(self)] = made = FrozenBlock(block, border)
        return made


def _twin(module: Module, border: Border) -> Module:
    """A copy of a part of the policy that shares what is frozen and has a tensor of its own for the rest."""
    memo: dict[int, Any] = {id(p): p for p in module.parameters() if not p.requires_grad}
    memo |= {id(block): FrozenBlock(block, border) for block in border.frozen}
    return copy.deepcopy(module, memo)


def critic_branch(model: LanguageModel) -> nn.Module:
    """A trainable copy of the policy's trunk above the border, for a critic.

    Raises:
        ModelError: nothing of the model is frozen, or its blocks pass on more than their output.
    """
    trunk = _twin(model.network.base_model, _border(model))
    _check(model, trunk)
    return trunk


def reference_branch(model: LanguageModel) -> LanguageModel:
    """The model as it is now, for good: frozen tensors are shared with it, the others are copied and frozen.

    Raises:
        ModelError: nothing of the model is frozen, or its blocks pass on more than their output.
    """
    made = LanguageModel(_twin(model.network, _border(model)), model.text, model.head)
    _check(model, made.network.base_model)
    made.requires_grad_(False)
    return made


@torch.no_grad()
def share_frozen(other: LanguageModel, model: LanguageModel) -> int:
    """Let another model of the same shape (a reward model, a reference) share each frozen tensor that equals its own.

    Where all tensors of a frozen block are shared, ``other`` runs the policy's block, so a pass of both computes it once.
    Where they are equal but for the policy's compute type, ``other`` takes that type. Gives the bytes that are held once
    instead of twice. A model of another shape is left as it is.
    """
    border = _border(model)
    own = dict(other.network.base_model.named_parameters())
    mine = dict(model.network.base_model.named_parameters())
    pairs = [(own[name], p) for name, p in mine.items() if not p.requires_grad and name in own]
    if other.dtype != model.dtype and all(a.shape == b.shape and torch.equal(a.to(b.dtype), b) for a, b in pairs):
        for parameter in other.network.parameters():  # it was trained on the same weights: it computes as the policy does
            parameter.data = parameter.data.to(model.dtype)
    same = {id(a): b for a, b in pairs if a is not b and a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)}
    saved = sum(p.nbytes for p in {id(p): p for p in same.values()}.values())
    for module in other.network.modules():
        for name, parameter in module._parameters.items():
            if id(parameter) in same:
                module._parameters[name] = same[id(parameter)]
    if not same or type(other.network.base_model) is not type(model.network.base_model):
        return saved
    blocks = blocks_of(other.network.base_model)
    shared = [_holds_all(blocks[i], block) for i, block in enumerate(border.frozen)] if len(blocks) >= border.below else [False]
    embeddings = other.network.get_input_embeddings().weight is model.network.get_input_embeddings().weight
    if all(shared) and embeddings:
        kept = list(blocks)
        for index, block in enumerate(border.frozen):
            blocks[index] = FrozenBlock(block, border)
        try:
            _check(model, other.network.base_model)
        except ModelError:
            for index in range(border.below):
                blocks[index] = kept[index]
    return saved


def _holds_all(block: nn.Module, frozen: nn.Module) -> bool:
    held = {id(p) for p in frozen.parameters()}
    return all(id(p) in held for p in block.parameters())


def _border(model: LanguageModel) -> Border:
    if model.border is None:
        raise ModelError("no block of the model is frozen, so there is nothing to share; set learner.unfrozen_layers")
    return model.border


@torch.no_grad()
def _check(model: LanguageModel, branch: nn.Module) -> None:
    """Compare a branch that goes on from the border with the same branch run from the tokens.

    Raises ModelError where they differ: blocks of such an architecture pass on more than their output.
    """
    tokens = torch.arange(1, 4, device=model.device)[None] % model.config.vocab_size
    position, plan = torch.arange(3, device=model.device)[None], single_row_plan(3, model.device)
    whole = model.hidden(tokens, position, plan, branch)
    with model.once():
        model.hidden(tokens, position, plan)
        resumed = model.hidden(tokens, position, plan, branch)
    if not torch.equal(whole, resumed):
        raise ModelError(
            f"{type(model.network).__name__}: its blocks pass on more than their output, so they cannot be shared; "
            f"set learner.unfrozen_layers=-1"
        )

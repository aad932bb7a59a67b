"""Mixtures of experts: what routers say in a pass, and the loss by which they are kept balanced."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from penstock.core.errors import ModelError


def routers_of(network: Any) -> list[tuple[nn.Module, int]]:
    """The modules that choose experts, in order of layers, each with the place of its logits in what it gives: what
    transformers records as ``router_logits``."""
    recorded = getattr(network.base_model, "_can_record_outputs", None) or {}
    named = recorded.get("router_logits", ())
    kinds = [kind for kind in (named if isinstance(named, (list, tuple)) else [named]) if hasattr(kind, "target_class")]
    return [
        (module, kind.index)
        for name, module in network.named_modules()
        for kind in kinds
        if isinstance(module, kind.target_class) and (kind.layer_name or "") in name
    ]


@contextmanager
def router_logits(network: Any) -> Iterator[list[Tensor]]:
    """Within it the logits ``[N, X]`` of every router that runs are noted, in the order of the calls."""
    found: list[Tensor] = []
    hooks = [
        module.register_forward_hook(lambda _, arguments, output, index=index: found.append(output[index]))
        for module, index in routers_of(network)
    ]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def check_balance(network: Any) -> None:
    """Refuse a model without routers, or whose type has no load-balancing loss of its own. Raises ModelError."""
    name = type(network).__name__
    if not routers_of(network):
        raise ModelError(f"{name} has no experts to balance; set learner.router_loss=0")
    if not hasattr(sys.modules[type(network).__module__], "load_balancing_loss_func"):
        raise ModelError(f"{name} has no load-balancing loss of its own in transformers; set learner.router_loss=0")


def balance(network: Any, logits: list[Tensor]) -> Tensor:
    """The load-balancing loss of a model's own type over packed tokens, all of which are real (Fedus et al. 2021,
    arXiv:2101.03961, equations 4 to 6): 1 a chosen expert where all are used alike, more where some are preferred.

    Args:
        logits: of each router, ``[N, X]``.
    """
    own = sys.modules[type(network).__module__].load_balancing_loss_func  # type: ignore[attr-defined]
    loss: Tensor = own(tuple(logits), network.num_experts, network.num_experts_per_tok)
    return loss

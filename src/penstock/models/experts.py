"""Mixtures of experts: what routers say in a pass, the loss by which they are kept balanced, and the replay of routes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from penstock.core.errors import ModelError
from penstock.models.attention import single_row_plan

ROUTES = "routes_T"
"""The column of a language policy with the experts that each router chose for a token, ``[T, L, K]`` over the ``L`` routers of
a model that choose ``K`` each, of 16 bits. -1: no pass has read the token, as that which ends a sample."""

Routes = NDArray[np.int16]
Routers = Sequence[tuple[nn.Module, int]]


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
def noted(routers: Routers, read: Callable[[Any, int], Any]) -> Iterator[list[Any]]:
    """Within it ``read`` of what a router gives, and the place of its logits there, is noted in the order of the calls."""
    found: list[Any] = []
    hooks = [
        module.register_forward_hook(lambda _, arguments, output, index=index: found.append(read(output, index)))
        for module, index in routers
    ]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def router_logits(network: Any) -> AbstractContextManager[list[Tensor]]:
    """Within it the logits ``[N, X]`` of every router that runs are noted, in the order of the calls."""
    return noted(routers_of(network), lambda output, index: output[index])


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


# ---- the replay of routes (R3, Rollout Routing Replay: arXiv:2510.11370)


def recorded(routers: Routers) -> AbstractContextManager[list[Tensor]]:
    """Within it the experts ``[N, K]`` that every router chooses are noted; :func:`routes_of` them are a pass's."""
    return noted(routers, lambda output, index: output[2])


def routes_of(chosen: Sequence[Tensor]) -> Routes:
    """``[N, L, K]`` of the ``N`` tokens of a pass."""
    routes: Routes = torch.stack(tuple(chosen), 1).cpu().numpy().astype(np.int16)
    return routes


def earlier(before: Mapping[str, Any], after: Mapping[str, Any]) -> Mapping[str, Any]:
    """The columns of a sample that went on from an earlier one, with the routes that its tokens were generated with."""
    if ROUTES not in before or ROUTES not in after:
        return after
    old, new = before[ROUTES], after[ROUTES].copy()
    new[: len(old)] = np.where(old < 0, new[: len(old)], old)
    return {**after, ROUTES: new}


class _Forced(TorchFunctionMode):
    """Within it ``topk`` over experts chooses the given ones ``[N, K]`` (-1: its own), with the scores that these have. Where a
    router sees the tokens ``needed_n`` alone, theirs."""

    def __init__(self, expert_NK: Tensor, needed_n: Tensor | None) -> None:
        super().__init__()
        self.expert_NK, self.needed_n, self.times = expert_NK, needed_n, 0

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        found = function(*arguments, **(named or {}))
        if function not in (torch.topk, Tensor.topk) or found.indices.shape[1:] != self.expert_NK.shape[1:]:
            return found
        self.times += 1
        narrow = self.needed_n is not None and len(found.indices) == len(self.needed_n)
        expert_NK = self.expert_NK.index_select(0, self.needed_n) if narrow else self.expert_NK  # type: ignore[arg-type]
        index_NK = torch.where(expert_NK < 0, found.indices, expert_NK)
        return torch.return_types.topk((arguments[0].gather(-1, index_NK), index_NK))


def _route(module: nn.Module, forward: Any, expert_NK: Tensor, needed_n: Tensor | None, *given: Any, **named: Any) -> Any:
    """A router's forward pass with choices that are given."""
    with _Forced(expert_NK, needed_n) as forced:
        found = forward(*given, **named)
    if forced.times != 1:
        raise ModelError(
            f"{type(module).__name__} chooses in {forced.times} steps that look alike, so routes cannot be replayed; set "
            "learner.replay_routes=false"
        )
    return found


Replay = tuple[Routers, Tensor, Tensor | None]
_replay: ContextVar[Replay | None] = ContextVar("replay", default=None)
"""What the running pass replays."""


@contextmanager
def replayed(routers: Routers, routes_NLK: Tensor | None, needed_n: Tensor | None = None) -> Iterator[None]:
    """Within it the routers choose the experts ``[N, L, K]`` for a pass over N tokens, and weigh them by their own logits, with
    gradient; -1: they choose themselves. None: all do. ``needed_n``: the tokens that the last block may be computed for."""
    if routes_NLK is None:
        yield
        return
    before = [vars(module).get("forward") for module, _ in routers]
    mark = _replay.set((routers, routes_NLK, needed_n))
    for layer, (module, _) in enumerate(routers):
        module.forward = partial(_route, module, module.forward, routes_NLK[:, layer], needed_n)
    try:
        yield
    finally:
        _replay.reset(mark)
        for (module, _), own in zip(routers, before, strict=True):
            if own is None:
                del module.forward
            else:
                module.forward = own


def again() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """How a block runs whose activations are not kept, and how once more in the backward pass: with the same routes."""
    replay = _replay.get()
    return nullcontext(), nullcontext() if replay is None else replayed(*replay)


@torch.no_grad()
def check_routes(model: Any) -> None:
    """Refuse a model whose routes cannot be recorded and replayed, seen by replaying every expert once.

    Raises:
        ModelError: it has no routers, or they do not say what they chose, or give others no weight; names the type.
    """
    name, routers = type(model.network).__name__, routers_of(model.network)
    why = "has no experts" if not routers or model.config.is_encoder_decoder else _unlike(model, routers)
    if why:
        raise ModelError(f"{name} {why}, so there are no routes to replay; set learner.replay_routes=false")


def _unlike(model: Any, routers: Routers) -> str:
    """What of its routers is unlike those that can be replayed: these give logits ``[N, X]``, weights, experts ``[N, K]``."""

    def outputs(count: int, routes_NLK: Tensor | None = None) -> list[Any]:
        tokens, plan = torch.arange(count, device=model.device)[None], single_row_plan(count, model.device)
        with replayed(routers, routes_NLK), noted(routers, lambda output, index: output) as found:
            model.hidden(tokens % model.config.vocab_size, tokens, plan)
        return found

    own = outputs(1)
    if len(own) != len(routers) or not all(len(one) == 3 and one[1].shape == one[2].shape == own[0][2].shape for one in own):
        return "has routers that do not give the experts that they choose"
    width, experts = own[0][2].shape[1], min(one[0].shape[1] for one in own)
    outputs(1, torch.full((1, len(own), width), -1, device=model.device))  # refuses a choice that looks like others
    count = min(experts, model.context)
    place = torch.arange(count, device=model.device)[:, None, None] + torch.arange(len(own), device=model.device)[:, None]
    routes_NLK = (place + torch.arange(width, device=model.device)) % experts
    for layer, (_, weight_NK, expert_NK) in enumerate(outputs(count, routes_NLK)):
        if not torch.equal(expert_NK, routes_NLK[:, layer]) or not (weight_NK != 0).all():
            return "has routers that weigh no experts but those they choose themselves"
    return ""

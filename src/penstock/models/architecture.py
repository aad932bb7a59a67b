"""What a decoder of transformers does with our attention, seen by running it: what it caches, and whether it is computed right.

Nothing here knows model types by name. A type is supported where three passes give what the network's own forward gives: packed
rows with a shared prefix (as learners run it), a prefill, and steps of one token (as the generator runs it).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from penstock.core.errors import ModelError, first_line
from penstock.models.attention import AttentionPlan, LayerAttention, PackedPlan, dot_product, eager_attention, single_row_plan

SHARED, OWN, STEPS = 2, 3, 2
"""Tokens of the rows of a check: those they have in common, each row's own, and how many of these are read one by one."""
WHOLE, WINDOWED = "full_attention", "sliding_attention"
"""Kinds of layers, as configurations name them, that can be computed."""


class Slot(NamedTuple):
    """What one call of attention in a forward pass keeps of each token, and over how many tokens it looks back."""

    heads: int
    """Of keys and values."""
    key_width: int
    value_width: int
    window: int | None


class Observed:
    """A plan that notes who attends how."""

    def __init__(self, inner: AttentionPlan) -> None:
        self.inner = inner
        self.slots: list[Slot] = []

    def attend(self, query_1HND: Tensor, key_1KND: Tensor, value_1KNE: Tensor, how: LayerAttention) -> Tensor:
        self.slots.append(Slot(key_1KND.shape[1], key_1KND.shape[3], value_1KNE.shape[3], how.window))
        return self.inner.attend(query_1HND, key_1KND, value_1KNE, how)


class Cached:
    """Rows of equal length that are read in parts, with keys and values of what was read before; the simplest such plan."""

    def __init__(self) -> None:
        self.read: list[tuple[Tensor, Tensor]] = []
        self.calls = 0

    def attend(self, query_BHND: Tensor, key_BKND: Tensor, value_BKNE: Tensor, how: LayerAttention) -> Tensor:
        slot, self.calls = self.calls, self.calls + 1
        if slot == len(self.read):
            self.read.append((key_BKND[:, :, :0], value_BKNE[:, :, :0]))
        before_key, before_value = self.read[slot]
        key, value = torch.cat([before_key, key_BKND], 2), torch.cat([before_value, value_BKNE], 2)
        self.read[slot] = key, value
        place_T = torch.arange(key.shape[2], device=key.device)
        back_NT = place_T[before_key.shape[2] :, None] - place_T
        seen_NT = (back_NT >= 0) & (back_NT < (how.window or len(place_T)))
        return dot_product(query_BHND, key, value, how, seen_NT).transpose(1, 2)


@torch.no_grad()
def slots_of(model: Any) -> tuple[Slot, ...]:
    """What each call of attention in a pass of a decoder keeps of a token, in the order of the calls."""
    first = torch.zeros(1, 1, dtype=torch.int64, device=model.device)
    seen = Observed(single_row_plan(1, model.device))
    model.hidden(first, first, seen)
    return tuple(seen.slots)


@torch.no_grad()
def check_architecture(model: Any) -> tuple[Slot, ...]:
    """Compare a decoder (language or reward model) through our plans with its network's own forward; gives its slots.

    Raises:
        ModelError: the architecture does not use our attention in every layer, asks of it what it does not compute, keeps a
            state besides keys and values, or gives other numbers.
    """
    try:
        return _checked(model)
    except ModelError:
        raise
    except Exception as error:  # whatever a forward pass that was not made for this runs into
        raise ModelError(
            f"{type(model.network).__name__} cannot run through Penstock's attention ({first_line(error)}); "
            f"this architecture is not supported"
        ) from error


def _checked(model: Any) -> tuple[Slot, ...]:
    length = min(SHARED + OWN, model.context)
    shared, vocabulary, device = min(SHARED, length - 1), model.config.vocab_size, model.device
    own = length - shared
    tokens_N = (vocabulary // 2 + torch.arange(shared + 2 * own, device=device)) % vocabulary
    row_T = np.arange(length)
    gather_BT = np.stack([row_T, np.where(row_T < shared, row_T, row_T + own)])
    scatter_N = np.concatenate([row_T, length + row_T[shared:]])
    position_N = torch.from_numpy(scatter_N % length).to(device)
    plan = Observed(PackedPlan(gather_BT, scatter_N, np.full(2, length), device))
    packed_NH = model.hidden(tokens_N[None], position_N[None], plan)[0]
    _check_slots(model, plan.slots)
    gather = torch.from_numpy(gather_BT).to(device)
    tokens_BT = tokens_N[gather]
    with eager_attention(model.network):
        theirs = _outputs_of(model, tokens_BT)
    _require_equal(model, "packed rows", _outputs(model, packed_NH[gather]), theirs)
    _require_equal(model, "rows read token by token", _outputs(model, _in_steps(model, tokens_BT)), theirs)
    return tuple(plan.slots)


def _in_steps(model: Any, tokens_BT: Tensor) -> Tensor:
    """Hidden states ``[B, T, H]`` of rows whose last tokens are read one by one."""
    cached, parts = Cached(), []
    first = tokens_BT.shape[1] - min(STEPS, tokens_BT.shape[1] - 1)
    for start, end in [(0, first), *((i, i + 1) for i in range(first, tokens_BT.shape[1]))]:
        cached.calls = 0
        position_BT = torch.arange(start, end, device=tokens_BT.device).expand(len(tokens_BT), -1)
        parts.append(model.hidden(tokens_BT[:, start:end], position_BT, cached))
    return torch.cat(parts, 1)


def _outputs(model: Any, hidden_BTH: Tensor) -> tuple[Tensor, ...]:
    """What is compared: logits, or of a reward model hidden states and scores."""
    if model.head == "lm":
        return (model.logits(hidden_BTH.flatten(0, 1)).view(*hidden_BTH.shape[:2], -1),)
    return hidden_BTH, model.scores(hidden_BTH[:, -1])


def _outputs_of(model: Any, tokens_BT: Tensor) -> tuple[Tensor, ...]:
    """The same by the network's own forward."""
    own = model.network(input_ids=tokens_BT, use_cache=False).logits
    if model.head == "lm":
        return (own,)
    return model.network.base_model(input_ids=tokens_BT, use_cache=False).last_hidden_state, own[:, 0]


def _require_equal(model: Any, where: str, ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        require_equal(model, one, other, where)


def require_equal(model: Any, ours: Tensor, theirs: Tensor, where: str) -> None:
    """Refuse numbers of ours that are not those of a network's own forward. Raises ModelError."""
    gap, largest = float((ours - theirs.float()).abs().max()), float(theirs.abs().max())
    allowed = 1e-3 * max(1.0, largest) * (1 if model.dtype == torch.float32 else 100)
    if not gap <= allowed:
        raise ModelError(
            f"{type(model.network).__name__} gives other logits through Penstock (gap {gap:.2g} in {where}); "
            f"this architecture is not supported"
        )


def _check_slots(model: Any, slots: list[Slot]) -> None:
    """Each layer must attend through our attention, over the window that its configuration names.

    Raises:
        ModelError: it does not.
    """
    config, name = model.config, type(model.network).__name__
    layers = config.num_hidden_layers
    kinds = getattr(config, "layer_types", None) or [WINDOWED if _has_window(config) else WHOLE] * layers
    other = [kind for kind in kinds if kind not in (WHOLE, WINDOWED)]
    if other:
        raise ModelError(f"{name} has layers of the kind {other[0]}, which Penstock cannot compute; it is not supported")
    if not slots or len(slots) % layers:
        raise ModelError(
            f"{name} attends {len(slots)} times through transformers' attention registry in {layers} layers; layers that "
            f"attend in their own way, or keep a state of another kind, are not supported"
        )
    if len(slots) == layers:
        for layer, (kind, slot) in enumerate(zip(kinds, slots, strict=True)):
            hides = kind == WINDOWED and config.sliding_window < model.context
            if hides != (slot.window is not None and slot.window < model.context):
                raise ModelError(f"{name} names layer {layer} {kind}, but attends there with the window {slot.window}")


def _has_window(config: Any) -> bool:
    return bool(getattr(config, "sliding_window", None)) and getattr(config, "use_sliding_window", True) is not False

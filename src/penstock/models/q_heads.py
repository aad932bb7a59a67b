"""Action values on a language model's trunk: Q heads over the vocabulary with slow target copies, and a state value head.

Losses read them as the output "q" and its companions (:func:`q_outputs`).
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from penstock.core.errors import TrainingError
from penstock.models.heads import Head, register_head
from penstock.models.outputs import Scored, View, in_chunks, register_output

HEADS = 2
"""Q heads, of which the smaller counts: one alone overrates what it has seen little of (Fujimoto et al. 2018)."""


class Perceptron(nn.Module):
    """Two layers, ``width → 2 · width → outputs``; the last starts at zero, so that all first values are 0."""

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, 2 * width)
        self.outer = nn.Linear(2 * width, outputs)
        nn.init.zeros_(self.outer.weight)
        nn.init.zeros_(self.outer.bias)

    def forward(self, hidden_AH: Tensor) -> Tensor:
        """``[A, outputs]`` in float32."""
        return self.outer(self._features(hidden_AH)).float()

    def chosen(self, hidden_AH: Tensor, target_A: Tensor) -> Tensor:
        """The output of one target a row, ``[A]``, without computing the others."""
        weight_AF, bias_A = self.outer.weight[target_A], self.outer.bias[target_A]
        return ((self._features(hidden_AH) * weight_AF).sum(-1) + bias_A).float()

    def _features(self, hidden_AH: Tensor) -> Tensor:
        return self.inner(hidden_AH.to(self.inner.weight.dtype)).relu()


class QHeads(Head):
    """Two Q heads, a target copy of each that is never trained, and a head of state values (Snell et al. 2022, 2206.11871).

    The copies follow by :meth:`follow` after an optimizer step: every ``every`` steps they move the share ``rate`` of the way
    to the heads that are trained (Polyak averaging; a rate of 1 is a periodic copy). A rate of 0 leaves them alone.
    """

    def __init__(self, width: int, vocabulary: int, rate: float = 0.0, every: int = 1, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.online = nn.ModuleList(Perceptron(width, vocabulary) for _ in range(HEADS))
            self.value = Perceptron(width, 1)
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        self.rate, self.every = rate, every

    def values(self, hidden_AH: Tensor) -> Tensor:
        """V of the state before each action, ``[A]``."""
        return self.value(hidden_AH).squeeze(-1)

    def all_actions(self, hidden_AH: Tensor) -> Tensor:
        """Q of every token by both trained heads, ``[Q, A, V]``."""
        return torch.stack([head(hidden_AH) for head in self.online])

    @torch.no_grad()
    def target_of(self, hidden_AH: Tensor, target_A: Tensor) -> Tensor:
        """Q of one token a state by both target heads, ``[A, Q]``, without gradient."""
        return torch.stack([head.chosen(hidden_AH, target_A) for head in self.target], -1)  # type: ignore[operator]

    @torch.no_grad()
    def advantage(self, hidden_BH: Tensor) -> Tensor:
        """``min(target Q) - V`` of every token, ``[B, V]``: what generation adds to the logits, times β."""
        target_QBV = torch.stack([head(hidden_BH) for head in self.target])
        return target_QBV.amin(0) - self.value(hidden_BH)

    @torch.no_grad()
    def follow(self, updates: int) -> None:
        """Move the targets if this update's turn has come; ``updates`` counts the optimizer steps taken."""
        if self.rate and updates % self.every == 0:
            for slow, fast in zip(self.target.parameters(), self.online.parameters(), strict=True):
                slow.lerp_(fast, self.rate)


def q_outputs(view: View, needs: frozenset[str]) -> dict[str, Tensor]:
    """Of the trained heads "q" and "q/logsumexp" ``[A, Q]``; "q/target" ``[A, Q]`` without gradient; "q/state_value" ``[A]``.

    Raises:
        TrainingError: the model has no Q heads.
    """
    heads, target_A = view.model.q_heads, view.target_A
    if heads is None:
        raise TrainingError("the loss needs Q heads and the model has none; add them before the learner is made")

    def chunk(hidden_AH: Tensor, target_A: Tensor) -> Scored:
        q_QAV = heads.all_actions(hidden_AH)
        chosen_QA = q_QAV.gather(-1, target_A.expand(HEADS, -1)[..., None]).squeeze(-1)
        return chosen_QA.T, q_QAV.logsumexp(-1).T

    hidden_AH = view.before_actions(view.hidden_NH)
    chosen_AQ, logsumexp_AQ = in_chunks(chunk, HEADS * int(view.model.config.vocab_size), hidden_AH, target_A)
    slow_AQ, state_A = heads.target_of(hidden_AH, target_A), heads.values(hidden_AH)
    return {"q": chosen_AQ, "q/logsumexp": logsumexp_AQ, "q/target": slow_AQ, "q/state_value": state_A}


register_head("q", QHeads)
register_output("q", q_outputs, reads="source_A")

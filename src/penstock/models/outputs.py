"""What a language model computes for a loss, by name; a module that brings an output registers it here.

An output is a function of a :class:`View`, one pass over a laid out batch. Built in are "logp", "entropy", "value",
"end_value", "step", "score" and "divergence"; :mod:`penstock.models.q_heads` brings "q".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from penstock.core.errors import SpecError, TrainingError
from penstock.core.types import IntArray
from penstock.models.experts import balance, router_logits

if TYPE_CHECKING:
    from penstock.models.language_model import LanguageModel
    from penstock.models.packing import TokenBatch

CHUNK_ELEMENTS = 1 << 24
"""Largest logits tensor kept at once: 16.8 million numbers, 67 MB in float32."""
ON_CUDA = 8
"""So many times larger on a GPU, which small products do not fill, and where each chunk adds to the whole head's gradient."""

MOST = 0.75
"""Share of a micro-batch's tokens up to which it pays to compute the end of the last block for them alone."""

IMPOSSIBLE = -1e4
"""Log-probs are cut here where they weigh themselves: ``exp`` of it is 0 in float64 too."""

Scored = tuple[Tensor, ...]
Between = Callable[[Tensor, Tensor], Tensor]
"""From two ``[A, V]`` of log-probs, the model's and its teacher's, to ``[A]``."""


class Vocabulary(Protocol):
    """The logits of hidden states, all of them or those of this rank's part of the vocabulary."""

    width: int
    """Most logits of a token on a rank."""

    def logits(self, hidden_AH: Tensor) -> Tensor: ...

    def scores(self, logits_AV: Tensor, target_A: Tensor, entropy: bool) -> Scored: ...


class _Entropy(torch.autograd.Function):
    """``-Σ_v p log p``, with a gradient that keeps no tensor ``[A, V]`` but the log-probs."""

    @staticmethod
    def forward(ctx: Any, logp_AV: Tensor) -> Tensor:
        ctx.save_for_backward(logp_AV)
        bounded_AV = logp_AV.clamp(min=IMPOSSIBLE)
        return bounded_AV.exp().mul_(bounded_AV).sum(-1).neg_()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        bounded_AV = ctx.saved_tensors[0].clamp(min=IMPOSSIBLE)
        return bounded_AV.exp().mul_(bounded_AV.add_(1)).mul_(-gradients[0][..., None])


def entropy_of(logp_AV: Tensor) -> Tensor:
    """``-Σ_v p log p`` in nats, ``[A]``; a token of probability 0 (log-prob -inf) adds 0, and so does its gradient."""
    entropy_A: Tensor = _Entropy.apply(logp_AV)
    return entropy_A


class _LogProb(torch.autograd.Function):
    """``logits[target] - logsumexp(logits)``; its gradient is one tensor ``[A, V]``: 1 at the target minus the softmax."""

    @staticmethod
    def forward(ctx: Any, logits_AV: Tensor, target_A: Tensor) -> Tensor:
        total_A = logits_AV.logsumexp(-1)
        ctx.save_for_backward(logits_AV, target_A, total_A)
        return logits_AV.gather(-1, target_A[:, None]).squeeze(-1) - total_A

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        logits_AV, target_A, total_A = ctx.saved_tensors
        gradient_A1 = gradients[0][:, None]
        found_AV = (logits_AV - total_A[:, None]).exp_().mul_(-gradient_A1)
        return found_AV.scatter_add_(-1, target_A[:, None], gradient_A1), None


class WholeVocabulary:
    """The vocabulary of a model whose output head is whole on this rank."""

    def __init__(self, model: LanguageModel) -> None:
        self.logits, self.width = model.logits, int(model.config.vocab_size)

    @staticmethod
    def scores(logits_AV: Tensor, target_A: Tensor, entropy: bool) -> Scored:
        """Log-probs ``[A]`` of targets and, if wanted, entropies ``[A]`` under the softmax of whole logits."""
        if not entropy:
            logp_A: Tensor = _LogProb.apply(logits_AV, target_A)
            return (logp_A,)
        logp_AV = logits_AV.log_softmax(-1)
        return logp_AV.gather(-1, target_A[:, None]).squeeze(-1), entropy_of(logp_AV)


@dataclass(frozen=True)
class Teacher:
    """What a divergence is from: ``hidden`` gives a frozen model's hidden states ``[A, H]`` that predict a batch's actions."""

    hidden: Callable[[Any], Tensor]
    logits: Callable[[Tensor], Tensor]
    between: Between


class View:
    """One pass of a model over a laid out batch, as outputs see it. Hidden states are computed when the first one asks."""

    def __init__(
        self, model: LanguageModel, tensors: Any, temperature: float, vocabulary: Vocabulary, teacher: Teacher | None
    ) -> None:
        self.model, self.tensors, self.temperature, self.vocabulary = model, tensors, temperature, vocabulary
        self.teacher = teacher
        self.taught_AH = None if teacher is None else teacher.hidden(tensors)

    @property
    def target_A(self) -> Tensor:
        """The action tokens."""
        target: Tensor = self.tensors.target_A
        return target

    @cached_property
    def hidden_NH(self) -> Tensor:
        """Last hidden states of the packed tokens."""
        return self._hidden(None)

    @cached_property
    def critic_NH(self) -> Tensor:
        """Those of the critic, which may have a trunk of its own."""
        return self.hidden_NH if self.model.critic_trunk is None else self._hidden(self.model.critic_trunk)

    def _hidden(self, trunk: Any) -> Tensor:
        tensors = self.tensors
        return self.model.hidden(tensors.tokens_N[None], tensors.position_N[None], tensors.plan, trunk)[0]

    def before_actions(self, hidden_NH: Tensor) -> Tensor:
        """The hidden states ``[A, H]`` that predict the actions."""
        return hidden_NH.index_select(0, self.tensors.source_A)


Compute = Callable[[View, frozenset[str]], Mapping[str, Tensor]]
"""Gives the output, and others of the needs with which it is computed together."""


@dataclass(frozen=True)
class Output:
    """How an output is computed, and whether it is one number a row (``[B]``) instead of an entry an action (``[A, ...]``)."""

    compute: Compute
    per_row: bool = False
    reads: str = ""
    """Indices of the batch at which it reads hidden states, ``source_A`` or ``last_B``; empty: anywhere."""


_outputs: dict[str, Output] = {}


def register_output(name: str, compute: Compute, *, per_row: bool = False, reads: str = "") -> None:
    """Let losses need an output of this name; see :class:`Output`. Raises SpecError where another one has the name."""
    if name in _outputs and _outputs[name].compute is not compute:
        raise SpecError(f'two outputs are named "{name}"; rename one')
    _outputs[name] = Output(compute, per_row, reads)


def per_row() -> frozenset[str]:
    """Names of the outputs with one number a row."""
    return frozenset(name for name, output in _outputs.items() if output.per_row)


def read_tokens(batch: TokenBatch, needs: frozenset[str]) -> IntArray | None:
    """Packed indices of the hidden states that outputs read, in order; None where they may read any, or read most."""
    reads = {_outputs[name].reads for name in needs if name in _outputs}
    if not reads or "" in reads:
        return None
    places = np.unique(np.concatenate([getattr(batch, name) for name in reads]))
    return places if 0 < len(places) <= MOST * len(batch.tokens_N) else None


def computed(view: View, needs: frozenset[str]) -> dict[str, Tensor]:
    """The outputs that are needed, in the order in which they were registered.

    Raises:
        TrainingError: one is not registered.
    """
    unknown = sorted(needs - _outputs.keys())
    if unknown:
        raise TrainingError(f'nobody has registered an output "{unknown[0]}"; known are {", ".join(sorted(_outputs))}')
    found: dict[str, Tensor] = {}
    for name, output in _outputs.items():
        if name in needs and name not in found:
            found |= output.compute(view, needs)
    return found


def in_chunks(compute: Callable[..., Scored], width: int, *inputs: Tensor) -> Scored:
    """``compute`` of tensors that agree in their first axis, so many rows at a time that ``width`` numbers a row stay bounded.

    A single chunk keeps what it computed for the backward pass; more chunks compute it again there, so memory stays bounded by
    one chunk.
    """
    rows = max(1, CHUNK_ELEMENTS * (ON_CUDA if inputs[0].is_cuda else 1) // width)
    if inputs[0].shape[0] <= rows:
        return compute(*inputs)
    again = torch.is_grad_enabled()
    parts = [
        checkpoint(compute, *part, use_reentrant=False) if again else compute(*part)
        for part in zip(*(tensor.split(rows) for tensor in inputs), strict=True)
    ]
    return tuple(torch.cat(pieces) for pieces in zip(*parts, strict=True))


def _tokens(view: View, needs: frozenset[str]) -> dict[str, Tensor]:
    """Log-probs and entropies of the actions under softmax(logits / temperature), in float32."""
    vocabulary, temperature, entropy = view.vocabulary, view.temperature, "entropy" in needs

    def chunk(hidden_AH: Tensor, target_A: Tensor) -> Scored:
        logits_AV = vocabulary.logits(hidden_AH)
        return vocabulary.scores(logits_AV if temperature == 1.0 else logits_AV / temperature, target_A, entropy)

    found = in_chunks(chunk, vocabulary.width, view.before_actions(view.hidden_NH), view.target_A)
    return dict(zip(("logp", "entropy"), found, strict=False))


def _value(view: View, needs: frozenset[str]) -> dict[str, Tensor]:
    return {"value": view.model.values(view.before_actions(view.critic_NH))}


def _end_value(view: View, needs: frozenset[str]) -> dict[str, Tensor]:
    """The value of the state after each row's last token. It asks for no token more, for which a full context has no room."""
    return {"end_value": view.model.values(view.critic_NH.index_select(0, view.tensors.last_B))}


def _divergence(view: View, needs: frozenset[str]) -> dict[str, Tensor]:
    """The divergence of the whole next-token distribution from the teacher's at every action."""
    teacher, taught_AH, temperature = view.teacher, view.taught_AH, view.temperature
    if teacher is None or taught_AH is None:
        raise TrainingError("the loss needs a divergence from a teacher, and the policy has none")

    def chunk(hidden_AH: Tensor, taught_AH: Tensor) -> Scored:
        with torch.no_grad():
            taught_AV = (teacher.logits(taught_AH) / temperature).log_softmax(-1)
        return (teacher.between((view.model.logits(hidden_AH) / temperature).log_softmax(-1), taught_AV),)

    (found_A,) = in_chunks(chunk, 2 * int(view.model.config.vocab_size), view.before_actions(view.hidden_NH), taught_AH)
    return {"divergence": found_A}


def _score(view: View, needs: frozenset[str]) -> dict[str, Tensor]:
    """The reward model's score of each row."""
    return {"score": view.model.scores(view.hidden_NH.index_select(0, view.tensors.last_B))}


def _step(view: View, needs: frozenset[str]) -> dict[str, Tensor]:
    """The reward model's score of the text before each action."""
    return {"step": view.model.scores(view.before_actions(view.hidden_NH))}


def _balance(view: View, needs: frozenset[str]) -> dict[str, Tensor]:
    """How unevenly the routers of a mixture of experts use them over the packed tokens: one number for the pass."""
    with router_logits(view.model.network) as logits:
        _ = view.hidden_NH
    return {"balance": balance(view.model.network, logits)}


register_output("balance", _balance)  # before what reads hidden states, because it looks on while they are computed
register_output("logp", _tokens, reads="source_A")
register_output("entropy", _tokens, reads="source_A")
register_output("value", _value, reads="source_A")
register_output("end_value", _end_value, per_row=True, reads="last_B")
register_output("divergence", _divergence, reads="source_A")
register_output("score", _score, per_row=True, reads="last_B")
register_output("step", _step, reads="source_A")

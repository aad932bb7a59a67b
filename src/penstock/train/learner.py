"""The one-device learner: forward and backward of packed micro-batches under a given loss, clip and step, score."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.config.run import LearnerSpec
from penstock.core.contracts import Batch, Denominator, Loss, Outputs, Scores, State
from penstock.core.errors import CheckpointError, NonFiniteError, TrainingError
from penstock.core.types import FloatArray, Metrics, Unit
from penstock.models.encoder_decoder import plan_of
from penstock.models.language_model import LanguageModel
from penstock.train.divergence_outputs import divergence_outputs
from penstock.train.dropout import dropped
from penstock.train.optimizer import Masters
from penstock.train.q_outputs import q_outputs
from penstock.train.restrict import add_critic, restrict
from penstock.train.schedule import rate_at
from penstock.train.token_scores import Vocabulary, scores_of, token_scores

LayOut = Callable[[Sequence[Unit], int, bool], list[Batch]]
Divergences = Callable[[Tensor], Tensor]


class Scoring:
    """Scores rows with a model and no gradient: a frozen reference or reward model, and the learner's own ``score``."""

    def __init__(self, model: LanguageModel, lay_out: LayOut, token_budget: int = 8192, share_prefix: bool = True) -> None:
        self.model = model
        self.lay_out = lay_out
        self.token_budget = token_budget
        self.share_prefix = share_prefix

    @torch.no_grad()
    def score(self, units: Sequence[Unit], needs: frozenset[str], temperature: float = 1.0) -> Scores:
        """Outputs named in ``needs`` ("logp", "entropy", "value", "score", "step"), one entry a row, in order of ``units``."""
        batches = self.lay_out(units, self.token_budget, self.share_prefix)
        return by_row(units, batches, needs, (self.numbers(batch, needs, temperature) for batch in batches))

    @torch.no_grad()
    def numbers(self, batch: Batch, needs: frozenset[str], temperature: float) -> dict[str, FloatArray]:
        """Outputs of one micro-batch: ``[A]`` over its actions, and ``[B]`` for "score"."""
        outputs = self.outputs(on_device(batch, self.model), needs, temperature)
        return {name: outputs[name].float().cpu().numpy() for name in needs}

    @torch.no_grad()
    def source_hidden(self, tensors: Any) -> Tensor:
        """Hidden states ``[A, H]`` that predict the action tokens of a batch: what a teacher gives a divergence."""
        with self.model.once():
            hidden_NH = self.model.hidden(tensors.tokens_N[None], tensors.position_N[None], tensors.plan)[0]
        return hidden_NH.index_select(0, tensors.source_A)

    def outputs(self, tensors: Any, needs: frozenset[str], temperature: float) -> Outputs:
        """One pass over a laid out batch."""
        return forward(self.model, tensors, needs, temperature)


PER_ROW = frozenset({"score"})
"""Outputs with one number a row; all others have one an action."""


def by_row(
    units: Sequence[Unit], batches: Sequence[Batch], needs: frozenset[str], numbers: Iterable[Mapping[str, FloatArray]]
) -> Scores:
    """The outputs of micro-batches, one entry a row, in order of the units that were laid out."""
    rows = sum(len(unit) for unit in units)
    found: dict[str, list[Any]] = {name: [np.zeros(0, np.float32)] * rows for name in needs}
    for batch, named in zip(batches, numbers, strict=True):
        ends = np.cumsum(np.bincount(batch.row_A, minlength=len(batch.row_ids)))[:-1]
        for name, values in named.items():
            parts = values.tolist() if name in PER_ROW else np.split(values, ends)
            for row, part in zip(batch.row_ids, parts, strict=True):
                found[name][row] = part
    return found


@dataclass(frozen=True)
class LearnerPlan:
    """What a learner is made for, beside its spec; the same on every rank."""

    total_steps: int
    """Optimizer steps that the schedule is laid out for."""
    temperature: float = 1.0
    """The sampling temperature, under which log-probs are compared with the generator's."""
    seed: int = 0
    """Seed of dropout, and of the first weights of adapters."""


class DeviceLearner(Scoring):
    """Implements the ``Learner`` contract on one device."""

    def __init__(self, model: LanguageModel, spec: LearnerSpec, lay_out: LayOut, plan: LearnerPlan) -> None:
        super().__init__(model, lay_out, spec.token_budget, spec.share_prefix)
        self.spec, self.plan = spec, plan
        self.masters = self._made_ready()
        self.updates = 0
        self.noise = torch.Generator().manual_seed(plan.seed)
        self.teacher: Scoring | None = None
        """The frozen model of losses that need a "divergence"; set by whoever makes the learner."""

    def _made_ready(self) -> Masters:
        """Prepare the model; gives the masters of what is trained."""
        prepare(self.model, self.spec, self.plan.seed)
        return Masters(self.model, self.spec)

    def accumulate(self, batch: Batch, loss: Loss, denominator: Denominator) -> Metrics:
        """Forward and backward one micro-batch; its loss is already its share of the whole (global denominator).

        Raises:
            NonFiniteError: the loss is not finite; gradients gathered so far are dropped.
        """
        tensors = on_device(batch, self.model)
        adapters = self.spec.lora.dropout if self.spec.lora is not None else 0.0
        with dropped(self.model, self.spec.token_dropout, self.spec.dropout, self.noise, adapters):
            outputs = forward(self.model, tensors, loss.needs, self.plan.temperature, self._divergence(loss, tensors))
        value, metrics = loss(outputs, tensors.fields, tensors, denominator)
        if not torch.isfinite(value):
            self.masters.drop()
            raise NonFiniteError(f"the loss is {value.item()} at optimizer step {self.updates}; the step was not taken")
        value.backward()
        return {"loss": float(value.detach())} | {name: float(metric) for name, metric in metrics.items()}

    def _divergence(self, loss: Loss, tensors: Any) -> Divergences | None:
        if "divergence" not in loss.needs:
            return None
        if self.teacher is None:
            raise TrainingError("the loss needs a divergence from a teacher, and the learner has none")
        teacher, hidden_AH = self.teacher.model, self.teacher.source_hidden(tensors)
        return partial(
            divergence_outputs,
            logits_of=self.model.logits,
            teacher_AH=hidden_AH,
            teacher_logits_of=teacher.logits,
            between=loss.divergence,  # type: ignore[attr-defined]
            vocabulary=self.model.config.vocab_size,
            temperature=self.plan.temperature,
        )

    def refresh(self) -> None:
        """``model`` is what is trained, so there is nothing to bring up to date."""

    def close(self) -> None:
        """There is nothing to give up."""

    def flush(self) -> Metrics:
        """Nothing waits: a micro-batch is carried out when it comes."""
        return {}

    def step(self) -> Metrics:
        """Clip, optimise, advance the schedule; gives gradient norm and learning rate."""
        rate = rate_at(self.spec, self.updates, self.plan.total_steps)
        norm = self.masters.step(rate)
        self.updates += 1
        if self.model.q_heads is not None:
            self.model.q_heads.follow(self.updates)
        return {"gradient_norm": norm, "learning_rate": rate}

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor) of the policy, one by one; adapters are merged, so any generator of the plain model can load them."""
        yield from ((name, tensor.detach()) for name, tensor in self.model.plain_weights())

    def state(self) -> State:
        state = self.masters.state()
        state.arrays["noise"] = self.noise.get_state()
        state.arrays |= {f"target.{name}": tensor for name, tensor in self._targets()}
        state.values = {"updates": self.updates}
        return state

    def _targets(self) -> list[tuple[str, Tensor]]:
        heads = self.model.q_heads
        return [] if heads is None else [(name, tensor.detach()) for name, tensor in heads.target.named_parameters()]

    def load_state(self, state: State) -> None:
        self.masters.load_state(state)
        for name, tensor in self._targets():
            if f"target.{name}" not in state.arrays:
                raise CheckpointError(f'checkpoint does not fit the model: target head "{name}" is missing')
            tensor.copy_(state.arrays[f"target.{name}"])
        self.noise.set_state(state.arrays["noise"])
        self.updates = int(state.values["updates"])


def prepare(model: LanguageModel, spec: LearnerSpec, seed: int) -> None:
    """Freeze what is not trained, add adapters and critic, and set the mode for training."""
    restrict(model, spec, seed)
    add_critic(model, spec)
    if spec.gradient_checkpointing:
        model.network.gradient_checkpointing_enable({"use_reentrant": False})
    model.network.train(spec.gradient_checkpointing)  # dropout is zero either way; transformers checkpoints in train mode


def on_device(batch: Batch, model: LanguageModel) -> Any:
    """A namespace with the batch's arrays as tensors under the same names (indices int64)."""

    def index(array: Any) -> Tensor:
        return torch.as_tensor(np.ascontiguousarray(array), dtype=torch.int64).to(model.device, non_blocking=True)

    def number(array: FloatArray) -> Tensor:
        return torch.as_tensor(np.ascontiguousarray(array), dtype=torch.float32).to(model.device, non_blocking=True)

    names = ("tokens_N", "position_N", "source_A", "target_A", "row_A", "last_B", "unit_B")
    return SimpleNamespace(
        plan=plan_of(model, batch),
        **{name: index(getattr(batch, name)) for name in names},
        fields={name: number(array) for name, array in batch.fields.items()},
    )


def forward(
    model: LanguageModel,
    tensors: Any,
    needs: frozenset[str],
    temperature: float,
    divergence: Divergences | None = None,
    head: Vocabulary | None = None,
) -> Outputs:
    """Run the modules that ``needs`` asks for, only at the positions that need them; frozen blocks run once for all.

    ``divergence`` computes that of a teacher from hidden states ``[A, H]``. ``head`` scores tokens where the model's own does
    not stand whole on this rank.
    """
    plan = tensors.plan
    tokens, position = tensors.tokens_N[None], tensors.position_N[None]
    found: dict[str, Tensor] = {}
    hidden_NH = value_NH = None
    with model.once():
        if needs & {"logp", "entropy", "score", "step", "q"} or divergence is not None or model.critic_trunk is None:
            hidden_NH = value_NH = model.hidden(tokens, position, plan)[0]
        if "value" in needs and model.critic_trunk is not None:
            value_NH = model.hidden(tokens, position, plan, model.critic_trunk)[0]
    if needs & {"logp", "entropy"}:
        assert hidden_NH is not None
        found["logp"], entropy_A = token_scores(
            hidden_NH.index_select(0, tensors.source_A),
            tensors.target_A,
            model.logits if head is None else head.logits,
            model.config.vocab_size if head is None else head.width,
            temperature=temperature,
            entropy="entropy" in needs,
            scores=scores_of if head is None else head.scores,
        )
        if entropy_A is not None:
            found["entropy"] = entropy_A
    if "value" in needs:
        assert value_NH is not None
        found["value"] = model.values(value_NH.index_select(0, tensors.source_A))
    if "q" in needs:
        if model.q_heads is None or hidden_NH is None:
            raise TrainingError("the loss needs Q heads and the model has none; call add_q_heads before the learner is made")
        hidden_AH = hidden_NH.index_select(0, tensors.source_A)
        found |= q_outputs(model.q_heads, hidden_AH, tensors.target_A, model.config.vocab_size)
    if divergence is not None and hidden_NH is not None:
        found["divergence"] = divergence(hidden_NH.index_select(0, tensors.source_A))
    if "score" in needs:
        assert hidden_NH is not None
        found["score"] = model.scores(hidden_NH.index_select(0, tensors.last_B))
    if "step" in needs:
        assert hidden_NH is not None
        found["step"] = model.scores(hidden_NH.index_select(0, tensors.source_A))
    return found

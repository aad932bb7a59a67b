"""The two contracts (generator, learner) and the small protocols around them.

An inference engine implements :class:`Generator`, a trainer :class:`Learner`; a frozen reference, reward or judge model
is a :class:`Scorer`. Loops know these protocols only. Tensor types are written as ``Any`` where a numpy or torch array may
stand, because this module imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from penstock.core.errors import SpecError
from penstock.core.types import (
    FloatArray,
    GeneratorStats,
    Group,
    IntArray,
    Metrics,
    OnToken,
    Prompt,
    Request,
    Sample,
    SampleKey,
    Unit,
    Version,
    WeightUpdate,
)


@runtime_checkable
class FollowsWeights(Protocol):
    """What takes the learner's weights, version after version."""

    async def load(self, update: WeightUpdate) -> Version:
        """Take new weights between two steps, wholly or not at all (WeightError leaves the old ones)."""
        ...

    def stats(self) -> GeneratorStats: ...


class Generator(FollowsWeights, Protocol):
    """The inference contract. Every verb may be called while others are in flight."""

    async def generate(self, request: Request) -> Sample:
        """Draw one sample; gives its tokens, behaviour log-probs and a version per token.

        Waits for a place in the batch and for the decode steps; unblocked by the engine's own progress.
        Raises GenerationError when the prompt does not fit the context.
        """
        ...

    async def score(self, tokens_T: IntArray, temperature: float = 1.0, prompt: int | None = None) -> FloatArray:
        """Log-prob of every token given those before it, the same numbers as ``generate``; 0 for the first ``prompt``.

        None is 1; an encoder-decoder refuses it, because its numbers depend on how much the encoder reads.
        """
        ...

    async def abort(self, keys: Collection[SampleKey]) -> list[Sample]:
        """Stop the named samples; gives what was generated. Their ``generate`` returns the same, ``finish="abort"``."""
        ...


class StreamingGenerator(Generator, Protocol):
    """A generator that tells of tokens as they are generated, and can be stopped between two of them."""

    async def generate(self, request: Request, on_token: OnToken | None = None) -> Sample: ...

    def pause(self) -> None:
        """Draw no more tokens until ``resume``; requests stay where they are, with their cache."""
        ...

    def resume(self) -> None: ...


@dataclass(frozen=True)
class Denominator:
    """What a batch's summed losses are divided by: its global counts over all micro-batches and ranks.

    ``tokens`` actions (for language, action tokens), ``rows`` trajectories, ``units`` groups or pairs. A loss picks the one
    that its equation names.
    """

    tokens: float
    rows: float
    units: float

    @staticmethod
    def of(units: Sequence[Unit]) -> Denominator:
        """The counts of a batch before it is split."""
        rows = [row for unit in units for row in unit]
        actions = sum(int(row.action_T.sum()) for row in rows)
        return Denominator(tokens=float(actions), rows=float(len(rows)), units=float(len(units)))


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Rows laid out by a policy as one micro-batch, ``A`` actions of ``B`` rows. What is here is all that a loss sees; the
    rest is the policy's own. Arrays are numpy."""

    row_A: IntArray
    """The row (0 … B-1) of each action."""
    unit_B: IntArray
    """The unit (0 … units-1) of each row."""
    fields: Mapping[str, FloatArray]
    """Per-action ``[A, ...]`` or per-row ``[B]`` arrays, as labelled."""
    row_ids: tuple[int, ...] = ()
    """Position of each row in the sequence that was laid out."""


class Policy(Protocol):
    """A kind of model that decides: it lays rows out under a budget and computes what a loss needs of each decision.

    A learner runs losses over a policy and knows neither tokens nor language. A policy of one's own derives from this class and
    says ``module``, ``lay_out`` and ``outputs``; the other members have defaults.
    """

    gives_values: bool = False
    """Whether it gives another policy's critic's values next to its own outputs, from the same pass."""

    @property
    def module(self) -> Any:
        """The torch module whose parameters are trained and published."""
        ...

    @property
    def device(self) -> Any:
        """Where its parameters are."""
        return next(self.module.parameters()).device

    @property
    def per_row(self) -> frozenset[str]:
        """Names of the outputs with one number a row; all others have an entry an action."""
        return frozenset()

    def lay_out(self, units: Sequence[Unit], budget: int, coupled: bool = True) -> Sequence[Batch]:
        """Units as micro-batches under a budget, split between rows unless these are ``coupled``; what is larger is alone."""
        ...

    def outputs(self, batch: Any, needs: frozenset[str]) -> Outputs:
        """The named outputs of a batch that it laid out, as tensors on its device, with gradient."""
        ...

    def weights(self) -> Iterator[tuple[str, Any]]:
        """(name, tensor) of what generators need, one by one, without gradient."""
        yield from ((name, tensor.detach()) for name, tensor in self.module.named_parameters())

    def prepare(self, spec: Any, seed: int) -> None:
        """Make ready to be trained as a learner's spec says; a second call changes nothing.

        Raises:
            SpecError: the spec asks for what only language policies have.
        """
        asked = {"lora": spec.lora is not None, "unfrozen_layers": spec.unfrozen_layers >= 0, "critic": spec.critic != "none"}
        asked |= {"dropout": spec.dropout > 0, "token_dropout": spec.token_dropout > 0}
        for name in (name for name, yes in asked.items() if yes):
            raise SpecError(f"learner.{name} is known to language policies, not to {type(self).__name__}; leave it out")

    def dropout(self, spec: Any, noise: Any) -> AbstractContextManager[None]:
        """Within it passes have the dropout that a learner's spec asks for, from the random stream ``noise``."""
        return nullcontext()

    def stepped(self, updates: int) -> None:
        """Called after each optimizer step with their number so far: what follows the trained parameters slowly may move."""
        return None

    def slow(self) -> Sequence[tuple[str, Any]]:
        """(name, tensor) of what :meth:`stepped` moves, for checkpoints."""
        return ()


Outputs = Mapping[str, Any]
"""What a loss ``needs``, by name: tensors over a batch's actions (``[A, ...]``) or its rows (``[B]``), with gradient.

A file that brings an output registers it under its name (``models/outputs.py``). Built in are per action "logp", "entropy",
"value" and "step" (reward-model score of the text before the action), per row "score", and "divergence", per action, of the
whole next-token distribution from a frozen teacher's, nats, as the loss's ``divergence`` says. One that gives several tensors
names the others after itself: "q" ``[A, Q]`` is the value of the action taken by each Q head, "q/logsumexp" ``[A, Q]`` the
log of the summed exponentials of the values of all actions, "q/target" ``[A, Q]`` the value by the slow target heads, without
gradient, "q/state_value" ``[A]`` that of the state before the action.
"""

Scores = Mapping[str, list[Any]]
"""Outputs without gradient, by name: one entry a row, a numpy array over the row's actions or a float."""


LossOutput = tuple[Any, Mapping[str, Any]]


@runtime_checkable
class Loss(Protocol):
    """A loss over one micro-batch.

    Called as ``loss(outputs, fields, batch, denominator)`` with ``fields`` as tensors. Returns the micro-batch's share of
    the batch's loss (already divided by the global denominator, so that shares add up) and metrics that are sums already
    divided in the same way.
    """

    @property
    def needs(self) -> frozenset[str]:
        """Names of the outputs to compute."""
        ...

    def __call__(self, outputs: Outputs, fields: Mapping[str, Any], batch: Any, denominator: Denominator) -> LossOutput: ...


class Scorer(Protocol):
    """A frozen model: the ``score`` verb alone."""

    @property
    def gives_values(self) -> bool:
        """Whether it can be asked for the critic's "value" as well, from the same pass."""
        ...

    def score(self, units: Sequence[Unit], needs: frozenset[str]) -> Scores: ...


@dataclass
class State:
    """What a holder gives the checkpoint store: named arrays (numpy or torch) and JSON-like values. Never pickled.

    Arrays that are in pieces elsewhere are a read-only mapping with a ``table`` (type and shape by name): it fetches an array
    when it is read, so the store never has all of them in memory.
    """

    arrays: dict[str, Any]
    values: dict[str, Any]


class Holder(Protocol):
    """Anything whose state belongs in a checkpoint."""

    def state(self) -> State: ...

    def load_state(self, state: State) -> None: ...


@dataclass(frozen=True)
class Caution:
    """What holds an optimizer step back."""

    rate: float = 1.0
    """Factor of the learning rate."""
    limit: float = math.inf
    """Gradient norm above which the step is not taken; 0: no step is."""
    planned: int | None = None
    """Optimizer steps that the plan has before this one, by which the schedule goes: those that were left out and those that a
    rollback undid count as well. None: those taken."""


FULL_STEP = Caution()


@runtime_checkable
class Learner(Holder, Protocol):
    """The training contract. Its state is everything that a resume needs."""

    def lay_out(self, units: Sequence[Unit], coupled: bool = True) -> Sequence[Batch]:
        """Units as micro-batches of its policy, under its budget; see :meth:`Policy.lay_out`."""
        ...

    def accumulate(self, batch: Batch, loss: Loss, denominator: Denominator) -> None:
        """Forward and backward one micro-batch; gradients add up until ``step``. What came of it is not waited for, and a
        learner on several ranks may keep it until each has one."""
        ...

    def flush(self) -> Metrics:
        """Carry out the micro-batches that still wait; gives the metrics of all since the last flush. ``step`` does it as well.
        Raises NonFiniteError where a loss is not finite; gradients gathered so far are dropped."""
        ...

    def step(self, caution: Caution = FULL_STEP) -> Metrics:
        """Clip, optimise, advance the schedule. Raises SkippedStepError and changes nothing where the gradient is not finite,
        or its norm is above the limit."""
        ...

    def weights(self) -> Iterator[tuple[str, Any]]:
        """A neutral (name, tensor) stream of the policy's weights."""
        ...

    def score(self, units: Sequence[Unit], needs: frozenset[str]) -> Scores: ...


Columns = Mapping[str, Sequence[Sequence[Any]]]
"""What an algorithm ``needs`` in addition to groups, by name: ``[group][sample]``, an array over actions or a number.

A file that brings a column registers it (``core/columns.py``). Built in are "reference" (log-probs under the frozen
reference), "value" (of the critic), "proximal" (log-probs under the learner's weights before the batch is trained on) and
"bootstrap" (a number: the critic's value of the state after the last action of a sample that was cut at its longest length,
0 for all others).
"""

Coefficients = Mapping[str, Any]
"""What an algorithm moves from batch to batch, by name: numbers (the price of the KL, a quantile) and other plain values, such
as the latest rewards of prompts. An algorithm gives where they start and how they follow a batch; checkpoints hold them."""

Score = float | Sequence[float | None] | None
"""What a reward gives a sample: a number, one number per action token, or None for "does not apply"."""

RewardFunction = Callable[..., Any]
"""``(sample or group, columns) -> Score or list of Scores``, plain or ``async``."""


class Reward(Protocol):
    """Scores a finished group. A failure marks the sample it happened on and never a sibling."""

    async def __call__(self, group: Group) -> Group: ...

    async def close(self) -> None: ...


class Source(Protocol):
    """A finite, indexable list of data rows; the sampler decides the order."""

    name: str

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Mapping[str, Any]: ...


class Channel(Protocol):
    """How weights of a version travel from a learner to its generators."""

    async def publish(self, version: Version) -> None: ...


class PromptSource(Protocol):
    """Names the next prompt: a pure function of (seed, epoch, ordinal)."""

    def __call__(self, ordinal: int) -> Prompt: ...

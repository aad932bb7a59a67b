"""The contract of an algorithm: all that loops, runtime and checks ask of one, with a base class for each kind.

An algorithm is a frozen spec of plain values that labels rows and names a loss. It learns from samples that a policy generates
(:class:`FromSamples`) or straight from data (:class:`FromData`). What else it needs grows without a change here: each file
registers the columns, outputs, heads and slow variables that it brings by name.
"""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, ClassVar, Literal, Protocol, TypeVar

from penstock.core.columns import column_named
from penstock.core.contracts import Coefficients, Columns, Denominator, Loss, LossOutput, Outputs, Scores
from penstock.core.types import FloatArray, Group, Metrics, Row, Unit

Own = TypeVar("Own", bound="FromData")
LogProbs = Callable[[Sequence[Unit]], list[FloatArray]]
"""Log-probs of the actions of each row, without gradient."""


class Encoder(Protocol):
    """What is needed of a tokenizer: text to ids, the id that closes an answer, and all that end one."""

    @property
    def end(self) -> int: ...

    @property
    def ends(self) -> Collection[int]: ...

    def encode(self, text: str) -> list[int]:
        """Ids of a piece of text, with none before or after it."""

    def prompt(self, text: str) -> list[int]:
        """Ids of a text that begins a sequence."""

    def pair(self, prompt: str, completion: str) -> tuple[list[int], list[int]]:
        """Ids of a prompt and of the completion that follows it."""


class Algorithm(ABC):
    """What both kinds have in common.

    A subclass that misspells a member of the contract is refused where it is defined.
    """

    learns_from: ClassVar[Literal["samples", "data", "steps"]]
    coupled: ClassVar[bool] = True
    """Whether ``compute_loss`` of a row depends on the other rows of its unit, as that of a pair does."""

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        contract = {name for base in cls.__mro__ if base.__module__ == __name__ for name in vars(base) if name[0] != "_"}
        known = contract.union(*(vars(base) for base in cls.__mro__[1:]))
        brought = {name for name, value in vars(cls).items() if isinstance(value, property | FunctionType)} - known
        for name in (name for name in sorted(brought) if name[0] != "_"):
            if meant := difflib.get_close_matches(name, contract, 1, 0.87):
                raise TypeError(f"{cls.__name__}.{name} is no member of an algorithm; did you mean {meant[0]}?")

    @property
    def needs(self) -> frozenset[str]:
        """Names of the columns to fill before rows are labelled (``core/columns.py``)."""
        return frozenset()

    @property
    def denoises(self) -> bool:
        """Whether it is for diffusion policies alone."""
        return False

    @property
    def heads(self) -> Mapping[str, Mapping[str, Any]]:
        """Modules on the model's trunk for this algorithm, by the name under which they are registered
        (``models/heads.py``), each with the plain values that it is made from. "value" is the critic that the learner's spec
        describes, "score" the head of a reward model."""
        return {}

    @property
    def teacher(self) -> Callable[[Any, Any], Any] | None:
        """What the output "divergence" is: from the log-probs ``[A, V]`` of the policy and of the frozen reference, its
        teacher, to ``[A]``. None: the loss does not need it."""
        return None

    @property
    def reference(self) -> bool:
        """Whether a frozen reference model is needed: by a column, or as the teacher."""
        return self.teacher is not None or any(column_named(name).model == "reference" for name in self.needs)

    @property
    def loss_reads(self) -> frozenset[str]:
        """Outputs that ``compute_loss`` reads."""
        return frozenset({"logp"})

    @abstractmethod
    def compute_loss(self, outputs: Outputs, fields: Mapping[str, Any], batch: Any, denominator: Denominator) -> LossOutput:
        """A micro-batch's share of the loss and of the metrics; see :class:`penstock.core.contracts.Loss`."""

    def loss(self) -> Loss:
        """The loss as a learner is given it."""
        return AlgorithmLoss(self)


@dataclass(frozen=True)
class AlgorithmLoss:
    """The loss that an algorithm computes."""

    algorithm: Algorithm

    @property
    def needs(self) -> frozenset[str]:
        return self.algorithm.loss_reads

    def __call__(self, outputs: Outputs, fields: Mapping[str, Any], batch: Any, denominator: Denominator) -> LossOutput:
        return self.algorithm.compute_loss(outputs, fields, batch, denominator)


class FromSamples(Algorithm):
    """Learns from generated samples: turns scored groups into labelled rows."""

    learns_from: ClassVar[Literal["samples", "data"]] = "samples"
    greedy: ClassVar[bool] = False
    """Whether each group has a greedy answer as well, as the baseline of its samples."""
    named_reference: ClassVar[bool] = False
    """Whether the stage must name the reference, because the model that it starts from would be none."""
    quiet_samples: ClassVar[bool] = False
    """Whether samples at temperature 0 will do, as those of a denoiser, which differ by their first noise."""

    @property
    def judge(self) -> str:
        """The name of the function of tensors that the output "judged" is; empty: the loss does not need it."""
        return ""

    @property
    def least_samples(self) -> int:
        """Valid samples without which a group cannot be labelled."""
        return 1

    @property
    def bounded(self) -> bool:
        """Whether samples of older weights are harmless, because something bounds what they can do."""
        return False

    @property
    def single_step(self) -> bool:
        """Whether a batch is good for one optimizer step alone, as nothing in the loss says how far the policy has moved."""
        return False

    def has_signal(self, group: Group) -> bool:
        """Whether anything can be learned from a scored group; one without may be replaced (``Online.dynamic_sampling``)."""
        return len(scored_samples(group)) >= self.least_samples

    @abstractmethod
    def label(self, groups: Sequence[Group], columns: Columns, coefficients: Coefficients) -> list[Unit]:
        """Turn scored groups into rows with advantages, targets and weights. Groups without signal may be left out."""

    def initial_coefficients(self) -> Coefficients:
        """Where what it moves from batch to batch starts; nothing if it moves nothing."""
        return {}

    def remember(self, coefficients: Coefficients, groups: Sequence[Group]) -> Coefficients:
        """The coefficients that a batch is labelled with, now that its rewards are known; changes nothing in place."""
        return coefficients

    def adapt(self, coefficients: Coefficients, metrics: Metrics) -> Coefficients:
        """The coefficients of the next batch, after one whose metrics are given; changes nothing in place."""
        return coefficients


class FromData(Algorithm):
    """Learns straight from data: turns rendered examples into rows."""

    learns_from: ClassVar[Literal["samples", "data"]] = "data"
    data: Literal["examples", "pairs", "prompts"] = "examples"
    """What ``rows`` is given: a prompt and its completion, a prompt and two completions, or a prompt and bare columns."""
    truncates: ClassVar[bool] = False
    """Whether a row without its end means what it did, so far as it goes."""

    @property
    def every_turn(self) -> bool:
        """Whether ``rows`` reads ``turns``: (prompt, completion) of each of the assistant's turns in a conversation."""
        return False

    @property
    def least_units(self) -> int:
        """Units of a batch without which it is undefined."""
        return 1

    @abstractmethod
    def rows(self, example: Mapping[str, Any], tokenizer: Encoder) -> Unit:
        """The rows of an example. Raises DataError where it cannot be trained on."""

    def fitted(self: Own, units: Iterable[Unit]) -> Own:
        """The spec with what is computed from all units that will be trained on, which it may read to their end."""
        return self

    def truncated(self, row: Row, length: int) -> Row:
        """The first ``length`` tokens of a row, at least one of them an action."""
        return Row({"tokens_T": row.tokens_T[:length]}, row.action_T[:length], row.fields)

    @property
    def data_columns(self) -> tuple[str, ...]:
        """Columns of a data row that ``rows`` reads because the spec names them."""
        return ()

    @property
    def has_baseline(self) -> bool:
        """Whether ``with_baseline`` completes each batch."""
        return False

    def with_baseline(self, units: Sequence[Unit], policy: LogProbs, reference: LogProbs) -> Sequence[Unit]:
        """The units of a whole batch with what depends on all of them, under the weights as they are before the step."""
        return units

    @property
    def assessed_by(self) -> frozenset[str]:
        """Outputs that ``assess`` reads."""
        return frozenset({"logp"})

    @abstractmethod
    def assess(self, units: Sequence[Unit], scores: Scores) -> Metrics:
        """Held-out metrics of units from the learner's scores of them."""


def scored_samples(group: Group) -> list[Any]:
    """The samples of a group that may be trained on."""
    return [sample for sample in group.samples if sample.valid and not sample.extras.get("greedy")]


def rewards_differ(group: Group) -> bool:
    """Whether two valid samples differ in reward."""
    return len({sample.reward for sample in group.samples if sample.valid}) > 1

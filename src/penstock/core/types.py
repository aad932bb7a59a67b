"""The nouns that travel between roles: prompts, samples, groups, requests, rows.

Shapes ride in names: ``T`` steps of one trajectory (for language a step is a token), ``G`` samples of a prompt, ``A`` actions,
``N`` packed tokens, ``B`` rows, ``V`` vocabulary. Arrays are numpy, so that this module needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.core.blobs import Blob
from penstock.core.errors import DataError, SpecError

IntArray = NDArray[np.int32]
FloatArray = NDArray[np.float32]
BoolArray = NDArray[np.bool_]

StepColumns = Mapping[str, NDArray[Any]]
"""Named arrays whose first axis is the steps of one trajectory; any further axes are a step's own."""

TOKENS = "tokens_T"
"""The column of a language policy: one token a step, prompt included."""

PART = "part_T"
"""The column of trajectories that are several sequences, one for each rendering of a conversation: which one a step is of."""

LEFT_OUT, STEP_ENDS, LARGEST_REWARD = "left_out_T", "step_ends_T", 1e9
"""Among a sample's extras: marks ``[T]`` of actions too old to be trained on, and of where a reward said that steps end. Last,
the largest reward: beyond it squares, summed over a batch, leave float32."""

Version = int
"""How many trained batches had been published when a forward pass ran; 0 is the untrained model."""

FinishReason = Literal["stop", "length", "abort", "error"]
CachePolicy = Literal["keep", "recompute", "abort", "drain"]

OnToken = Callable[[int, float, Version], None]
"""Hears of a token when it is generated: the token, its log-prob, and the version that produced it. Called between two decode
steps, so it must be quick and must not raise."""


class PromptKey(NamedTuple):
    """Identifies one unit of work for ever: the ordinal-th draw of an epoch of a source."""

    source: str
    epoch: int
    ordinal: int

    def __str__(self) -> str:
        return f"{self.source}/{self.epoch}/{self.ordinal}"


class SampleKey(NamedTuple):
    """Identifies one trajectory: the prompt and which sample of its group."""

    prompt: PromptKey
    sample: int

    def __str__(self) -> str:
        return f"{self.prompt}#{self.sample}"


@dataclass(frozen=True)
class Prompt:
    """One unit of work: its text (or chat messages) and the columns of the data row it came from."""

    key: PromptKey
    text: str
    messages: tuple[Mapping[str, Any], ...] = ()
    columns: Mapping[str, Any] = field(default_factory=dict)
    blobs: tuple[Blob, ...] = ()
    """Images, sounds and videos that belong to it."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are sampled.

    ``temperature=0`` is greedy. Log-probs are those of the whole distribution at this temperature, before ``top_k``,
    ``top_p`` and ``min_p`` cut it, which is what a learner can recompute. With ``beta`` above 0 logits are shifted by ``beta``
    times the advantages of the model's Q heads (ILQL), and log-probs are those after the shift.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    max_new_tokens: int = 128
    stop: tuple[str, ...] = ()
    stop_tokens: tuple[int, ...] = ()
    seed: int = 0
    beta: float = 0.0

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise SpecError(f"temperature={self.temperature} is negative; use 0 for greedy decoding or a positive value")
        if self.top_k < 0:
            raise SpecError(f"top_k={self.top_k} is negative; use 0 for no limit")
        if not 0 < self.top_p <= 1:
            raise SpecError(f"top_p={self.top_p} is outside (0, 1]; use 1 for no limit")
        if not 0 <= self.min_p < 1:
            raise SpecError(f"min_p={self.min_p} is outside [0, 1); use 0 for no limit")
        if self.beta < 0:
            raise SpecError(f"beta={self.beta} is negative; use 0 for the policy as it is")
        if self.max_new_tokens < 1:
            raise SpecError(f"max_new_tokens={self.max_new_tokens}; at least one token must be generated")
        if "" in self.stop:
            raise SpecError("stop has an empty text, which would end every sample before it begins; leave it out")


class Stepwise:
    """What samples and rows have in common: columns over steps, of which some are actions."""

    columns: StepColumns
    action_T: BoolArray

    @property
    def tokens_T(self) -> IntArray:
        """The tokens of a language policy. Raises DataError where the policy's steps are no tokens."""
        if TOKENS not in self.columns:
            names = ", ".join(sorted(self.columns)) or "none"
            raise DataError(f"a step of this policy is no token, so there is no column {TOKENS}; its columns are: {names}")
        return self.columns[TOKENS]


def require_steps(what: str, steps: int, columns: Mapping[str, Any]) -> None:
    """Raises DataError, with the name of the column, where one has not ``steps`` entries along its first axis."""
    for name, column in columns.items():
        if len(column) != steps:
            raise DataError(f"{what}: column {name} has {len(column)} entries for {steps} steps; give one a step")


@dataclass(frozen=True)
class Sample(Stepwise):
    """One trajectory as aligned columns over its steps, those before the first action (a prompt) included.

    ``columns`` belong to the policy that made the sample: ``tokens_T`` for language, observations and actions for control,
    with as many further axes as they need. The four that everybody knows are fields: ``action_T`` is true for steps that the
    policy decided; ``logp_T`` and ``version_T`` are 0 and -1 elsewhere; ``reward_T`` holds rewards by step once a reward has
    scored the sample. ``error`` names the boundary that failed, if one did, and such a sample is never trained on.

    Raises:
        DataError: columns of different lengths; names the sample and the column.
    """

    key: SampleKey
    columns: StepColumns
    action_T: BoolArray
    logp_T: FloatArray
    version_T: IntArray
    finish: FinishReason
    text: str = ""
    reward_T: FloatArray | None = None
    error: str | None = None
    extras: Mapping[str, Any] = field(default_factory=dict)
    blobs: tuple[Blob, ...] = ()
    """Images, sounds and videos that it made or was shown; its columns may index them."""
    marked: str | None = None
    """The text with the special tokens that it has besides its end; None where it has none."""

    def __post_init__(self) -> None:
        steps = len(self.action_T)
        if len(self.logp_T) == steps == len(self.version_T):  # samples are made by the ten thousand: no list for those that fit
            for column in self.columns.values():
                if len(column) != steps:
                    break
            else:
                return
        require_steps(f"sample {self.key}", steps, {**self.columns, "logp_T": self.logp_T, "version_T": self.version_T})

    @property
    def valid(self) -> bool:
        """Whether the sample may be trained on: it was scored, nothing failed, and it has an action."""
        return self.error is None and self.reward_T is not None and bool(self.action_T.any())

    @property
    def raw_text(self) -> str:
        """The text (of the last turn) with its special tokens, such as an ``<answer>`` that was added as one."""
        return self.text if self.marked is None else self.marked

    @property
    def reward(self) -> float | None:
        """The sum of the rewards of its steps, or None while the sample is unscored."""
        return None if self.reward_T is None else float(self.reward_T.sum())

    @property
    def oldest_version(self) -> Version:
        """The oldest version that produced one of the actions."""
        return int(self.version_T[self.action_T].min()) if self.action_T.any() else -1

    def scored(self, reward: float | Sequence[float]) -> Sample:
        """A copy with its reward: a float lands on the last action, a sequence has one entry per action."""
        reward_T = np.zeros(len(self.action_T), np.float32)
        actions = np.flatnonzero(self.action_T)
        if isinstance(reward, Sequence | np.ndarray):
            reward_T[actions] = np.asarray(reward, np.float32)
        elif len(actions):
            reward_T[actions[-1]] = reward
        return replace(self, reward_T=reward_T)

    def failed(self, error: str) -> Sample:
        """A copy marked as failed at a boundary; its siblings are untouched."""
        return replace(self, error=error)


@dataclass(frozen=True)
class Group:
    """The samples of one prompt. ``origin`` names the generator that drew them and the index of this group among its groups."""

    prompt: Prompt
    samples: tuple[Sample, ...]
    origin: str = ""

    @property
    def key(self) -> PromptKey:
        return self.prompt.key

    @property
    def oldest_version(self) -> Version:
        """The oldest version among the actions that may be trained on; -1 if there is none."""
        acted = [sample.version_T[sample.action_T] for sample in self.samples]
        versions = np.concatenate(acted) if acted else np.empty(0, np.int32)
        return int(versions.min()) if len(versions) else -1

    @property
    def blobs(self) -> tuple[Blob, ...]:
        """Those of the prompt and of all samples, each once."""
        return tuple(dict.fromkeys([*self.prompt.blobs, *(blob for sample in self.samples for blob in sample.blobs)]))


@dataclass(frozen=True)
class Request:
    """What a generator is asked for: prompt tokens, how to draw, and, to resume, the tokens generated before."""

    key: SampleKey
    tokens_T: IntArray
    sampling: Sampling
    resume: Sample | None = None
    keep: bool = False
    """Whether a request of this key may follow that begins with this one's sample: its cache is kept, until an ``abort``."""
    blobs: tuple[Blob, ...] = ()  # what its tokens show, in order


@dataclass(frozen=True)
class WeightUpdate:
    """Weights of one version on their way to a generator.

    ``tensors`` is an iterable of (name, tensor), or None where the generator aliases the learner's parameters. The
    update is applied between two decode steps, wholly or not at all; its channel has verified its bytes.

    ``learner_epoch`` counts the learner's starts (a fencing token): a restarted one may bring an older version again.
    ``owned`` says that nobody else holds the tensors, so that the generator may keep them instead of copying.
    """

    version: Version
    tensors: Any = None
    kv: CachePolicy = "keep"
    learner_epoch: int = 0
    owned: bool = False


@dataclass(frozen=True)
class GeneratorStats:
    """A generator's state at a glance. ``cache_use`` is a fraction of the pool; rates are over the last busy second."""

    version: Version
    running: int
    waiting: int
    cache_use: float
    generated_tokens: int
    busy_seconds: float
    prefilled_tokens: int = 0
    reused_tokens: int = 0  # taken from what was kept of a conversation, or others had read


@dataclass(frozen=True)
class Row(Stepwise):
    """One trajectory labelled by an algorithm, ready to be laid out for a learner.

    ``columns`` are those of the policy that reads it. ``fields`` maps a name to a float (one value for the row) or to an array
    over the row's *actions*, in order, whose further axes are the field's own.
    """

    columns: StepColumns
    action_T: BoolArray
    fields: Mapping[str, float | FloatArray] = field(default_factory=dict)


Unit = tuple[Row, ...]
"""Rows that a loss sees together (a group, a preference pair); never split over micro-batches."""


def with_field(units: Sequence[Unit], name: str, values: Iterable[float | FloatArray]) -> list[Unit]:
    """Units whose rows have one more field; ``values`` holds one for each row, in order."""
    left = iter(values)
    return [tuple(replace(row, fields={**row.fields, name: next(left)}) for row in unit) for unit in units]


Metrics = dict[str, float]


def added(totals: Metrics, more: Metrics) -> Metrics:
    """Metrics of micro-batches together: sums, and maxima of names that begin with ``max/``."""
    found = dict(totals)
    for name, value in more.items():
        peak = name.startswith("max/")
        found[name] = max(found.get(name, value), value) if peak else found.get(name, 0.0) + value
    return found

"""What a run is: one frozen value. A recipe is a function that returns one; ``run.json`` holds it whole.

Batch sizes have one unit: prompts (for offline stages, units: an example, or a preference pair). Everything else is derived
and shown by ``penstock explain``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

from penstock.core.environment import EnvironmentSpec
from penstock.core.keeping import CheckpointSpec, RolesSpec
from penstock.core.learner import LearnerSpec
from penstock.core.sentinels import SentinelMode
from penstock.core.spec import AnySpec, require, spec
from penstock.core.types import CachePolicy, Sampling


@spec
class ModelSpec:
    """A model: a folder or hub name, ``@stage`` for the one an earlier stage trained, or a preset built from scratch."""

    path: str = ""
    """Folder in Hugging Face format, hub name, or ``@stage``. Empty: build ``preset`` from scratch."""
    preset: Literal["1m", "3m", "10m"] = "1m"
    """Size of a model built from scratch."""
    architecture: Literal["decoder", "encoder-decoder"] = "decoder"
    """Shape of a model built from scratch: Qwen2's, or T5's of about the same size. A folder says its own."""
    layers: int = 0
    """Layers of a model built from scratch, of each half in an encoder-decoder; 0: the preset's."""
    initializer_range: float = 0.0
    """Standard deviation of the first weights of a model built from scratch; 0: one over the root of its width, which suits
    small vocabularies. With thousands of pieces, most of them rare, 0.02 generalises better."""
    vocabulary: int = 1024
    """Pieces of the tokenizer that is trained on the stage's data, for a model built from scratch."""
    context: int = 1024
    """Longest sequence of a model built from scratch."""

    def __post_init__(self) -> None:
        require(self.vocabulary >= 259, f"vocabulary={self.vocabulary} is too small; bytes and marks alone need 259")
        for name in ("layers", "initializer_range"):
            require(getattr(self, name) >= 0, f"{name}={getattr(self, name)} is negative; use 0 for the preset's")
        require(self.context >= 8, f"context={self.context} is too short; use at least 8")
        require(
            self.architecture == "decoder" or not self.initializer_range,
            "an encoder-decoder starts from T5's own first weights; leave initializer_range=0",
        )


@spec
class DataSpec:
    """Rows of data and how a row becomes text."""

    source: str
    """``FILE.jsonl[.gz]``, ``FILE.txt`` (one row a line, column ``text``), ``gym:TASK``, ``hub:NAME[:SUBSET]``,
    ``feedback:STORE`` (a file or a PostgreSQL URL), or ``MODULE:FUNCTION`` / ``FILE.py:FUNCTION`` returning a list of rows."""
    name: str = ""
    """Name in prompt keys; empty: taken from the source."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the gym task or of the function."""
    split: str = "train"
    """Split of a hub data set."""
    size: int = 0
    """Rows to take from the front (0: all). A gym task needs it."""
    skip: int = 0
    """Rows to pass over at the front first; keeps held-out rows apart."""
    prompt: str = "{{ prompt }}"
    """Jinja template of the prompt over the row's columns."""
    completion: str = "{{ completion }}"
    """Jinja template of the completion, for supervised fine-tuning."""
    chosen: str = "{{ chosen }}"
    """Jinja template of the preferred completion, for preference pairs."""
    rejected: str = "{{ rejected }}"
    """Jinja template of the other completion, for preference pairs."""
    chat: bool = False
    """Render the prompt through the tokenizer's chat template (columns ``messages`` or the prompt as one user turn)."""
    shuffle: bool = True
    """Draw the rows of an epoch in a random order (a pure function of seed and epoch)."""

    def __post_init__(self) -> None:
        require(bool(self.source), "data.source is empty; name a file, gym:TASK, hub:NAME or MODULE:FUNCTION")
        require(self.size >= 0 and self.skip >= 0, "data.size and data.skip cannot be negative")


@spec
class RewardSpec:
    """One reward of a mixture."""

    function: str
    """``exact_match``, ``math``, ``model:@STAGE`` (a reward model; ``model:@A+@B`` an ensemble), ``process:@STAGE`` (a
    process reward model), ``MODULE:FUNCTION`` or ``FILE.py:FUNCTION``."""
    weight: float = 1.0
    name: str = ""
    """Name in metrics; empty: taken from the function."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments passed on to the function."""
    deadline: float = 30.0
    """Seconds one call of the function may take (a sample's, or a group's if it takes groups)."""

    def __post_init__(self) -> None:
        require(self.deadline > 0, f"reward deadline={self.deadline}; give a positive number of seconds")


@spec
class EvaluationSpec:
    """Held-out evaluation, pinned to a version."""

    data: DataSpec
    rewards: tuple[RewardSpec, ...] = ()
    """Rewards of generated samples; empty: the stage's own. An offline stage generates only if they are given, and assesses
    the labelled rows otherwise."""
    every: int = 0
    """Steps between evaluations (0: only before the first and after the last step)."""
    temperature: float = 0.0
    samples: int = 1
    """Samples a prompt."""
    max_new_tokens: int = 0
    """Longest answer; 0: the stage's own, or what the context leaves."""
    betas: tuple[float, ...] = ()
    """Measure also with logits shifted by so many times the advantages of Q heads (ILQL); needs a model that has them."""
    best_of: tuple[int, ...] = ()
    """Estimate also what the best of so many samples is worth; with rewards of 0 and 1 this is pass@k."""
    rank_by: str = ""
    """Name of the reward that picks the best sample; empty: the reward itself picks."""
    labelled: DataSpec | None = None
    """Texts with a column ``label`` (1 or 0) on which an online stage's own rewards are audited before it starts."""

    def __post_init__(self) -> None:
        require(
            all(1 <= k <= self.samples for k in self.best_of),
            f"evaluation.best_of={list(self.best_of)} picks from {self.samples} samples a prompt; set samples to the largest "
            "or more",
        )
        require(
            not self.best_of or self.samples == 1 or self.temperature > 0,
            "evaluation.temperature=0 makes all samples of a prompt the same; best_of needs a positive temperature",
        )
        require(not self.rank_by or bool(self.best_of), f'rank_by="{self.rank_by}" picks nothing; set best_of, such as [4]')


@spec
class RewardScaling:
    """What an online stage's rewards are divided by and cut to before they are labelled."""

    by: Literal["none", "running", "reference", "group"] = "none"
    """Standard deviation to divide by: of all rewards so far, of the first batch, or of each group."""
    deviation: float = 0.0
    """The deviation of ``by="reference"``, if it is known; 0: that of the first batch."""
    clip: float = 0.0
    """Largest size of a (scaled) reward; 0: no limit. Acts on each token's reward."""

    def __post_init__(self) -> None:
        require(self.clip >= 0, f"scaling.clip={self.clip} is negative; use 0 for no limit")
        require(self.deviation >= 0, f"scaling.deviation={self.deviation} is negative; use 0 for the first batch's")
        require(
            not self.deviation or self.by == "reference",
            f'scaling.deviation={self.deviation} is used by scaling.by="reference" only',
        )


NO_SCALING = RewardScaling()
"""Rewards as they are."""


@spec
class Offline:
    """A stage that learns straight from data: SFT, reward models, preferences."""

    name: str
    model: ModelSpec
    data: DataSpec
    algorithm: AnySpec
    learner: LearnerSpec = LearnerSpec()
    batch: int = 32
    """Units (examples or pairs) an optimizer step."""
    steps: int = 100
    reference: ModelSpec | None = None
    """Frozen model that preferences are learned against; None: the model the stage starts from, where one is needed."""
    evaluation: EvaluationSpec | None = None

    def __post_init__(self) -> None:
        require(self.batch >= 1, f"{self.name}: batch={self.batch}; at least one unit a step")
        least = getattr(self.algorithm, "least_units", 1)
        require(
            self.batch >= least,
            f"{self.name}: batch={self.batch} is undefined for {type(self.algorithm).__name__}; set batch={least} or more",
        )
        require(
            self.reference is None or "reference" in getattr(self.algorithm, "needs", ()),
            f"{self.name}: {type(self.algorithm).__name__} has no use for a reference; leave reference out",
        )
        require(self.steps >= 1, f"{self.name}: steps={self.steps}; at least one step")
        require(
            "value" not in getattr(self.algorithm, "needs", ()) or self.learner.critic != "none",
            f"{self.name}: {type(self.algorithm).__name__} needs a critic; set learner.critic=shared or separate",
        )
        require(
            getattr(self.algorithm, "feedback", "data") == "data",
            f"{self.name}: {type(self.algorithm).__name__} learns from generated samples; use an Online stage",
        )


@spec
class Online:
    """A stage that learns from its own samples: PPO, GRPO and their kin."""

    name: str
    model: ModelSpec
    data: DataSpec
    rewards: tuple[RewardSpec, ...]
    algorithm: AnySpec
    learner: LearnerSpec = LearnerSpec()
    environment: EnvironmentSpec | None = None
    """What answers back between turns; None: every prompt is answered once."""
    sampling: Sampling = Sampling()
    samples: int = 8
    """Samples a prompt (G)."""
    batch: int = 16
    """Prompts a training batch (B)."""
    minibatches: int = 1
    """Optimizer steps an epoch over the batch."""
    epochs: int = 1
    """Passes over the batch."""
    steps: int = 100
    """Training batches."""
    refill: int = 0
    """Dynamic sampling: a group without signal is replaced by that of the next prompt; at most so many batches' worth of
    groups for one training batch. 0: such groups stay in their batch."""
    scaling: RewardScaling = NO_SCALING
    max_lag: int = 0
    """Batches that generation may run ahead of learning; 0 is synchronous."""
    on_stale: Literal["wait", "drop", "resume"] = "wait"
    """What keeps tokens within ``max_lag``: ``wait`` trains in the order of the prompts and waits for slow groups; ``drop``
    trains what is ready and starts a group again that became too old; ``resume`` trains what is ready and leaves too old
    tokens out of the loss."""
    sampler: Literal["fifo", "balanced", "priority"] = "fifo"
    """Which of the ready groups make up a batch (``drop``, ``resume``): the first ready, an even spread of lengths, or those
    next to become too old."""
    oversample: int = 0
    """Groups in flight beyond the slots, so that a batch need not wait for its slowest (``drop``, ``resume``)."""
    reuse: int = 1
    """Batches that a group may be part of, at most ``max_lag + 1``."""
    kv: CachePolicy = "keep"
    """What a weight update does to groups in flight: ``keep`` their cache, ``recompute`` it, ``abort`` and go on, or ``drain``:
    the update waits for their end and the next groups for the update, so that ``max_lag=1`` is one step off."""
    slots: int = 128
    """Sequences the embedded generator decodes at once."""
    reference: ModelSpec | None = None
    """Frozen model of the KL term; None: the model the stage starts from."""
    evaluation: EvaluationSpec | None = None

    def __post_init__(self) -> None:
        for count in ("samples", "batch", "minibatches", "epochs", "steps", "slots"):
            value = getattr(self, count)
            require(value >= 1, f"{self.name}: {count}={value}; at least 1")
        require(self.max_lag >= 0, f"{self.name}: max_lag={self.max_lag} is negative; 0 is synchronous")
        require(
            1 <= self.reuse <= self.max_lag + 1,
            f"{self.name}: reuse={self.reuse}: with max_lag={self.max_lag} a group is young enough for {self.max_lag + 1} "
            f"batches; set reuse to 1 … {self.max_lag + 1}",
        )
        require(self.oversample >= 0, f"{self.name}: oversample={self.oversample} is negative; 0 starts no more than needed")
        require(
            self.on_stale != "wait" or (self.sampler == "fifo" and not self.oversample),
            f'{self.name}: sampler and oversample choose among ready groups; set on_stale="drop" or "resume"',
        )
        require(self.refill >= 0, f"{self.name}: refill={self.refill} is negative; 0 switches dynamic sampling off")
        require(
            self.refill == 0 or hasattr(self.algorithm, "has_signal"),
            f"{self.name}: {type(self.algorithm).__name__} cannot tell a group without signal; set refill=0",
        )
        require(
            self.batch % self.minibatches == 0,
            f"{self.name}: batch={self.batch} does not divide into minibatches={self.minibatches}",
        )
        require(bool(self.rewards), f"{self.name}: rewards is empty; an online stage needs at least one reward")
        require(
            getattr(self.algorithm, "feedback", "samples") == "samples",
            f"{self.name}: {type(self.algorithm).__name__} learns from data; use an Offline stage",
        )
        require(
            self.samples >= getattr(self.algorithm, "least_samples", 1),
            f"{self.name}: samples={self.samples} is undefined for {type(self.algorithm).__name__}, which compares "
            f"samples of one prompt; set samples={getattr(self.algorithm, 'least_samples', 1)} or more",
        )
        require(
            not (self.learner.dropout or self.learner.token_dropout or (self.learner.lora and self.learner.lora.dropout)),
            f"{self.name}: dropout makes the learner's log-probs differ from the generator's; set it to 0 in online stages",
        )
        require(
            self.reference is not None or not getattr(self.algorithm, "named_reference", False),
            f"{self.name}: {type(self.algorithm).__name__} needs a teacher; set reference to its folder or @stage",
        )
        needs_critic = "value" in getattr(self.algorithm, "needs", ())
        require(
            needs_critic == (self.learner.critic != "none"),
            f"{self.name}: {type(self.algorithm).__name__} needs a critic; set learner.critic=shared or separate"
            if needs_critic
            else f"{self.name}: {type(self.algorithm).__name__} has no use for a critic; set learner.critic=none",
        )
        require(
            self.sampling.temperature > 0,
            f"{self.name}: sampling.temperature=0 explores nothing; use a positive temperature",
        )
        require(
            self.max_lag == 0 or bool(getattr(self.algorithm, "bounded", getattr(self.algorithm, "clip", None))),
            f"{self.name}: max_lag={self.max_lag} needs a clipped loss; set clip=(0.2, 0.28) or max_lag=0",
        )


Stage = Offline | Online


@spec
class Run:
    """The frozen spec of everything."""

    name: str
    stages: tuple[Stage, ...]
    seed: int = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int = 0
    """CPU threads of matrix products, in each process; 0: ``OMP_NUM_THREADS``, or else all cores, which processes share."""
    runtime: Literal["local", "procs", "ray"] = "local"
    """Where the roles live: in one process, in processes of this machine that a supervisor keeps alive, or in actors of a Ray
    cluster."""
    roles: RolesSpec = RolesSpec()
    sentinels: SentinelMode = "on"
    """What a step that cannot be right does: stop the run, only warn, or nothing (``docs/sentinels.md``)."""
    checkpoint: CheckpointSpec = CheckpointSpec()
    headline: str = ""
    """Template of the closing line over the run's summary; empty: the last stage's evaluation."""

    def __post_init__(self) -> None:
        names = [stage.name for stage in self.stages]
        require(bool(names), "a run needs at least one stage")
        require(len(set(names)) == len(names), f"stage names repeat: {', '.join(names)}")
        require(
            self.runtime == "local" or self.checkpoint.every > 0,
            f'runtime="{self.runtime}" keeps the groups of all steps since the last checkpoint, so that a dead learner loses '
            "none; set checkpoint.every to 1 or more",
        )
        require(
            self.runtime != "local" or self.roles == RolesSpec(),
            'roles are processes, and runtime="local" has one for all; set runtime="procs" or runtime="ray"',
        )
        require(
            self.runtime != "local" or not any(isinstance(stage, Online) and stage.kv == "drain" for stage in self.stages),
            'kv="drain" lets groups end with the weights they began with while the learner goes on, which needs two copies of '
            'the weights; set runtime="procs"',
        )
        for index, stage in enumerate(self.stages):
            for model in references(stage):
                if model.startswith("@"):
                    require(
                        model[1:] in names[:index],
                        f'{stage.name}: "{model}" names no earlier stage; earlier: {", ".join(names[:index]) or "none"}',
                    )


def references(stage: Stage) -> list[str]:
    """The models a stage names: its own, its reference, and those behind its rewards."""
    found = [stage.model.path] + ([stage.reference.path] if stage.reference else [])
    rewards: tuple[RewardSpec, ...] = ()
    if isinstance(stage, Online):
        rewards = stage.rewards
    if stage.evaluation:
        rewards += stage.evaluation.rewards
    return found + [model for reward in rewards for model in models_behind(reward)]


def models_behind(reward: RewardSpec) -> list[str]:
    """The models that a reward reads: ``model:@a+@b`` names two, ``process:@a`` one; none for a function."""
    scheme, _, named = reward.function.partition(":")
    return re.split(r"\+(?=@)", named) if scheme == "model" else [named] if scheme == "process" else []

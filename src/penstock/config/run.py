"""What a run is: one frozen value. A recipe is a function that returns one; ``run.json`` holds it whole.

Batch sizes have one unit: prompts (for offline stages, units: an example, or a preference pair). Everything else is derived
and shown by ``penstock explain``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

from penstock.config.keeping import CheckpointSpec, RolesSpec
from penstock.config.learner import Dtype, LearnerSpec
from penstock.config.media import MARKS
from penstock.config.parts import DataSpec, EvaluationSpec, ModelSpec, RewardSpec, models_behind
from penstock.config.spec import AnySpec, require, spec
from penstock.config.stage import OTHER, SIGNALS, Stage
from penstock.core.algorithm import Algorithm
from penstock.core.sentinels import SentinelMode
from penstock.core.types import CachePolicy, Sampling


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


def require_kind(stage: str, algorithm: Any, kind: Literal["samples", "data", "steps"]) -> None:
    """Refuse what is no algorithm, or one of the other kind."""
    named = type(algorithm).__name__
    require(isinstance(algorithm, Algorithm), f"{stage}: {named} is no algorithm; use one of penstock.algos")
    advice = {"samples": "generated samples; use an Online stage", "data": "data; use an Offline stage"}
    advice |= {"steps": "steps of environments; use a Control stage"}
    require(algorithm.learns_from == kind, f"{stage}: {named} learns from {advice[algorithm.learns_from]}")


def require_media(stage: Any) -> None:
    """Refuse media that the model of a stage does not read, and what is not done with a model that does."""
    name, model, learner = stage.name, stage.model, stage.learner
    for kind, mark in MARKS.items():
        other = "reads text alone" if model.media is None else f"has model.media={type(model.media).__name__}()"
        require(
            mark not in stage.data.prompt or (model.media is not None and kind in model.media.kinds),
            f"{name}: {mark} is in the prompt, and the model {other}; "
            f"set model.media={'Hearing' if kind == 'audio' else 'Vision'}()",
        )
    if model.media is None:
        return
    ours = learner.strategy.ranks == 1 and learner.lora is None and learner.unfrozen_layers < 0 and learner.dtype != "mixed"
    require(
        ours and learner.critic in ("none", "shared") and not learner.replay_routes,
        f"{name}: a model of media is trained whole on one device (media.frozen leaves its tower out), with no critic or "
        "one on its trunk, in float32 or bfloat16: leave learner.strategy, lora, unfrozen_layers and replay_routes as they are",
    )


@spec
class Offline(Stage):
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
        algorithm, named = self.algorithm, type(self.algorithm).__name__
        require_kind(self.name, algorithm, "data")
        require_media(self)
        require(
            self.batch >= algorithm.least_units,
            f"{self.name}: batch={self.batch} is undefined for {named}; set batch={algorithm.least_units} or more",
        )
        require(
            self.reference is None or algorithm.reference,
            f"{self.name}: {named} has no use for a reference; leave reference out",
        )
        require(self.steps >= 1, f"{self.name}: steps={self.steps}; at least one step")
        require(
            not self.learner.replay_routes,
            f"{self.name}: nobody recorded the routes of given texts; set learner.replay_routes=false in offline stages",
        )
        require(
            "value" not in algorithm.heads or self.learner.critic != "none",
            f"{self.name}: {named} needs a critic; set learner.critic=shared or separate",
        )

    @property
    def strategy(self) -> Any:
        return self.learner.strategy

    def dtype_in(self, stages: Sequence[Stage]) -> Dtype:
        return self.learner.dtype

    @property
    def row_kind(self) -> str:
        return str(self.algorithm.data)

    @property
    def imitates(self) -> bool:
        return type(self.algorithm).__name__ == "SFT"

    def feedback(self, learned: Mapping[str, set[str]]) -> set[str]:
        if self.data.of_signals:
            return {SIGNALS}
        return set() if self.imitates else {OTHER}


@spec
class Online(Stage):
    """A stage that learns from its own samples: PPO, GRPO and their kin."""

    uses_stream: ClassVar[bool] = True

    name: str
    model: ModelSpec
    data: DataSpec
    rewards: tuple[RewardSpec, ...]
    algorithm: AnySpec
    learner: LearnerSpec = LearnerSpec(learning_rate=1e-6)
    environment: AnySpec | None = None
    """``EnvironmentSpec``: what answers back between turns; None: every prompt is answered once."""
    sampling: Sampling = Sampling()
    denoising: AnySpec | None = None
    """``Denoising``: how a diffusion policy draws; None: as its folder says."""
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
    dynamic_sampling: int = 0
    """Dynamic sampling: a group without signal is replaced by that of the next prompt; at most so many batches' worth of
    groups for one training batch. 0: such groups stay in their batch."""
    scaling: RewardScaling = NO_SCALING
    max_lag: int = 0
    """Batches that generation may run ahead of learning; 0 is synchronous."""
    on_stale: Literal["wait", "drop", "mask"] = "wait"
    """What keeps tokens within ``max_lag``: ``wait`` trains in the order of the prompts and waits for slow groups; ``drop``
    trains what is ready and starts a group again that became too old; ``mask`` trains what is ready and leaves too old
    tokens out of the loss."""
    batch_selector: Literal["fifo", "balanced", "priority"] = "fifo"
    """Which of the ready groups make up a batch (``drop``, ``mask``): the first ready, an even spread of lengths, or those
    next to become too old."""
    oversample: int = 0
    """Groups in flight beyond the slots, so that a batch need not wait for its slowest (``drop``, ``mask``)."""
    max_uses: int = 1
    """Batches that a group may be part of, at most ``max_lag + 1``."""
    kv: CachePolicy = "keep"
    """What a weight update does to groups in flight: ``keep`` their cache, ``recompute`` it, ``abort`` and go on, or ``drain``:
    the update waits for their end and the next groups for the update, so that ``max_lag=1`` is one step off."""
    max_running: int = 128
    """Sequences the embedded generator decodes at once."""
    reference: ModelSpec | None = None
    """Frozen model of the KL term; None: the model the stage starts from."""
    evaluation: EvaluationSpec | None = None

    def __post_init__(self) -> None:
        algorithm, named = self.algorithm, type(self.algorithm).__name__
        require_kind(self.name, algorithm, "samples")
        require_media(self)
        for count in ("samples", "batch", "minibatches", "epochs", "steps", "max_running"):
            value = getattr(self, count)
            require(value >= 1, f"{self.name}: {count}={value}; at least 1")
        require(self.max_lag >= 0, f"{self.name}: max_lag={self.max_lag} is negative; 0 is synchronous")
        require(
            1 <= self.max_uses <= self.max_lag + 1,
            f"{self.name}: max_uses={self.max_uses}: a group is young enough for {self.max_lag + 1} batches "
            f"with max_lag={self.max_lag}; set max_uses to 1 … {self.max_lag + 1}",
        )
        require(self.oversample >= 0, f"{self.name}: oversample={self.oversample} is negative; 0 starts no more than needed")
        require(
            self.on_stale != "wait" or (self.batch_selector == "fifo" and not self.oversample),
            f'{self.name}: batch_selector and oversample choose among ready groups; set on_stale="drop" or "mask"',
        )
        require(
            self.dynamic_sampling >= 0,
            f"{self.name}: dynamic_sampling={self.dynamic_sampling} is negative; 0 switches dynamic sampling off",
        )
        require(
            self.batch % self.minibatches == 0,
            f"{self.name}: batch={self.batch} does not divide into minibatches={self.minibatches}",
        )
        require(bool(self.rewards), f"{self.name}: rewards is empty; an online stage needs at least one reward")
        require(
            self.samples >= algorithm.least_samples,
            f"{self.name}: samples={self.samples} is undefined for {named}, which compares samples of one prompt; set "
            f"samples={algorithm.least_samples} or more",
        )
        require(
            not (self.learner.dropout or self.learner.token_dropout or (self.learner.lora and self.learner.lora.dropout)),
            f"{self.name}: dropout makes the learner's log-probs differ from the generator's; set it to 0 in online stages",
        )
        require(
            self.reference is not None or not algorithm.named_reference,
            f"{self.name}: {named} needs a teacher; set reference to its folder or @stage",
        )
        needs_critic = "value" in algorithm.heads
        require(
            needs_critic == (self.learner.critic != "none"),
            f"{self.name}: {named} needs a critic; set learner.critic=shared or separate"
            if needs_critic
            else f"{self.name}: {named} has no use for a critic; set learner.critic=none",
        )
        require(
            self.sampling.temperature > 0 or algorithm.quiet_samples,
            f"{self.name}: sampling.temperature=0 explores nothing; use a positive temperature",
        )
        require(
            self.max_lag == 0 or algorithm.bounded,
            f"{self.name}: max_lag={self.max_lag} needs a clipped loss; set clip=(0.2, 0.28) or max_lag=0",
        )
        require(
            self.epochs * self.minibatches == 1 or not algorithm.single_step,
            f"{self.name}: {named} without a probability ratio is wrong after the first optimizer step of a batch; set "
            f"epochs=1 and minibatches=1, or algorithm.objective=ClippedRatio and algorithm.clip=(0.2, 0.28)",
        )

    @property
    def strategy(self) -> Any:
        return self.learner.strategy

    def dtype_in(self, stages: Sequence[Stage]) -> Dtype:
        return self.learner.dtype

    @property
    def trains_adapters(self) -> bool:
        return self.learner.lora is not None and self.learner.strategy.ranks == 1

    @property
    def replays_routes(self) -> bool:
        return self.learner.replay_routes

    @property
    def needs_reference(self) -> bool:
        return "reference" in self.algorithm.needs

    def all_rewards(self) -> tuple[RewardSpec, ...]:
        return self.rewards + (self.evaluation.rewards if self.evaluation else ())

    def mixtures(self) -> list[tuple[RewardSpec, ...]]:
        return [self.rewards, *super().mixtures()]

    def reward_models(self) -> list[str]:
        return [model for reward in self.rewards for model in models_behind(reward)]

    def feedback(self, learned: Mapping[str, set[str]]) -> set[str]:
        kinds: set[str] = set()
        for reward in self.rewards:
            for name in models_behind(reward) if reward.weight else ():
                kinds |= learned.get(name.removeprefix("@"), {OTHER}) if name.startswith("@") else {OTHER}
            if reward.weight and not models_behind(reward):
                kinds.add(OTHER)
        return kinds

    def on_one_process(self) -> Online:
        """No update has to wait for the groups of another process."""
        return replace(self, kv="keep") if self.kv == "drain" else self


@spec
class Run:
    """The frozen spec of everything."""

    name: str
    stages: tuple[Offline | Online | AnySpec, ...]
    """In the order in which they run. ``Ask``, which trains nothing, is a registered spec (``config/ask.py``), and so is a
    stage of your own (``config/stage.py``)."""
    modules: tuple[str, ...] = ()
    """``MODULE`` or ``FILE.py`` of your own, imported in every process of the run: what they register (algorithms, stages,
    roles) is named by the run like Penstock's own."""
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
    monitors: tuple[str, ...] = ()
    """Who else watches: ``NAME`` or ``NAME:DESTINATION``, such as ``prometheus:9464`` or ``wandb`` (``docs/monitoring.md``)."""
    headline: str = ""
    """Template of the closing line over the run's summary; empty: the last stage's evaluation."""

    def __post_init__(self) -> None:
        for stage in self.stages:
            require(isinstance(stage, Stage), f"a {type(stage).__name__} is no stage; use Offline, Online or Ask")
        names = [stage.name for stage in self.stages]
        require(bool(names), "a run needs at least one stage")
        require(len(set(names)) == len(names), f"stage names repeat: {', '.join(names)}")
        require(
            self.runtime == "local" or self.checkpoint.every > 0,
            f'runtime="{self.runtime}" keeps the groups of all steps since the last checkpoint, so that a dead learner loses '
            "none; set checkpoint.every to 1 or more",
        )
        require(
            self.runtime != "local" or (self.roles.engine.in_process and self.roles == RolesSpec(engine=self.roles.engine)),
            'roles are processes, and runtime="local" has one for all; set runtime="procs" or runtime="ray"',
        )
        require(
            self.runtime != "local" or all(stage.on_one_process() == stage for stage in self.stages),
            'kv="drain" lets groups end with the weights they began with while the learner goes on, which needs two copies of '
            'the weights; set runtime="procs"',
        )
        for index, stage in enumerate(self.stages):
            engine = self.roles.engine
            require(
                engine.notes_routes or not stage.replays_routes,
                f"{stage.name}: {type(engine).__name__} does not say which experts it chose; set roles.engine=Embedded, or "
                "learner.replay_routes=false",
            )
            require(
                not stage.reads_media or (stage.reads_some(engine.media) and self.runtime != "ray"),
                f"{stage.name}: media reach Penstock's own engine, and pictures and films vLLM, on one machine; set "
                'roles.engine=Embedded or VLLM and runtime="local" or "procs"',
            )
            require(
                not stage.asks or not (stage.reads_media or any(mark in stage.data.prompt for mark in MARKS.values())),
                f"{stage.name}: people are asked about answers to texts; leave model.media and {', '.join(MARKS.values())} out "
                "of an Ask stage",
            )
            for model in stage.models():
                if model.startswith("@"):
                    require(
                        model[1:] in names[:index],
                        f'{stage.name}: "{model}" names no earlier stage; earlier: {", ".join(names[:index]) or "none"}',
                    )

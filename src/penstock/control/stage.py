"""The stage ``Control``: environments, policy, and how it learns. A registered spec without torch and gymnasium."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, ClassVar, Literal, NamedTuple

from penstock.algos.entropy import EntropyBonus
from penstock.algos.objectives import PolicyGradient
from penstock.algos.off_policy import DQN, SAC, FromReplay
from penstock.algos.ppo import PPO
from penstock.config.learner import LearnerSpec
from penstock.config.parts import RewardSpec
from penstock.config.run import require_kind
from penstock.config.spec import AnySpec, Count, Positive, Whole, require, spec
from penstock.config.stage import OTHER, Stage
from penstock.config.strategies import OneDevice
from penstock.core.types import Version
from penstock.data.resolve import is_reference


class Interface(NamedTuple):
    """How a stage's policy reads and decides, beyond what the environments' spaces say."""

    squashed: bool = False
    """Continuous decisions are between -1 and 1, for SAC."""
    central: bool = False
    """Each row also has what all learning agents of its game see, for a critic that reads it (MAPPO)."""
    draws: bool = False
    """The environments draw themselves, for a film."""


PLAIN = Interface()


@spec
class EnvironmentsSpec:
    """Copies of one environment that are stepped together."""

    id: str
    """A name that gymnasium knows (``CartPole-v1``), or ``MODULE:FUNCTION`` / ``FILE.py:FUNCTION`` that makes one
    ``gymnasium.Env``, or with an argument ``num_envs`` a whole ``gymnasium.vector.VectorEnv``."""
    count: Count = 64
    """Environments (N)."""
    vectorization: Literal["auto", "sync", "async", "envpool", "parallel"] = "auto"
    """``auto``: all in one array step where the environment has one, else one after another in this process (``sync``);
    ``async``: a process each, which pays where a step takes a millisecond or more. ``envpool``: written in C++ and stepped by
    threads, with the names and options of the EnvPool package; ``parallel``: games of several agents, one after another, which
    ``MODULE:parallel_env`` of PettingZoo makes."""
    workers: Whole = 0
    """Processes that step them, each a block, next to the one that decides, which serves whichever have answered in one call of
    the network; 0: that one steps them itself, which wins where a step of all costs less than a millisecond."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the environment."""
    agents: Mapping[str, str] = field(default_factory=dict)
    """Who decides for the agents of a game, by patterns of their names, the first that matches: ``learner``, ``random``, or the
    folder of a saved policy. Empty: one policy learns for all of them."""

    def __post_init__(self) -> None:
        require(bool(self.id), "environments.id is empty; name an environment, such as CartPole-v1")
        parallel = self.vectorization == "parallel"
        require(
            self.workers == 0 or self.vectorization not in ("envpool", "async"),
            f"environments.workers={self.workers}: {self.vectorization} has threads or processes of its own; set workers=0",
        )
        require(
            self.workers == 0 or self.count % self.workers == 0,
            f"environments.count={self.count} does not divide among workers={self.workers}",
        )
        require(parallel or not self.agents, "environments.agents are those of a game; set environments.vectorization=parallel")


@spec
class PolicyNetwork:
    """A policy of a vector of numbers or of an image: layers, perhaps a memory, and heads for decision and value."""

    path: str = ""
    """Folder of a policy that another run trained, or ``@stage``; empty: a new one."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the layers before the heads."""
    activation: Literal["tanh", "relu"] = "tanh"
    """What follows each of them; relu costs a tenth of the time of tanh on a CPU."""
    memory: int = 0
    """Width of an LSTM between layers and heads; 0: none, for states that one observation tells whole."""
    attention: int = 0
    """Steps of its episode, the one at hand included, that a transformer between layers and heads attends to; 0: none."""
    blocks: Count = 1
    """Of the transformer."""
    critic: Literal["shared", "separate", "central"] = "shared"
    """Whether the value has hidden layers of its own; those of a ``central`` one read what all learning agents of a game see
    (MAPPO, Yu et al. 2021, arXiv 2103.01955), which no decision depends on."""
    deviation: Positive = 1.0
    """First standard deviation of continuous decisions; it is learned from there."""
    convolutions: tuple[tuple[int, int, int], ...] = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
    """Channels, kernel and stride of each convolution before the hidden layers, where observations are images (bytes with three
    axes): those of Mnih et al. 2015, which want hidden=[512] after them."""
    normalize: bool = False
    """Shift and scale observations by their running moments, which belong to the policy and are saved with it."""

    def __post_init__(self) -> None:
        require(all(width >= 1 for width in self.hidden), f"model.hidden={list(self.hidden)}; widths are 1 or more")
        require(
            all(size >= 1 for layer in self.convolutions for size in layer),
            f"model.convolutions={self.convolutions}; channels, kernel and stride are 1 or more",
        )
        require(self.memory >= 0, f"model.memory={self.memory} is negative; 0 is none")
        require(
            self.attention == 0 or self.attention >= 2,
            f"model.attention={self.attention} remembers nothing; set 0, or 2 or more",
        )
        require(not (self.memory and self.attention), "model.memory and model.attention are two ways to remember; set one to 0")
        require(
            not self.attention or bool(self.hidden and self.hidden[-1] % 4 == 0),
            f"model.attention has 4 heads, and model.hidden={list(self.hidden)} ends in no multiple of 4; choose another",
        )
        require(
            not self.remembers or self.critic == "shared",
            f"a memory with critic={self.critic} would be needed twice; set model.critic=shared",
        )

    @property
    def remembers(self) -> bool:
        """Whether it has a memory."""
        return bool(self.memory or self.attention)


@spec
class Curiosity:
    """Random network distillation (Burda et al. 2018, arXiv 1810.12894): a further reward for what was seldom seen, which is
    the error of a network that learns what a fixed random one says of an observation. One critic judges the sum of both."""

    coefficient: Positive = 0.5
    """Of the further reward, whose returns have deviation 1, next to the environment's as ``scale_rewards`` leaves it."""
    width: Count = 64
    """Of the two networks' hidden layers and of what they say."""
    learning_rate: Positive = 1e-3


@spec
class Episodes:
    """Evaluation: whole episodes in environments of their own, each decision the most likely one."""

    every: int = 0
    """Training batches between evaluations; 0: only before the first and after the last."""
    episodes: Count = 64
    longest: Count = 10_000
    """Steps after which an episode is over for the evaluation."""
    film: int = 0
    """Frames at most of a film of the first environment's episode, which the page and the report show; 0: none. Environments
    draw it by gymnasium's ``render_mode="rgb_array"``, or by a method ``picture(index)`` of their own."""

    rewards: ClassVar[tuple[RewardSpec, ...]] = ()

    def __post_init__(self) -> None:
        require(self.every >= 0, f"evaluation.every={self.every} is negative; 0 evaluates before and after")
        require(self.film >= 0, f"evaluation.film={self.film} is negative; 0 is none")


def impala(**fields: Any) -> PPO:
    """IMPALA (Espeholt et al. 2018, arXiv 1802.01561): PPO's spec with the policy gradient of V-trace advantages and a squared
    value error, nothing clipped. Takes any field of :class:`PPO`."""
    usual: dict[str, Any] = {"discount": 0.99, "lam": 1.0, "value_clip": 0.0, "entropy": EntropyBonus(coefficient=0.01)}
    own = {"estimator": "vtrace", "objective": PolicyGradient(), "clip": None, "whiten": False}
    return PPO(**(usual | own | fields))


@spec
class Control(Stage):
    """Learns to act in environments: fragments of all environments, each trained on and then thrown away."""

    pinned: ClassVar[bool] = False
    on_stale: ClassVar[str] = "wait"
    batch_selector: ClassVar[str] = "fifo"
    oversample: ClassVar[int] = 0
    dynamic_sampling: ClassVar[int] = 0
    max_uses: ClassVar[int] = 1
    data: ClassVar[Any] = None  # type: ignore[misc]

    name: str
    environments: EnvironmentsSpec
    model: PolicyNetwork = PolicyNetwork()  # type: ignore[assignment]
    algorithm: AnySpec = PPO(discount=0.99, value_clip=0.0)
    """PPO with ``estimator="gae"`` or ``"vtrace"``, :func:`impala`, which is the latter without a clip, DQN or SAC."""
    learner: LearnerSpec = LearnerSpec(learning_rate=1e-3, clip_norm=0.5, token_budget=65536)
    fragment: Count = 32
    """Steps of each environment in a training batch (T), which has T × N steps."""
    minibatches: Count = 4
    """Optimizer steps an epoch over the batch."""
    epochs: Count = 4
    """Passes over the batch."""
    steps: Count = 100
    """Training batches at most."""
    batch: Count = 1
    """Fragments a training batch (B), of one actor or of several."""
    actors: Count = 1
    """Processes that act, each with environments of its own, where roles are processes (``runtime`` procs or ray)."""
    max_lag: int = 0
    """Batches that actors, in processes of their own, may run ahead of learning; 0 is synchronous."""
    scale_rewards: bool = False
    """Divide rewards by the running deviation of discounted returns, and cut them to ±10. Reported returns are as they were."""
    curiosity: Curiosity | None = None
    """A reward for novelty, for tasks whose own reward chance does not find; reported returns are without it."""
    solved: float | None = None
    """The stage ends once the mean return of the latest 100 episodes is this much; None: after the last step."""
    evaluation: Episodes | None = Episodes()  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self._check_algorithm()
        here, learner, count = self.name, self.learner, self.environments.count
        require(
            self.model.critic != "central"
            or self.environments.vectorization == "parallel"
            or is_reference(self.environments.id),
            f"{here}: model.critic=central reads what all agents of a game see; set environments.vectorization=parallel",
        )
        require(self.max_lag >= 0, f"{here}: max_lag={self.max_lag} is negative; 0 is synchronous")
        slots = (self.max_lag + 1) * self.batch
        require(
            self.actors <= slots,
            f"{here}: actors={self.actors}, and (max_lag + 1) × batch = {slots} fragments may be under way; raise one of these",
        )
        require(
            self.max_lag == 0 or self.replays or self.algorithm.bounded or self.algorithm.estimator == "vtrace",
            f"{here}: max_lag={self.max_lag} needs a clipped loss or V-trace; set algorithm.clip or max_lag=0",
        )
        whole = self.model.remembers or (not self.replays and self.algorithm.estimator == "vtrace")
        require(
            not whole or count % self.minibatches == 0,
            f"{here}: {'a memory' if self.model.remembers else 'V-trace'} needs whole sequences, and environments.count="
            f"{count} does not divide into minibatches={self.minibatches}",
        )
        require(
            whole or self.replays or self.minibatches * 2 <= count * self.fragment,
            f"{here}: minibatches={self.minibatches} of {count * self.fragment} steps leave fewer than two steps each",
        )
        refused = {"dtype": learner.dtype != "float32", "strategy": not isinstance(learner.strategy, OneDevice)}
        refused |= {"critic": learner.critic != "none", "lora": learner.lora is not None}
        refused |= {"router_loss": learner.router_loss > 0, "replay_routes": learner.replay_routes}
        refused |= {"dropout": learner.dropout + learner.token_dropout > 0, "unfrozen_layers": learner.unfrozen_layers >= 0}
        for name in (name for name, wrong in refused.items() if wrong):
            require(False, f"{here}: learner.{name} is for language models; leave it out (the critic is model.critic)")

    @property
    def replays(self) -> bool:
        """Whether it learns from a replay buffer."""
        return isinstance(self.algorithm, FromReplay)

    def explored(self, version: Version) -> float:
        """Share of decisions at random, by weights of this version."""
        return self.algorithm.explored(version) if isinstance(self.algorithm, DQN) else 0.0

    @property
    def kind(self) -> str:
        """What the network's numbers are: see ``Shape.kind``."""
        if isinstance(self.algorithm, DQN):
            return "dueling" if self.algorithm.dueling else "q"
        return "soft" if isinstance(self.algorithm, SAC) else "policy"

    @property
    def interface(self) -> Interface:
        return Interface(self.kind == "soft", self.model.critic == "central")

    @property
    def evaluated(self) -> Interface:
        """That of the environments of the evaluation."""
        return self.interface._replace(draws=self.evaluation is not None and self.evaluation.film > 0)

    def _check_replay(self) -> None:
        """Refuse what has no meaning with a replay buffer."""
        wrong = {"model.memory": bool(self.model.memory), "model.attention": self.model.attention > 0}
        wrong |= {"scale_rewards": self.scale_rewards, "curiosity": self.curiosity is not None}
        wrong |= {"model.critic": self.model.critic != "shared", "model.deviation": self.model.deviation != 1.0}
        for name in (name for name, given in wrong.items() if given):
            require(False, f"{self.name}: {name} has no meaning for {type(self.algorithm).__name__}; leave it out")
        steps = self.algorithm.n_steps
        require(steps <= self.fragment, f"{self.name}: n_steps={steps} does not fit in fragment={self.fragment}; raise that")
        batch, most = self.environments.count * self.fragment * self.batch, self.algorithm.capacity
        require(batch <= most, f"{self.name}: capacity={most} is below a training batch's {batch} steps; raise it")

    def _check_algorithm(self) -> None:
        """Refuse algorithms, and parts of them, that have no meaning for environment steps."""
        here, algorithm = self.name, self.algorithm
        if self.replays:
            self._check_replay()
            return
        require_kind(here, algorithm, "samples")
        named = type(algorithm).__name__
        require(type(algorithm) is PPO, f"{here}: {named} compares samples of a prompt or texts; use PPO, impala(), DQN or SAC")
        require(algorithm.estimator != "n-step", f'{here}: estimator="n-step" is not there for control; use "gae" or "vtrace"')
        require(not algorithm.denoises, f"{here}: algorithm.objective is for diffusion policies; use ClippedRatio")
        wrong = {"kl": algorithm.kl.coefficient, "importance_weights": algorithm.importance_weights}
        wrong |= {"entropy.target": algorithm.entropy.target, "bootstrap": algorithm.bootstrap}
        for name in (name for name, given in wrong.items() if given):
            require(False, f"{here}: algorithm.{name} is for language models; leave it out")
        require(
            algorithm.discount < 1, f"{here}: discount=1 never forgets, and environments may run for ever; set discount=0.99"
        )
        vtrace = algorithm.estimator == "vtrace"
        require(
            not (vtrace and algorithm.whiten),
            f"{here}: V-trace computes advantages as it trains, when no batch is whole; set algorithm.whiten=false",
        )
        require(
            not algorithm.single_step or vtrace or self.epochs * self.minibatches == 1,
            f"{here}: an objective without a ratio is wrong after the first optimizer step of a batch; set epochs=1 and "
            'minibatches=1, or algorithm.estimator="vtrace"',
        )

    @property
    def facts(self) -> Sequence[tuple[str, str]]:
        batch, found = self.environments.count * self.fragment * self.batch, self.learner
        parts = f"{self.batch} fragments of " if self.batch > 1 else ""
        network = f"{' × '.join(map(str, self.model.hidden))} {self.model.activation}"
        network += f", LSTM {self.model.memory}" if self.model.memory else ""
        network += f", attention to {self.model.attention} steps" if self.model.attention else ""
        workers = f", in {self.environments.workers} processes" if self.environments.workers else ""
        return (
            ("environments", f"{self.environments.count} × {self.environments.id}, {self.environments.vectorization}{workers}"),
            ("model", self.model.path or f"{network}, {self.model.critic} critic"),
            ("a training batch", f"{parts}{self.fragment} steps × {self.environments.count} environments = {batch:,} steps"),
            (
                "optimizer steps",
                f"{self.steps} batches × {self.epochs * self.minibatches} at most; {self.steps * batch:,} steps",
            ),
            ("learning rate", f"{found.learning_rate:g}, {found.schedule}, warm-up {found.warmup}"),
        )

    @property
    def reads_media(self) -> bool:
        return False

    @property
    def sources(self) -> tuple[Any, ...]:
        return ()

    def feedback(self, learned: Mapping[str, set[str]]) -> set[str]:
        return {OTHER}

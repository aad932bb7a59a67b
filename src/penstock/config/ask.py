"""A stage that asks people: about samples of a policy, before the next stage learns from what they say.

Annotators other than people are registered specs, so that a run names them by plain values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import ClassVar

from penstock.config.learner import Dtype
from penstock.config.parts import DataSpec, EvaluationSpec, ModelSpec, RewardSpec
from penstock.config.spec import AnySpec, require, spec
from penstock.config.stage import OTHER, Stage
from penstock.core.types import Sampling

OWN_STORE = "@run"
"""The store of a run itself: ``feedback.db`` in its folder."""

DAY = 86400.0


@spec
class Simulated:
    """A made-up person with known faults, who knows the stage's ``truth``; for demonstrations and tests."""

    name: str
    noise: float = 0.3
    """Chance that an answer is the opposite of what it should be."""
    left_bias: float = 0.0
    """Chance that what is shown first is taken without looking."""
    adversary: bool = False
    """Means the opposite of what they think, always."""

    def __post_init__(self) -> None:
        require(0 <= self.noise <= 1 and 0 <= self.left_bias <= 1, f"{self.name}: noise and left_bias are chances, from 0 to 1")


@spec
class Judge:
    """A reward function or a reward model (``model:@stage``) that votes for what it scores higher."""

    name: str
    reward: RewardSpec
    close: float = 0.0
    """Scores no farther apart than this are a tie."""

    def __post_init__(self) -> None:
        require(self.close >= 0, f"{self.name}: close={self.close} is negative; use 0 for no ties but equal scores")


@spec
class ServedJudge:
    """A language model behind an OpenAI-compatible API, asked about every pair in both orders."""

    name: str
    url: str
    model: str = ""
    """The server's name of the model; empty: its first one."""
    chat: bool = True
    """Ask through the chat API; false: as plain text to be continued, for models without a chat template."""
    key: str = ""
    """Name of the environment variable that holds the server's token; empty: it asks for none."""
    timeout: float = 60.0
    """Seconds that one answer may take."""
    at_once: int = 8
    """Questions in flight."""

    def __post_init__(self) -> None:
        require(self.url.startswith(("http://", "https://")), f"{self.name}: url={self.url!r}; give http://HOST:PORT")
        require(self.timeout > 0, f"{self.name}: timeout={self.timeout}; give a positive number of seconds")
        require(self.at_once >= 1, f"{self.name}: at_once={self.at_once}; at least 1")


@spec
class Ask(Stage):
    """Samples a policy, chooses pairs, asks about them, waits for the votes, and judges the policy by them.

    The stage's model, which later stages may start from, is the policy if its report card passes (or there is none), else
    ``against``. Samples, scores and evaluations are computed in the type of the learner that trained the policy.
    """

    pinned: ClassVar[bool] = False

    name: str
    model: ModelSpec
    """The policy that is asked about."""
    data: DataSpec
    """Its prompts."""
    sampling: Sampling = Sampling()
    against: ModelSpec | None = None
    """The weights that the policy must not be worse than; None: it is judged by nothing."""
    scorers: str = ""
    """Reward models that choose what to ask, such as ``@reward-1+@reward-2``; empty: pairs are asked at random."""
    store: str = OWN_STORE
    """A file, a PostgreSQL URL, or ``@run``: ``feedback.db`` in the run's folder."""
    project: str = "default"
    """The store's project in which the questions are asked."""
    annotators: tuple[AnySpec, ...] = ()
    """Annotators besides people: ``Simulated``, ``Judge``, ``ServedJudge``. With a simulated one, no person is waited for."""
    truth: RewardSpec | None = None
    """What simulated annotators think before their faults."""
    prompts: int = 64
    """Prompts to sample."""
    samples: int = 4
    """Samples a prompt; each two are a candidate pair."""
    questions: int = 64
    """Pairs to choose from the candidates."""
    duels: int = 0
    """Pairs of a sample of the policy and one of ``against`` for the same prompt."""
    anchors: int = 0
    """Random questions of the Ask stage before to ask again, which shows whether people change."""
    overlap: int = 3
    """Votes wanted on each question, from different annotators."""
    duel_overlap: int = 1
    """Votes wanted on each duel. Erring votes tell most about a policy when each is about another prompt."""
    mix: Mapping[str, float] = field(default_factory=lambda: {"random": 1.0})
    """Shares of the strategies of ``feedback/select.py``: ``random`` (at least 0.2), ``disagreement``, ``near_tie``,
    ``large_gap``."""
    guideline: str = "1"
    """Version of the guideline that annotators read."""
    gate: Mapping[str, float] = field(default_factory=dict)
    """What the report card must show, fields of ``feedback.quality.report_card.Gate`` by name; others have their defaults."""
    least: int = 0
    """Votes that are enough when the deadline passes; 0: all."""
    deadline: float = 7 * DAY
    """Seconds to wait for people."""
    evaluation: EvaluationSpec | None = None
    """How the policy, and then the stage's model, does on held-out prompts; ``rewards`` are needed."""

    def __post_init__(self) -> None:
        here = self.name
        require(bool(self.model.path), f"{here}: a model from scratch has nothing to ask about; name a folder or @stage")
        for count in ("prompts", "questions", "overlap", "duel_overlap"):
            require(getattr(self, count) >= 1, f"{here}: {count}={getattr(self, count)}; at least 1")
        for count in ("duels", "anchors", "least"):
            require(getattr(self, count) >= 0, f"{here}: {count}={getattr(self, count)} is negative; 0 is none")
        require(self.samples >= 2, f"{here}: samples={self.samples} make no pair; at least 2")
        most = self.prompts * (self.samples // 2)
        require(self.questions <= most, f"{here}: questions={self.questions} of {most} candidates; raise prompts or samples")
        require(self.duels <= self.prompts, f"{here}: duels={self.duels} of {self.prompts} prompts; raise prompts")
        require(not self.duels or self.against is not None, f"{here}: duels need an opponent; set against, or duels=0")
        require(self.sampling.temperature > 0, f"{here}: sampling.temperature=0 draws equal samples; use a positive one")
        require(self.deadline > 0, f"{here}: deadline={self.deadline}; give a positive number of seconds")
        require(
            self.store != OWN_STORE or self.project == "default", f"{here}: project={self.project} needs a store that has it"
        )
        alone = set(self.mix) <= {"random"}
        require(alone or bool(self.scorers), f"{here}: mix={dict(self.mix)} needs reward models; set scorers, or random alone")
        judged = self.against is not None
        require(not judged or bool(self.scorers), f"{here}: a report card needs reward models; set scorers, or against=None")
        require(not judged or self.duels > 0, f"{here}: a policy is judged by its duels; set duels, or against=None")
        wanted = self.evaluation is None or bool(self.evaluation.rewards)
        require(wanted, f"{here}: evaluation.rewards is empty; name what measures the samples")
        self._check_annotators()

    def _check_annotators(self) -> None:
        names = [one.name for one in self.annotators if isinstance(one, ANNOTATORS)]
        require(len(names) == len(self.annotators), f"{self.name}: annotators are Simulated, Judge or ServedJudge")
        require(len(set(names)) == len(names), f"{self.name}: annotators' names repeat: {', '.join(names)}")
        people = [one for one in self.annotators if isinstance(one, Simulated)]
        require(not people or self.truth is not None, f"{self.name}: simulated annotators need a truth; set truth")
        require(
            not people or len(people) >= max(self.overlap, self.duel_overlap),
            f"{self.name}: overlap={max(self.overlap, self.duel_overlap)} of {len(people)} simulated annotators; "
            "each answers a question once",
        )

    @property
    def asks(self) -> str:  # type: ignore[override]
        return self.store

    def dtype_in(self, stages: Sequence[Stage]) -> Dtype:
        """That of the learner whose weights are asked about; of weights from elsewhere, that of the run's first learner."""
        made = [stage for stage in stages if self.model.path == f"@{stage.name}"]
        learners = made or [stage for stage in stages if not stage.asks]
        return learners[0].dtype_in(stages) if learners else "float32"

    @property
    def steps(self) -> int:  # type: ignore[override]
        """Questions; a step is one that has its votes."""
        return self.questions + self.duels + self.anchors

    @property
    def simulated(self) -> bool:
        """Whether made-up people answer, and no real ones."""
        return any(isinstance(one, Simulated) for one in self.annotators)

    def all_rewards(self) -> tuple[RewardSpec, ...]:
        """Rewards of truth, judges and evaluation."""
        judges = tuple(one.reward for one in self.annotators if isinstance(one, Judge))
        truth = (self.truth,) if self.truth else ()
        return truth + judges + (self.evaluation.rewards if self.evaluation else ())

    def feedback(self, learned: Mapping[str, set[str]]) -> set[str]:
        return {OTHER} if self.against is not None else set()  # votes decide whether the weights go on

    def mixtures(self) -> list[tuple[RewardSpec, ...]]:
        return [(reward,) for reward in self.all_rewards()]

    def models(self) -> list[str]:
        """The models that the stage names."""
        against = [self.against.path] if self.against else []
        return super().models() + against + (self.scorers.split("+") if self.scorers else [])


ANNOTATORS = (Simulated, Judge, ServedJudge)
"""What ``Ask.annotators`` may hold."""

"""The learn loop: lease → label → accumulate → step → publish → (the caller saves) → acknowledge; and the offline loop."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from types import TracebackType

import numpy as np

from penstock.config.run import NO_SCALING, RewardScaling
from penstock.core.algorithm import FromSamples
from penstock.core.contracts import (
    FULL_STEP,
    Caution,
    Channel,
    Coefficients,
    Columns,
    Denominator,
    Learner,
    Loss,
    Scorer,
    State,
)
from penstock.core.errors import CheckpointError, SkippedStepError, TrainingError
from penstock.core.sentinels import Alarm
from penstock.core.spans import NO_SPANS, Spans
from penstock.core.tape import NO_LEASES, LeaseLog
from penstock.core.types import Group, Metrics, Sample, Unit, Version
from penstock.loops.columns import filled
from penstock.loops.look import Seen, due, look
from penstock.rewards.scaling import Moments, scaled
from penstock.stream.lag import lag_counts, lag_metrics
from penstock.stream.stream import LearnerClient


@dataclass(frozen=True)
class Step:
    """What one training batch did. ``index`` counts from 0; ``version`` is that of the weights it made."""

    index: int
    version: Version
    metrics: Metrics
    groups: tuple[Group, ...] = ()
    alarms: tuple[Alarm, ...] = ()
    """Sentinels that tripped or cleared."""
    seen: tuple[Seen, ...] = ()
    """Samples to be shown, where the plan looks at this step."""


class Watch:
    """What a training loop tells of one batch; entered before the batch is labelled. This one looks at nothing.

    A watch that finds training wrong raises SentinelError: on entering, from any of its members, or on leaving.
    """

    alarms: Sequence[Alarm] = ()
    """What tripped and cleared."""
    held: bool = False
    """Whether nothing of the batch is to be trained on."""

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        return None

    def measured(self, units: Sequence[Unit], loss: Loss) -> tuple[Sequence[Unit], Loss]:
        """The first minibatch and its loss, as they are to be run."""
        return units, loss

    def judged(self, totals: Metrics) -> Metrics:
        """The first minibatch's metrics, before the optimizer steps."""
        return totals

    def caution(self) -> Caution:
        """What holds the next optimizer step back."""
        return FULL_STEP

    def enough(self, metrics: Metrics) -> bool:
        """Whether the rest of the batch is to be left out, after a minibatch with these metrics."""
        return False

    def skipped(self, error: SkippedStepError) -> None:
        """An optimizer step was not taken; raises where training may not go on without it."""
        raise error

    def after(self, metrics: Metrics) -> Metrics:
        """The metrics of the batch, trained and described."""
        return metrics


UNWATCHED = Watch()


class Watcher:
    """What looks at every batch of a stage (``observe.sentinels.Sentinels``). This one looks at nothing."""

    over: bool = False
    """Whether the stage is to end before its last step."""
    restore: Callable[[int, float | None], int | None] | None = None
    """Loads the learner's state of a good checkpoint from before a step, or of the best one; gives its step."""

    def healthy(self, step: int) -> bool:
        """Whether the weights of a step are worth going back to."""
        return True

    def evaluated(self, step: int, metrics: Metrics, rewards: Mapping[str, float]) -> list[Alarm]:
        """Alarms of an evaluation; ``rewards``: of each held-out prompt, by its key."""
        return []

    def watch(self, learner: Learner, index: int, groups: Sequence[Group] = (), max_lag: int = 0) -> Watch:
        return Watch()

    def compare_weights(
        self, version: Version, learner: Mapping[str, str], generator: Mapping[str, str], step: int
    ) -> list[Alarm]:
        """Alarms of checksums of a version's weights on both sides, by tensor or bucket name."""
        return []

    def state(self) -> State:
        return State({}, {})

    def load_state(self, state: State) -> None:
        return None


@dataclass
class Trainer:
    """Runs a loss over labelled units: minibatches, micro-batches, one optimizer step a minibatch."""

    learner: Learner
    loss: Loss
    watcher: Watcher = field(default_factory=Watcher)
    coupled: bool = True
    """Whether the rows of a unit must share a micro-batch, as the algorithm says."""

    def watch(self, index: int, groups: Sequence[Group] = (), max_lag: int = 0) -> Watch:
        """The watch over one batch."""
        return self.watcher.watch(self.learner, index, groups, max_lag)

    def step(self, units: Sequence[Unit], watch: Watch = UNWATCHED, first: bool = True, planned: int | None = None) -> Metrics:
        """Accumulate all units under one global denominator and step; metrics of the loss and of the step, none of one that the
        watch lets be skipped.

        Of the ``first`` minibatch of a batch the watch compares log-probs with the generator's. The schedule goes by the steps
        that the plan has before this one (``planned``; None: by those taken).
        """
        units, loss = watch.measured(units, self.loss) if first else (units, self.loss)
        denominator = Denominator.of(units)
        for batch in self.learner.lay_out(units, self.coupled):
            self.learner.accumulate(batch, loss, denominator)
        try:
            totals = self.learner.flush()
            totals = watch.judged(totals) if first else totals
            return totals | self.learner.step(replace(watch.caution(), planned=planned))
        except SkippedStepError as error:
            watch.skipped(error)
            return {}


def minibatches(units: Sequence[Unit], count: int, seed: tuple[int, ...]) -> Iterator[list[Unit]]:
    """Split units into ``count`` parts of like size, in an order that is a pure function of ``seed``."""
    order = np.arange(len(units))
    if count > 1:
        order = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed))).permutation(order)
    for part in np.array_split(order, count):
        if len(part):
            yield [units[i] for i in part]


def mean_metrics(parts: Sequence[Metrics]) -> Metrics:
    """Means over optimizer steps; names that begin with ``max/`` are maxima."""
    merged: Metrics = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        values = [part[name] for part in parts if name in part]
        merged[name] = max(values) if name.startswith("max/") else float(np.mean(values))
    return merged


@dataclass
class Labeller:
    """Fills the columns an algorithm needs, and labels."""

    algorithm: FromSamples
    learner: Learner
    reference: Scorer | None
    scaling: RewardScaling = NO_SCALING
    moments: Moments = field(default_factory=Moments)
    """Of the rewards so far, where they are scaled by them."""

    def __post_init__(self) -> None:
        self.coefficients: Coefficients = self.algorithm.initial_coefficients()

    def label(self, groups: Sequence[Group]) -> list[Unit]:
        groups, self.moments = scaled(groups, self.scaling, self.moments)
        self.coefficients = self.algorithm.remember(self.coefficients, groups)
        return self.algorithm.label(groups, self.columns(groups), self.coefficients)

    def columns(self, groups: Sequence[Group]) -> Columns:
        """The columns that the algorithm needs."""
        return filled(self.algorithm.needs, groups, self.learner, self.reference)

    def state(self) -> State:
        return State({}, {"coefficients": dict(self.coefficients), "moments": asdict(self.moments)})

    def load_state(self, state: State) -> None:
        saved = state.values["coefficients"]
        if saved.keys() != self.coefficients.keys():
            named = type(self.algorithm).__name__
            raise CheckpointError(f"{named} moves {sorted(self.coefficients)}, the checkpoint holds {sorted(saved)}")
        self.coefficients = dict(saved)
        self.moments = Moments(**state.values["moments"])


@dataclass(frozen=True)
class Plan:
    """How often a batch is used: ``minibatches`` optimizer steps in each of ``epochs`` passes; ``steps`` batches in all."""

    steps: int
    epochs: int = 1
    minibatches: int = 1
    seed: int = 0
    look: bool = False
    """Whether some samples are scored before they are trained on, to be shown."""


async def learn(
    stream: LearnerClient,
    labeller: Labeller,
    trainer: Trainer,
    channel: Channel,
    plan: Plan,
    start: int = 0,
    spans: Spans = NO_SPANS,
    leases: LeaseLog = NO_LEASES,
) -> AsyncGenerator[Step, None]:
    """Train on batch after batch; yields after each, before its slots open again.

    Takes leased batches from the stream; gives new weights to the channel and a :class:`Step` to the caller, who logs,
    evaluates and saves. Waits for groups; unblocked by the rollout. With ``max_lag=0`` nothing is generated while the
    caller holds a step, so what it does there can be repeated exactly.

    Raises:
        TrainingError: every sample of a batch failed, so nothing could be learned.
        SentinelError: training would be wrong (see ``observe/sentinels.py``), as a rule before the batch is trained on.
    """
    for index in range(start, plan.steps):
        if trainer.watcher.over:
            return
        waited = time.perf_counter()
        with spans.span("wait", step=index):
            lease = await stream.lease(version=index)
        began = time.perf_counter()
        groups = lease.groups + lease.reused
        leases.note(index, groups)
        lags = lag_counts(groups, index)
        _refuse_total_failure(groups)
        with trainer.watch(index, groups, stream.rules.max_lag) as watch:
            with spans.span("label", step=index):
                units = [] if watch.held else labeller.label(groups)
                shown = plan.look and due(index + 1, plan.steps)
                seen = look(trainer.learner, groups) if shown else ()
            parts: list[Metrics] = []
            with spans.span("train", step=index, lag=lags):
                for part in passes(units, plan, index):
                    planned = index * plan.epochs * plan.minibatches + len(parts)
                    parts.append(trainer.step(part, watch, not parts, planned))
                    if watch.enough(parts[-1]):
                        break
        stream.trained(lease)
        described = sample_metrics(groups) if watch.held else describe(labeller, groups, units)
        metrics = watch.after(mean_metrics(parts) | described)
        metrics["batch/left_out"] = float(len(groups) - len(units))
        metrics |= {"batch/replaced": float(len(lease.filtered))} if stream.rules.dynamic_sampling else {}
        metrics |= lag_metrics(lags) | {"seconds/waited": began - waited, "seconds/trained": time.perf_counter() - began}
        if ended := sum("episode" in sample.extras for group in groups for sample in group.samples):
            metrics["episode/per_second"] = ended / (time.perf_counter() - waited)
        with spans.span("publish", version=index + 1):
            await channel.publish(index + 1)
        yield Step(index, index + 1, metrics, groups, tuple(watch.alarms), seen)
        await stream.release(lease)


def passes(units: Sequence[Unit], plan: Plan, index: int) -> Iterator[list[Unit]]:
    """The minibatches of a batch, in the order in which it is trained on."""
    for epoch in range(plan.epochs):
        yield from minibatches(units, plan.minibatches, (plan.seed, index, epoch))


def _refuse_total_failure(groups: Sequence[Group]) -> None:
    samples = [sample for group in groups for sample in group.samples]
    if not any(sample.valid for sample in samples):
        reason = next((sample.error for sample in samples if sample.error), "no sample has a reward or an action")
        raise TrainingError(f"all {len(samples)} samples of a batch failed, so there is nothing to learn from: {reason}")


def describe(labeller: Labeller, groups: Sequence[Group], units: Sequence[Unit]) -> Metrics:
    """Metrics of the labelled batch and of its samples; moves the controllers."""
    from penstock.algos.labels import label_metrics

    metrics = label_metrics(units) | sample_metrics(groups)
    labeller.coefficients = labeller.algorithm.adapt(labeller.coefficients, metrics)
    return metrics


def sample_metrics(groups: Sequence[Group]) -> Metrics:
    """Length, finish and failures of samples, and the mean of each reward of the mixture."""
    everything = [sample for group in groups for sample in group.samples]
    samples = [sample for sample in everything if not sample.extras.get("greedy")]
    lengths = [int(sample.action_T.sum()) for sample in samples]
    metrics: Metrics = {
        "length/mean": float(np.mean(lengths)),
        "length/max": float(max(lengths)),
        "finish/stop": float(np.mean([sample.finish == "stop" for sample in samples])),
        "samples/failed": float(sum(sample.error is not None for sample in samples)),
        "tokens/generated": float(sum(lengths)),
    }
    greedy = [sample.reward or 0.0 for sample in everything if sample.extras.get("greedy") and sample.valid]
    if greedy:
        metrics["reward/greedy"] = float(np.mean(greedy))
    named: dict[str, list[float]] = {}
    for sample in samples:
        for name, value in sample.extras.get("rewards", {}).items():
            if value is not None:
                named.setdefault(name, []).append(float(value))
    return metrics | {f"reward/{name}": float(np.mean(values)) for name, values in named.items()} | episode_metrics(samples)


FAILURES = ("crashed", "timed_out", "tried_again")


def episode_metrics(samples: Sequence[Sample]) -> Metrics:
    """The facts of environments, ``episode/…``: means over episodes, failed ones included, so that ``crashed``, ``timed_out``
    and what an environment counts are rates. A fact that an episode does not have is 0 in it; failures are always named."""
    facts = [sample.extras["episode"] for sample in samples if "episode" in sample.extras]
    return {
        f"episode/{name}": sum(one.get(name, 0.0) for one in facts) / len(facts)
        for name in sorted({n for f in facts for n in (*f, *FAILURES)})
    }


async def offline(
    unit_of: Callable[[int], Unit],
    trainer: Trainer,
    label: Callable[[Sequence[Unit]], Sequence[Unit]] = tuple,
    *,
    batch: int,
    steps: int,
    start: int = 0,
    spans: Spans = NO_SPANS,
) -> AsyncGenerator[Step, None]:
    """Train on the units of ordinals ``step · batch …``; yields after each optimizer step.

    Takes units by ordinal (a pure function, so a resume draws the same), completed by ``label`` (``loops/columns.py``), a
    whole batch at a time; gives a :class:`Step` to the caller, who logs, assesses and saves. Waits for nothing.
    """
    for index in range(start, steps):
        if trainer.watcher.over:
            return
        began = time.perf_counter()
        units: Sequence[Unit] = [unit_of(ordinal) for ordinal in range(index * batch, (index + 1) * batch)]
        with spans.span("train", step=index), trainer.watch(index) as watch:
            metrics = watch.after(trainer.step(label(units), watch, planned=index))
        seconds = time.perf_counter() - began
        tokens = sum(len(row.action_T) for unit in units for row in unit)
        metrics |= {"seconds/trained": seconds, "tokens/trained": float(tokens), "tokens_per_second": tokens / seconds}
        yield Step(index, index + 1, metrics, alarms=tuple(watch.alarms))

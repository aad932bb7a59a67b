"""One stage made ready: its models, data and loop as an iterator of steps, and the holders of its state."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from penstock.config.ask import Ask
from penstock.config.run import DataSpec, EvaluationSpec, Offline, Online, Run, Stage
from penstock.core.contracts import Holder
from penstock.core.errors import SpecError
from penstock.core.spans import Recorder
from penstock.core.types import Group, Metrics, Sampling
from penstock.data.sampler import prompts
from penstock.engine.encoder_decoder import embedded_generator
from penstock.loops.evaluate import best_of, evaluate
from penstock.loops.learn import Step
from penstock.loops.offline import OfflineLabeller, offline
from penstock.loops.rollout import Rollout
from penstock.models.language_model import Head, LanguageModel
from penstock.models.language_policy import LanguagePolicy
from penstock.runtime.audit import reward_accuracy
from penstock.runtime.build import Models, StageRewards, check_prompts, corpus_of, environments, seed_of, units_of
from penstock.runtime.context import NO_CONTEXT, StageContext
from penstock.runtime.local import run_roles
from penstock.runtime.online import LocalFlow, online_parts, trainer_of
from penstock.runtime.procs import Aside, ProcsFlow
from penstock.train.learner import LearnerPlan, Scoring
from penstock.train.ranks import AnyLearner, learner_of

Evaluation = tuple[Metrics, Sequence[Group]]
OnStep = Callable[[Step], Any]


@dataclass
class Ready:
    """A stage that can be stepped through.

    ``steps(start)`` iterates over training from a step on; ``evaluate`` measures the weights as they are; ``holders`` is
    everything that a checkpoint must hold; ``close`` ends threads and processes of rewards.
    """

    model: LanguageModel
    holders: Mapping[str, Holder]
    steps: Callable[[int], AsyncGenerator[Step, None]]
    evaluate: Callable[[], Any] | None
    close: Callable[[], Any]
    background: Callable[[], list[Any]] = field(default=list)
    acknowledge: Callable[[], None] = field(default=lambda: None)
    aside: Aside | None = None
    """Who evaluates between the first and the last step, while training goes on."""
    epoch: int = 0
    """Units in one pass over the data."""


def prepare(stage: Stage, run: Run, models: Models, base: Path, context: StageContext = NO_CONTEXT) -> Ready:
    """Load and build everything a stage needs; errors in data, models or rewards surface here."""
    if isinstance(stage, Ask):
        return prepare_ask(stage, run, models, base, context)
    if isinstance(stage, Offline):
        return prepare_offline(stage, run, models, base, context.recorder)
    if run.runtime != "local" and context.bootstrap is None:
        raise SpecError(f'runtime="{run.runtime}" needs a supervisor (penstock.runtime.launch); here, set runtime="local"')
    return prepare_online(stage, run, models, base, context)


def prepare_offline(stage: Offline, run: Run, models: Models, base: Path, recorder: Recorder) -> Ready:
    """SFT, reward models, preferences."""
    algorithm: Any = stage.algorithm
    head: Head = "score" if "score" in algorithm.needs else "lm"
    model = models.load(stage.model, corpus_of(stage.data, base), head)
    seed = seed_of(run.seed, stage.name)
    unit_of, epoch = units_of(stage.data, base, seed, algorithm, model.text, model.context)
    drawn = (unit_of(ordinal) for ordinal in range(min(epoch, stage.steps * stage.batch)))
    if hasattr(algorithm, "fitted"):
        algorithm = algorithm.fitted(drawn)
    for _ in drawn:  # a row that cannot be trained on is refused before the first step
        pass
    reference = Scoring(models.reference(stage, model)) if "reference" in algorithm.needs else None
    if "q" in algorithm.needs:
        model.add_q_heads(algorithm.target_rate, algorithm.target_every)
    policy = LanguagePolicy(model, share_prefix=stage.learner.share_prefix)
    learner = learner_of(policy, stage.learner, LearnerPlan(total_steps=stage.steps, seed=seed))
    trainer = trainer_of(algorithm, run, learner)
    labeller = OfflineLabeller(algorithm, learner, reference)

    async def steps(start: int) -> AsyncGenerator[Step, None]:
        spans = recorder.role("learner")
        trained = offline(unit_of, trainer, labeller, batch=stage.batch, steps=stage.steps, start=start, spans=spans)
        async with aclosing(trained):
            async for step in trained:
                yield step
        learner.refresh()

    assess, rewards = None, None
    if stage.evaluation is not None and stage.evaluation.rewards:
        rewards = StageRewards(stage.evaluation.rewards, models, model.text, base)
        sampling = Sampling(max_new_tokens=model.context, seed=seed)
        roll = Rollout(embedded_generator(model), environments(model.text), rewards, sampling, 1)
        assess = refreshed(learner, evaluator(stage.evaluation, roll, rewards, model, base))
    elif stage.evaluation is not None:
        held_out, size = units_of(replace(stage.evaluation.data, shuffle=False), base, 0, algorithm, model.text, model.context)
        units = labeller.label([held_out(ordinal) for ordinal in range(size)], baseline=False)
        needs = trainer.loss.needs & {"score", "step"} or frozenset({"logp"})

        async def assess() -> Evaluation:
            found = algorithm.assess(units, learner.score(units, needs))
            return {f"evaluation/{name}": value for name, value in found.items()}, ()

    async def close() -> None:
        learner.close()
        if rewards is not None:
            await rewards.close()

    return Ready(model, {"learner": learner, "sentinels": trainer.watcher}, steps, assess, close, epoch=epoch)


def prepare_ask(stage: Ask, run: Run, models: Models, base: Path, context: StageContext) -> Ready:
    """Asking people; the extra ``feedback`` is needed only here."""
    from penstock.runtime.asking import Asking, evaluated

    asking = Asking(stage, run, models, base, context)

    async def steps(start: int) -> AsyncGenerator[Step, None]:
        async with aclosing(asking.steps(start)) as asked:
            async for step in asked:
                ready.model = asking.model
                yield step

    async def close() -> None:
        pass

    async def measure() -> Evaluation:
        found: Evaluation = await evaluated(asking, evaluator)
        return found

    ready = Ready(asking.model, {}, steps, measure if stage.evaluation else None, close, epoch=len(asking.source))
    return ready


def prepare_online(stage: Online, run: Run, models: Models, base: Path, context: StageContext) -> Ready:
    """PPO, GRPO and their kin, with the other roles in this process or in others."""
    bootstrap = context.bootstrap
    parts = online_parts(stage, run, models, base, reference_elsewhere=bootstrap is not None and run.roles.references > 0)
    flow = LocalFlow(parts, context) if bootstrap is None else ProcsFlow(parts, run, bootstrap, context)
    measure, closing = measured(stage.evaluation, parts.roll, parts.rewards, models, parts.model, base)
    for reward in closing:
        reward.spans = context.recorder.role("reward-0" if bootstrap is None else "evaluation")

    async def steps(start: int) -> AsyncGenerator[Step, None]:
        async with aclosing(flow.steps(start)) as trained:
            async for step in trained:
                yield step
        parts.learner.refresh()

    async def close() -> None:
        parts.learner.close()
        for reward in closing:
            await reward.close()
        context.recorder.end("generator-0", "reward-0", "evaluation")

    return Ready(
        parts.model,
        {"learner": parts.learner, "stream": flow.stream, "labeller": parts.labeller, "sentinels": parts.trainer.watcher},
        steps,
        refreshed(parts.learner, measure) if measure is not None else None,
        close,
        background=flow.background,
        acknowledge=flow.stream.acknowledge,
        aside=flow.aside,
        epoch=len(parts.source),
    )


def measured(
    spec: EvaluationSpec | None, roll: Rollout, rewards: StageRewards, models: Models, model: LanguageModel, base: Path
) -> tuple[Callable[[], Any] | None, list[StageRewards]]:
    """What evaluates an online stage, if it is evaluated, and all rewards of the stage, which must be closed."""
    if spec is None:
        return None, [rewards]
    scored = StageRewards(spec.rewards, models, model.text, base) if spec.rewards else rewards
    measure = evaluator(spec, roll, scored, model, base)
    if spec.labelled is not None:
        measure = audited(measure, spec.labelled, rewards, model, base)
    return measure, [rewards, scored] if spec.rewards else [rewards]


def evaluator(spec: EvaluationSpec, roll: Rollout, rewards: Any, model: LanguageModel, base: Path) -> Callable[[], Any]:
    """A function that samples and scores the held-out prompts under the present weights."""
    source = prompts(replace(spec.data, shuffle=False), base, 0)
    check_prompts(source, spec.data, len(source), model)
    held_out = [source(ordinal) for ordinal in range(len(source))]
    longest = spec.max_new_tokens or roll.sampling.max_new_tokens
    sampling = replace(roll.sampling, temperature=spec.temperature, max_new_tokens=longest)
    held_out_roll = replace(roll, reward=rewards, samples=spec.samples, sampling=sampling, greedy=False)

    async def measure() -> Evaluation:
        metrics, groups = await evaluate(held_out_roll, held_out)
        metrics |= best_of(groups, spec.best_of, spec.rank_by)
        for beta in spec.betas:
            shifted, _ = await evaluate(replace(held_out_roll, sampling=replace(sampling, beta=beta)), held_out)
            metrics |= {name.replace("/", f"/beta={beta:g}/", 1): value for name, value in shifted.items()}
        return metrics, groups

    return measure


def refreshed(learner: AnyLearner, measure: Callable[[], Any]) -> Callable[[], Any]:
    """``measure`` with the model brought up to date before, where the learner trains shards of it."""

    async def measured_now() -> Evaluation:
        learner.refresh()
        found: Evaluation = await measure()
        return found

    return measured_now


def audited(
    measure: Callable[[], Any], data: DataSpec, rewards: StageRewards, model: LanguageModel, base: Path
) -> Callable[[], Any]:
    """``measure`` with the accuracy of the stage's rewards on labelled texts added; that is computed once."""
    known: Metrics = {}

    async def both() -> Evaluation:
        if not known:
            known.update(await reward_accuracy(data, rewards, model.text, base))
        metrics, groups = await measure()
        return {**metrics, **known}, groups

    return both


async def step_through(ready: Ready, start: int, on_start: Callable[[], Any], on_step: OnStep) -> None:
    """Run a stage's roles: ``on_start`` once before the first step, ``on_step`` after each; both are awaited.

    ``on_step`` answers whether to go on.
    """

    await on_start()

    async def main() -> None:
        # Whatever ends a step, a signal among them: what the steps hold open is closed before anything else is.
        async with aclosing(ready.steps(start)) as steps:
            async for step in steps:
                if not await on_step(step):
                    return

    await run_roles(main(), *ready.background())

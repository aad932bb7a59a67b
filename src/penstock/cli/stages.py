"""One stage made ready: its models, data and loop as an iterator of steps, and the holders of its state."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from penstock.cli.audit import reward_accuracy
from penstock.cli.build import Models, StageRewards, check_prompts, corpus_of, environments, seed_of, units_of
from penstock.core.contracts import Holder
from penstock.core.errors import ModelError
from penstock.core.run import DataSpec, EvaluationSpec, Offline, Online, Run, Stage
from penstock.core.sentinels import EXACT, ROUNDED
from penstock.core.spans import NO_RECORDER, Recorder
from penstock.core.types import Group, Metrics, Sampling
from penstock.data.layout import count, lay_out
from penstock.data.sampler import prompts
from penstock.engine.encoder_decoder import embedded_generator
from penstock.flow.local import run_roles
from penstock.flow.rules import Rules
from penstock.flow.stream import Stream
from penstock.loops.evaluate import best_of, evaluate
from penstock.loops.learn import Labeller, Plan, Step, Trainer, learn
from penstock.loops.offline import OfflineLabeller, offline
from penstock.loops.rollout import Rollout, rollout
from penstock.loops.sentinels import Sentinels
from penstock.models.language_model import Head, LanguageModel
from penstock.train.learner import DeviceLearner
from penstock.weights.alias import AliasChannel

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
    steps: Callable[[int], AsyncIterator[Step]]
    evaluate: Callable[[], Any] | None
    close: Callable[[], Any]
    background: Callable[[], list[Any]] = field(default=list)
    acknowledge: Callable[[], None] = field(default=lambda: None)
    epoch: int = 0
    """Units in one pass over the data."""


def prepare(stage: Stage, run: Run, models: Models, base: Path, recorder: Recorder = NO_RECORDER) -> Ready:
    """Load and build everything a stage needs; errors in data, models or rewards surface here."""
    if isinstance(stage, Offline):
        return prepare_offline(stage, run, models, base, recorder)
    return prepare_online(stage, run, models, base, recorder)


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
    reference = models.reference(stage, model) if "reference" in algorithm.needs else None
    if "q" in algorithm.needs:
        model.add_q_heads(algorithm.target_rate, algorithm.target_every)
    learner = DeviceLearner(model, stage.learner, lay_out, total_steps=stage.steps, seed=seed)
    trainer = trainer_of(stage, run, learner)
    labeller = OfflineLabeller(algorithm, learner, reference)

    async def steps(start: int) -> AsyncIterator[Step]:
        spans = recorder.role("learner")
        async for step in offline(unit_of, trainer, labeller, batch=stage.batch, steps=stage.steps, start=start, spans=spans):
            yield step

    assess, rewards = None, None
    if stage.evaluation is not None and stage.evaluation.rewards:
        rewards = StageRewards(stage.evaluation.rewards, models, model.text, base)
        sampling = Sampling(max_new_tokens=model.context, seed=seed)
        roll = Rollout(embedded_generator(model), environments(model.text), rewards, sampling, 1)
        assess = evaluator(stage.evaluation, roll, rewards, model, base)
    elif stage.evaluation is not None:
        held_out, size = units_of(replace(stage.evaluation.data, shuffle=False), base, 0, algorithm, model.text, model.context)
        units = labeller.label([held_out(ordinal) for ordinal in range(size)], baseline=False)
        needs = trainer.loss.needs & {"score", "step"} or frozenset({"logp"})

        async def assess() -> Evaluation:
            found = algorithm.assess(units, learner.score(units, needs))
            return {f"evaluation/{name}": value for name, value in found.items()}, ()

    async def close() -> None:
        if rewards is not None:
            await rewards.close()

    return Ready(model, {"learner": learner, "sentinels": trainer.sentinels}, steps, assess, close, epoch=epoch)


def prepare_online(stage: Online, run: Run, models: Models, base: Path, recorder: Recorder) -> Ready:
    """PPO, GRPO and their kin, on the local runtime: the generator aliases the learner's parameters."""
    algorithm: Any = stage.algorithm
    model = models.load(stage.model, corpus_of(stage.data, base))
    reference = models.reference(stage, model) if algorithm.needs & {"reference", "teacher"} else None
    seed = seed_of(run.seed, stage.name)
    sampling = replace(stage.sampling, seed=seed)
    updates = stage.steps * stage.epochs * stage.minibatches
    learner = DeviceLearner(model, stage.learner, lay_out, total_steps=updates, temperature=sampling.temperature, seed=seed)
    if "teacher" in algorithm.needs and reference is not None:
        check_vocabulary(reference.model, model, stage.name)
        learner.teacher = reference
    generator = embedded_generator(model, slots=stage.slots)
    rewards = StageRewards(stage.rewards, models, model.text, base)
    greedy = "greedy" in algorithm.needs
    roll = Rollout(generator, environments(model.text), rewards, sampling, stage.samples, greedy)
    stream = Stream(rules_of(stage))
    control = algorithm.initial_control()
    labeller = Labeller(algorithm, learner, reference, sampling.temperature, control, stage.scaling)
    trainer = trainer_of(stage, run, learner)
    source = prompts(stage.data, base, seed)
    check_prompts(source, stage.data, stage.steps * stage.batch * (1 + stage.refill), model)
    plan = Plan(stage.steps, stage.epochs, stage.minibatches, seed)

    async def steps(start: int) -> AsyncIterator[Step]:
        generator.version = start
        channel = AliasChannel([generator], stage.kv)
        before = generator.stats()
        async for step in learn(stream, labeller, trainer, channel, plan, start, recorder.role("learner")):
            now = generator.stats()
            drawn, busy = now.generated_tokens - before.generated_tokens, now.busy_seconds - before.busy_seconds
            before = now
            rates = {"generation/tokens_per_second": drawn / busy if busy else 0.0, "seconds/generated": busy}
            yield replace(step, metrics=step.metrics | rates)
            before = generator.stats()  # what the caller generated to evaluate is not the rollout's

    measure, closing = measured(stage.evaluation, roll, rewards, models, model, base)
    generator.spans = recorder.role("generator-0")
    for reward in closing:
        reward.spans = recorder.role("reward-0")

    async def close() -> None:
        for reward in closing:
            await reward.close()

    return Ready(
        model,
        {"learner": learner, "stream": stream, "labeller": labeller, "sentinels": trainer.sentinels},
        steps,
        measure,
        close,
        background=lambda: [rollout(stream, source, roll)],
        acknowledge=stream.acknowledge,
        epoch=len(source),
    )


def trainer_of(stage: Stage, run: Run, learner: DeviceLearner) -> Trainer:
    """The trainer of a stage's loss, with its sentinels."""
    spec, algorithm = stage.learner, cast(Any, stage.algorithm)
    rounds = spec.compute != "float32" or (spec.lora is not None and spec.lora.quantize != "none")
    sentinels = Sentinels(run.sentinels, ROUNDED if rounds else EXACT)
    return Trainer(learner, algorithm.loss(), lay_out, count, spec.token_budget, spec.share_prefix, sentinels)


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


def rules_of(stage: Online) -> Rules:
    """What the stream of a stage enforces."""
    algorithm: Any = stage.algorithm
    return Rules(stage.batch, stage.max_lag, keep=algorithm.has_signal if stage.refill else None, refill=stage.refill)


def check_vocabulary(teacher: LanguageModel, student: LanguageModel, stage: str) -> None:
    """Refuse a teacher whose tokens are others: distributions over different vocabularies cannot be compared."""
    same = teacher.text.tokenizer.get_vocab() == student.text.tokenizer.get_vocab()
    if not same or teacher.config.vocab_size != student.config.vocab_size:
        raise ModelError(f"{stage}: the teacher's vocabulary is not the student's; take one with the same tokenizer")


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
        async for step in ready.steps(start):
            if not await on_step(step):
                return

    await run_roles(main(), *ready.background())

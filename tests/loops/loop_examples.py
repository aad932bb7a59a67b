"""Parts of a loop that are known by heart: rewards of tokens, a learner that only counts, a task any model learns at once."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from penstock.config.run import NO_SCALING
from penstock.core.algorithm import FromSamples
from penstock.core.contracts import State
from penstock.core.types import Group, IntArray, Metrics, Prompt, PromptKey, Row, Sample, SampleKey, Sampling, added
from penstock.engine.encoder_decoder import embedded_generator
from penstock.engine.generator import EmbeddedGenerator
from penstock.envs.episode import Episode
from penstock.loops.learn import Labeller, Plan, Step, Trainer, learn
from penstock.loops.rollout import Rollout, rollout
from penstock.models.language_model import LanguageModel
from penstock.models.language_policy import LanguagePolicy
from penstock.models.packing import lay_out
from penstock.observe.sentinels import Sentinels
from penstock.runtime.local import alongside
from penstock.stream.rules import Rules
from penstock.stream.stream import LearnerClient, Stream, Worker
from penstock.train.learner import DeviceLearner, LearnerPlan
from penstock.weights.alias import AliasChannel

PROMPTS = [np.array([20 + i, 40, 41], np.int32) for i in range(5)]


def prompt_of(ordinal: int) -> Prompt:
    epoch, place = divmod(ordinal, len(PROMPTS))
    return Prompt(PromptKey("test", epoch, place), f"prompt {place}")


def environment(prompt: Prompt) -> Episode:
    return Episode(PROMPTS[prompt.key.ordinal])


class ByToken:
    """The reward protocol over a function of a sample; None marks the sample as failed."""

    def __init__(self, score: Callable[[Sample], float | None]) -> None:
        self.score = score

    async def __call__(self, group: Group) -> Group:
        samples = []
        for sample in group.samples:
            score = self.score(sample)
            scored = sample.failed('reward "letters" raised') if score is None else sample.scored(score)
            samples.append(replace(scored, extras={**sample.extras, "rewards": {"letters": score}}))
        return replace(group, samples=tuple(samples))

    async def close(self) -> None:
        return None


def small_tokens(sample: Sample) -> float:
    """The share of action tokens from the lower half of the vocabulary: any model learns this at once."""
    return float((sample.tokens_T[sample.action_T] < 150).mean())


def half_flat(sample: Sample) -> float:
    """Prompts 0 and 2 of five tell nothing."""
    return 1.0 if sample.key.prompt.ordinal in (0, 2) else small_tokens(sample)


class CountingLearner:
    """Fulfils the learner contract and notes what it was asked to do."""

    def __init__(self, budget: int = 4096) -> None:
        self.calls: list[Any] = []
        self.budget = budget
        self.found: Metrics = {}

    def accumulate(self, batch, loss, denominator):
        rows = len(batch.row_ids)
        self.calls.append(("accumulate", rows, denominator.rows))
        self.found = added(self.found, {"share": rows / denominator.rows, "max/peak": float(rows)})

    def flush(self):
        found, self.found = self.found, {}
        return found

    def step(self, caution=None):
        self.calls.append("step")
        return {"gradient_norm": 1.0}

    def lay_out(self, units, coupled=True):
        return lay_out(units, self.budget, True, coupled=coupled)

    def score(self, units, needs):
        raise AssertionError("nothing here needs scores")

    def weights(self):
        return iter(())

    def state(self):
        return State({}, {})

    def load_state(self, state):
        return None


class BareRows(FromSamples):
    """An algorithm that labels every valid sample with nothing."""

    def initial_coefficients(self):
        return {"kl": 0.0}

    def label(self, groups, columns, control):
        kept = [tuple(Row(s.columns, s.action_T) for s in group.samples if s.valid) for group in groups]
        return [unit for unit in kept if unit]

    def compute_loss(self, outputs, fields, batch, denominator):
        return None

    def adapt(self, coefficients, metrics):
        return {"kl": coefficients["kl"] + 1}


@dataclass
class Online:
    """Everything an online run is made of, over one tiny model."""

    model: LanguageModel
    algorithm: Any
    learner: Any
    generator: EmbeddedGenerator
    stream: LearnerClient
    labeller: Labeller
    trainer: Trainer
    channel: AliasChannel
    roll: Rollout
    versions: list[int] = field(default_factory=list)


def online(
    model: LanguageModel,
    algorithm: Any,
    learner_spec: Any,
    *,
    batch: int = 4,
    samples: int = 8,
    max_lag: int = 0,
    score: Callable[[Sample], float | None] = small_tokens,
    **more: Any,
) -> Online:
    """``more``: ``sampling``, ``kv``, ``steps``, ``make_env``, ``dynamic_sampling``, ``scaling``."""
    sampling: Sampling = more.get("sampling", Sampling(max_new_tokens=6, temperature=0.8))
    learner = DeviceLearner(
        LanguagePolicy(model, sampling.temperature, learner_spec.share_prefix),
        learner_spec,
        LearnerPlan(total_steps=more.get("steps", 100)),
    )
    generator = embedded_generator(model, max_running=64)
    labeller = Labeller(algorithm, learner, None, more.get("scaling", NO_SCALING))
    trainer = Trainer(learner, algorithm.loss(), watcher=Sentinels())
    roll = Rollout(generator, more.get("make_env", environment), ByToken(score), sampling, samples, algorithm.greedy)
    dynamic_sampling = more.get("dynamic_sampling", 0)
    stream = LearnerClient(
        Rules(batch, max_lag, keep=algorithm.has_signal if dynamic_sampling else None, dynamic_sampling=dynamic_sampling)
    )
    channel = AliasChannel([generator], more.get("kv", "keep"))
    return Online(model, algorithm, learner, generator, stream, labeller, trainer, channel, roll)


def train(parts: Online, plan: Plan, start: int = 0, on_step: Callable[[Step], None] | None = None) -> list[Step]:
    """Run rollout and learn loops; gives the steps."""
    found = []
    parts.stream.source = stream = Stream(parts.stream.rules, kept=parts.stream.ledger)

    async def main() -> None:
        async with alongside(rollout(Worker(stream, "g"), prompt_of, parts.roll)):
            async for step in learn(parts.stream, parts.labeller, parts.trainer, parts.channel, plan, start):
                found.append(step)
                if on_step is not None:
                    on_step(step)

    asyncio.run(main())
    return found


def resumed_halfway(whole: Online, fresh: Online, plan: Plan, at: int = 2) -> tuple[list[Step], list[Step]]:
    """Train ``whole``, and ``fresh`` from the state that ``whole`` had after ``at`` steps; gives the steps of both."""
    saved = {}

    def save(step: Step) -> None:
        if step.version == at:
            for name in ("learner", "stream", "labeller"):
                saved[name] = copy.deepcopy(getattr(whole, name).state())

    steps = train(whole, plan, on_step=save)
    for name, state in saved.items():
        getattr(fresh, name).load_state(state)
    fresh.generator.version = at
    return steps, train(fresh, plan, start=at)


def rewards(steps: Sequence[Step]) -> list[float]:
    return [step.metrics["reward/mean"] for step in steps]


def weights_of(model: LanguageModel) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def assert_same_weights(model: LanguageModel, expected: Mapping[str, torch.Tensor]) -> None:
    """Equal bit by bit."""
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights_of(model).items())


class Interview(Episode):
    """An environment that answers the first answer with two tokens."""

    def __init__(self, prompt: Prompt) -> None:
        super().__init__(PROMPTS[prompt.key.ordinal])
        self.turns = 0

    @property
    def more(self) -> bool:  # type: ignore[override]
        return self.turns == 0

    async def step(self, sample: Sample) -> IntArray | None:
        self.turns += 1
        return np.append(sample.tokens_T, np.array([50, 51], np.int32)) if self.turns == 1 else None


def sample_of(actions: Sequence[int], reward: float | None, *, place: int = 0, **changes: Any) -> Sample:
    """A finished sample after a prompt of one token."""
    tokens_T = np.array([20, *actions], np.int32)
    action_T = np.arange(len(tokens_T)) >= 1
    made = Sample(
        SampleKey(PromptKey("test", 0, 0), place),
        {"tokens_T": tokens_T},
        action_T,
        np.where(action_T, -1.0, 0.0).astype(np.float32),
        np.where(action_T, 0, -1).astype(np.int32),
        "stop",
    )
    made = made if reward is None else made.scored(reward)
    return replace(made, **changes)

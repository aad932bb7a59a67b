"""From specs to objects: devices, models, data, rewards. The only place that knows both sides."""

from __future__ import annotations

import asyncio
import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from penstock.algos.process_reward import marks, step_tokens
from penstock.config.learner import Dtype
from penstock.config.media import Media
from penstock.config.run import DataSpec, ModelSpec, Offline, Online, RewardSpec, Run, models_behind
from penstock.core.algorithm import Algorithm
from penstock.core.contracts import RewardFunction
from penstock.core.errors import DataError, ModelError, RewardError, WireError
from penstock.core.seeds import seed_of as seed_of
from penstock.core.spans import NO_SPANS, Spans
from penstock.core.types import Group, Prompt, Row, Sample
from penstock.data.media import MediaStore
from penstock.data.render import Renderer
from penstock.data.sampler import Sampler, prompts, row_name
from penstock.data.texts import prompt_tokens
from penstock.loops.learn import Trainer
from penstock.models.arithmetic import convert
from penstock.models.branches import reference_branch, share_frozen
from penstock.models.clip import Clip
from penstock.models.families import Model, built, computing, drawing, language_model, policy_of, without_adapters
from penstock.models.files import load_model, scores_answers
from penstock.models.language_model import Head, LanguageModel
from penstock.models.language_policy import LanguagePolicy, SharedTrunkPolicy
from penstock.models.restrict import restrict
from penstock.models.text import Text
from penstock.net import wire
from penstock.observe.rules import bounds_of
from penstock.observe.sentinels import Sentinels
from penstock.rewards.looking import ClipReward, JudgeReward
from penstock.rewards.model import ModelReward, StepReward, StepRow, combined, read_by
from penstock.rewards.runner import Mixture
from penstock.train.learner import Scoring
from penstock.train.ranks import AnyLearner


class Models:
    """Finds and loads the models a run names. ``@stage`` is the folder where that stage's model was saved."""

    def __init__(self, stage_folder: Callable[[str], Path], device: Any, seed: int, blobs: Path | None = None) -> None:
        self.stage_folder = stage_folder
        self.device = device
        self.seed = seed
        self.policy: LanguageModel | None = None
        """The model that is being trained; what is loaded with it may share its frozen part."""
        self.blobs = blobs
        """The run's folder of blobs; None: media are held in memory."""
        self.compute: Dtype = "float32"
        """Arithmetic of reward models: the learner's, once a stage has said what that is."""

    def path(self, name: str) -> str:
        return str(self.stage_folder(name[1:])) if name.startswith("@") else name

    def load(self, spec: ModelSpec, corpus: Iterable[str], head: Head = "lm") -> Any:
        """The model of a spec, a :data:`Model`; ``corpus`` fits the tokenizer of one that is built from scratch."""
        if spec.path:
            model = load_model(self.path(spec.path), head, media=spec.media).to(self.device)
        else:
            model = built(spec, corpus, seed_of(self.seed, "model"), head).to(self.device)
        self.policy = model if isinstance(model, LanguageModel) else None
        return reading(model, spec.media, self.blobs)

    def reference(self, stage: Offline | Online, start: Any, temperature: float = 1.0) -> Any:
        """The frozen policy of a stage: where it starts unless the stage names another. Call it before the learner is made.

        Where part of the model is frozen, the reference shares that part instead of standing in memory a second time; with
        adapters it is the model without them.
        """
        spec, compute = stage.reference, stage.learner.dtype
        other = None
        if spec is not None and (spec.path != stage.model.path or not spec.path):
            other = self._frozen(spec, compute)
        if stage.learner.lora is not None and other is None:
            return without_adapters(start, temperature)
        if stage.learner.unfrozen_layers < 0:
            frozen = other or copy.deepcopy(start).requires_grad_(False)
            return policy_of(computing(frozen, compute), temperature)
        restrict(start, stage.learner)
        if other is None:
            return SharedTrunkPolicy(start, reference_branch(start), temperature)
        share_frozen(other, start)
        return LanguagePolicy(other, temperature)

    def reference_alone(self, stage: Online, corpus: Iterable[str]) -> Scoring:
        """The frozen model of a stage, in a process that trains nothing."""
        spec = stage.reference or stage.model
        model = self._frozen(spec, stage.learner.dtype) if spec.path else self.load(stage.model, corpus)
        drawing(computing(model, stage.learner.dtype), stage.denoising)
        return Scoring(policy_of(model.requires_grad_(False), stage.sampling.temperature))

    def _frozen(self, spec: ModelSpec, compute: Dtype) -> Any:
        model = load_model(self.path(spec.path), media=spec.media).to(self.device).requires_grad_(False)
        return reading(computing(model, compute), spec.media, self.blobs)

    def scorer(self, name: str) -> Scoring:
        """A frozen reward model whose head computes in float32; what it has in common with the frozen part of ``policy`` is
        held once."""
        model = language_model(self.path(name), "score").to(self.device).requires_grad_(False)
        if not scores_answers(model, self.path(name)):
            what = "a language model has no score, and a new head's would be random"
            raise ModelError(f"{self.path(name)}: {what}; train one first (BradleyTerry and others), or take judge:{name}")
        convert(model.network.base_model, self.compute)
        if self.policy is not None and self.policy.border is not None:
            share_frozen(model, self.policy)
        return Scoring(LanguagePolicy(model))


def reading(model: LanguageModel, media: Media | None, blobs: Path | None) -> LanguageModel:
    """A model with the media of a run at hand, if its spec says that it reads any."""
    if media is not None:
        model.text.store = MediaStore(blobs, media)
    return model


READ_FOR_TOKENIZER = 200_000
"""Rows that a tokenizer is fitted to at most."""


def corpus_of(spec: DataSpec, base: Path) -> Iterator[str]:
    """Texts of a data set, to fit a tokenizer to: whatever its templates can render. Of a large one every n-th row."""
    renderer, source = Renderer(spec), prompts(spec, base, 0).source
    for index in range(0, len(source), 1 + len(source) // READ_FOR_TOKENIZER):
        yield from renderer.texts(source[index])


def check_prompts(source: Sampler[Prompt], spec: DataSpec, draws: int, model: Model, travel: bool = False) -> None:
    """Look at every prompt that is about to be read; ``travel``: it goes from process to process.

    Raises:
        DataError: one leaves no room for an answer, or holds what cannot travel.
    """
    for ordinal in range(min(draws, len(source))):
        prompt = source(ordinal)
        length = len(prompt_tokens(prompt, model.text))
        if length >= min(model.context, (spec.too_long.tokens or model.context) + 1):
            raise DataError(
                f"{row_name(source, spec, ordinal)}: the prompt has {length} tokens, which leaves no room for an answer in the "
                f"model's context of {model.context}, or is more than data.too_long allows; set data.too_long to "
                "Drop(tokens=…), shorten the template or use a longer context"
            )
        if travel:
            with named_row(source, spec, ordinal):
                wire.pack(dict(prompt.columns))


@contextmanager
def named_row(source: Sampler[Prompt], spec: DataSpec, ordinal: int) -> Iterator[None]:
    """Say which row it was that cannot go to other processes."""
    try:
        yield
    except WireError as error:
        raise DataError(
            f"{row_name(source, spec, ordinal)} cannot go to the run's other processes: {error}; write it as text or numbers"
        ) from error


def model_reward(scorer: Scoring, name: str, policy: Text) -> ModelReward:
    """A frozen reward model as a reward of a policy's samples."""
    model: LanguageModel = scorer.policy.module
    return ModelReward(scorer, name, read_by(model.text, policy, model.context))


def step_reward(scorer: Scoring, name: str, policy: Text) -> StepReward:
    """A frozen process reward model as a reward; it reads prompt and steps as its own tokenizer and template write them."""
    model: LanguageModel = scorer.policy.module
    own = model.text

    def row_with(separator: str) -> StepRow:
        def row(sample: Sample, prompt: Prompt, steps: Sequence[str]) -> Row:
            tokens_T, end_S = step_tokens(prompt_tokens(prompt, own).tolist(), steps, own, separator)
            if len(tokens_T) > model.context:
                raise RewardError(f"{len(tokens_T)} tokens do not fit the context of model {name}, {model.context}")
            return Row({"tokens_T": tokens_T}, marks(len(tokens_T), end_S))

        return row

    return StepReward(scorer, name, policy.raw, row_with)


class Unscored:
    """The reward of samples that are scored elsewhere, or that nobody has judged yet: none."""

    spans: Spans = NO_SPANS

    async def __call__(self, group: Group) -> Group:
        return group

    async def close(self) -> None:
        return None


class StageRewards:
    """The rewards of a stage, reward models loaded; fulfils the Reward protocol.

    Options of a reward model (or several, ``model:@a+@b``): ``sigmoid`` gives a probability instead of a score; ``combine``
    and ``penalty`` say what is made of several (see rewards/model.py). Of a process reward model (``process:@a``):
    ``separator`` and ``use`` (see rewards/model.py). Of a judge and of CLIP: see rewards/looking.py.
    """

    def __init__(self, specs: tuple[RewardSpec, ...], models: Models, policy: Text, base: Path) -> None:
        self._models: list[ModelReward] = []
        self._lookers: dict[str, JudgeReward | ClipReward] = {}
        provided: dict[str, RewardFunction] = {}
        store = policy.store if isinstance(policy.store, MediaStore) else MediaStore(models.blobs)
        for spec in specs:
            scheme, _, place = spec.function.partition(":")
            if scheme == "process":
                (name,) = models_behind(spec)
                provided[spec.function] = stepwise = step_reward(models.scorer(name), spec.name or name, policy)
                self._models.append(stepwise)
            if scheme == "model":
                made = [model_reward(models.scorer(name), spec.name or name, policy) for name in models_behind(spec)]
                self._models += made
                provided[spec.function] = _with_options(made)
            if scheme == "judge":
                self._lookers[spec.function] = JudgeReward(partial(_judge, place, spec.deadline), store)
            if scheme == "clip":
                self._lookers[spec.function] = ClipReward(Clip(models.path(place), models.device), place, store)
        self.mixture = Mixture(specs, provided | self._lookers, base)
        self.spans: Spans = NO_SPANS

    async def __call__(self, group: Group) -> Group:
        with self.spans.overlapping("reward"):
            return await self.mixture(group)

    async def close(self) -> None:
        """End the processes and threads of all rewards."""
        await self.mixture.close()
        for made in self._models:
            made.close()
        for looker in self._lookers.values():
            await looker.close()


def _judge(url: str, seconds: float, model: str, key: str, tokens: int) -> Any:
    from penstock.serve.judge import OneWord  # with an extra's package

    return OneWord(url, key, seconds, model, tokens=tokens)


def _with_options(judges: Sequence[ModelReward]) -> RewardFunction:
    async def reward(
        group: Group, columns: Mapping[str, Any], *, sigmoid: bool = False, combine: str = "mean", penalty: float = 1.0
    ) -> list[float]:
        score_MG = await asyncio.gather(*(judge(group, columns) for judge in judges))
        if sigmoid:
            score_MG = [[1 / (1 + math.exp(-score)) for score in scores] for scores in score_MG]
        return combined(score_MG, combine, penalty)

    return reward


def trainer_of(algorithm: Algorithm, run: Run, learner: AnyLearner, model: Model) -> Trainer:
    """The trainer of an algorithm's loss, with its sentinels."""
    bounds = bounds_of(run, learner.spec, model.config.num_hidden_layers)
    sentinels = Sentinels(run.sentinels, bounds, learner.spec.clip_norm)
    return Trainer(learner, algorithm.loss(), sentinels, algorithm.coupled)

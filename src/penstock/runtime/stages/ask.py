"""A stage that asks people: it samples, asks, waits for votes, judges the policy, and gives the model to go on with.

The extra ``feedback`` is needed only here.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from penstock.config.ask import OWN_STORE, Ask, Simulated
from penstock.config.run import Run
from penstock.config.stage import Stage
from penstock.core.errors import DataError
from penstock.core.files import write_json
from penstock.core.types import Group, Prompt, Sample
from penstock.data.blobs import BLOBS, Blobs
from penstock.data.texts import prompt_text
from penstock.data.units import prompts_of
from penstock.engine.encoder_decoder import embedded_generator
from penstock.envs.making import environments
from penstock.feedback.asking import Answered, Asked, Tally, duels, questions, read, repeated, write
from penstock.feedback.errors import FeedbackError
from penstock.feedback.exchange.snapshot import Labels, Votes, snapshot
from penstock.feedback.records import Response
from penstock.feedback.select import Mix
from penstock.feedback.simulate import answer_all
from penstock.feedback.verdicts import Verdict, judged
from penstock.loops.learn import Step
from penstock.loops.rollout import Rollout
from penstock.models.families import Model, language_model
from penstock.models.language_model import LanguageModel
from penstock.product.source import opened
from penstock.runtime.build import Models, StageRewards, Unscored, model_reward, seed_of
from penstock.runtime.context import StageContext
from penstock.runtime.judging import Heard, ask_judges, reports, truths
from penstock.runtime.measuring import sampled
from penstock.runtime.stages import Evaluation, StageRuntime

if TYPE_CHECKING:
    from penstock.feedback.store import Store

POLL_SECONDS = 1.0
"""Time between two looks at the log while people are waited for."""


def place_of(store: str, base: Path, folder: Path) -> str:
    """Where a stage's store is: a file or a URL."""
    if store == OWN_STORE:
        return str((folder / "feedback.db").resolve())
    return store if "://" in store else str((base / Path(store).expanduser()).resolve())


class Asking(StageRuntime):
    """Asks, waits for votes, and goes on with the model that they let pass: ``model``, known once the votes are in."""

    def __init__(self, stage: Ask, run: Run, models: Models, base: Path, context: StageContext) -> None:
        if context.folder is None:
            raise DataError(f"{stage.name}: asks within a run only; penstock train")
        self.stage, self.run, self.models, self.base, self.context = stage, run, models, base, context
        self.folder, self.blobs = context.folder / "asked", Blobs(context.folder / BLOBS)
        self.place = place_of(stage.store, base, context.folder)
        self.seed = seed_of(run.seed, stage.name)
        self.labels = Labels(natures=("simulated",) if stage.simulated else ("human", "imported"))
        self.dtype = models.compute = stage.dtype_in(run.stages)
        self.chosen, self.model = stage.model.path, self._load(stage.model.path)
        self.source = prompts_of(stage.data, base, self.seed, self.model.text)
        self.holders, self.epoch = {}, len(self.source)
        self.evaluate = self._evaluate if stage.evaluation else None

    def _load(self, path: str) -> LanguageModel:
        return language_model(self.models.path(path), dtype=self.dtype).to(self.models.device).requires_grad_(False)

    async def close(self) -> None:
        """Later stages start from the weights as they are in their folder, in whatever type they were computed with."""
        self.dtype = "float32"
        self.model = self._load(self.chosen)

    @property
    def before(self) -> list[Ask]:
        """Earlier Ask stages of the run in the same project of the same store, the oldest first."""
        index = self.run.stages.index(next(stage for stage in self.run.stages if stage.name == self.stage.name))
        earlier = [cast(Ask, stage) for stage in self.run.stages[:index] if stage.asks == self.stage.store]
        return [stage for stage in earlier if stage.project == self.stage.project]

    def _questions(self, stage: Stage) -> list[Asked]:
        return read(self.folder / f"{stage.name}.jsonl")

    def _verdict(self, stage: Stage) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / f"{stage.name}.json").read_text(encoding="utf-8"))
        return found

    def origin(self, path: str) -> dict[str, Any]:
        """Who wrote the weights of a path: run, stage and version; of an Ask stage, whose weights it let pass."""
        stage = next((stage for stage in self.run.stages if path == f"@{stage.name}"), None)
        if stage is None:
            return {"run": path, "stage": "", "version": -1}
        if stage.asks:
            return dict(self._verdict(stage)["promoted"])
        return {"run": self.run.name, "stage": stage.name, "version": stage.steps}

    # Sampling

    async def asked(self) -> list[Asked]:
        """The questions: those written down when the stage was begun before, else new ones, written down first."""
        path = self.folder / f"{self.stage.name}.jsonl"
        if not path.exists():
            write(await self._draw(), path)
        return read(path)

    async def _draw(self) -> list[Asked]:
        stage, names = self.stage, [name for name in self.stage.scorers.split("+") if name]
        here = f"{self.run.name}/{stage.name}"
        fields = {name: getattr(stage, name) for name in ("overlap", "guideline", "project")} | {"round": here}
        judges = [model_reward(self.models.scorer(name), name, self.model.text) for name in names]
        try:
            answered = await self._answered(self.model, stage.model.path, stage.samples, judges)
            found = questions(answered, stage.questions, Mix(stage.mix), self.seed, **fields)
            if stage.duels and stage.against is not None:
                others = await self._answered(self._load(stage.against.path), stage.against.path, 1, judges)
                found += duels(answered, others, stage.duels, **{**fields, "overlap": stage.duel_overlap})
        finally:
            for judge in judges:
                judge.close()
        if stage.anchors and self.before:
            found += repeated(self._questions(self.before[-1]), stage.anchors, here)
        if not found:
            raise DataError(f"{stage.name}: every two samples are equal, so there is nothing to ask; raise temperature")
        return found

    async def _answered(self, model: Model, path: str, samples: int, judges: Sequence[Any]) -> list[Answered]:
        """The samples of one policy for all prompts, with the reward models' scores."""
        sampling = replace(self.stage.sampling, seed=self.seed)
        roll = Rollout(embedded_generator(model), environments(model.text), Unscored(), sampling, samples)
        groups = await asyncio.gather(*(roll.group(self.source(ordinal)) for ordinal in range(self.stage.prompts)))
        origin, how = self.origin(path), asdict(sampling)

        async def one(group: Group) -> Answered:
            scores = await asyncio.gather(*(judge(group, group.prompt.columns) for judge in judges))
            responses = tuple(response(sample, origin, how, group.prompt) for sample in group.samples)
            prompt = prompt_text(group.prompt, model.text)
            said = groups_of(group.prompt)
            return Answered(prompt, str(group.key), responses, tuple(map(tuple, scores)), said, group.prompt.blobs)

        return list(await asyncio.gather(*(one(group) for group in groups)))

    # Asking and waiting

    async def steps(self, start: int) -> AsyncGenerator[Step, None]:
        """Ask, and step once for every look at which more questions had their votes; the last step is the judgement."""
        with opened(self.place) as store:
            store.project(self.stage.project)  # refuses one that is not there, before anything is sampled
            asked = await self.asked()
            tasks = [one.task for one in asked]
            store.ask(tasks, self.blobs.read)
            who = "simulated annotators" if self.stage.simulated else "people"
            self.context.report("asked", of=who, questions=len(tasks), store=self.place, guideline=self.stage.guideline)
            heard = await self._answer(store, asked)
            tally = Tally(tasks)
            async with aclosing(self._waited(store, tally)) as waited:
                async for done in waited:
                    yield Step(done - 1, done, {"asked/answered": float(done), "asked/votes": float(tally.votes)})
            verdict = self._conclude(store, asked, heard)
        yield Step(self.stage.steps - 1, self.stage.steps, verdict.metrics())

    async def _answer(self, store: Store, asked: Sequence[Asked]) -> Heard:
        """Let those answer who need not be waited for."""

        def rewards(spec: Any) -> StageRewards:
            return StageRewards((spec,), self.models, self.model.text, self.base)

        heard = await ask_judges(self.stage, store, asked, rewards)
        if self.stage.truth is None or not self.stage.simulated:
            return heard
        earlier = [one for ask in self.before for one in self._questions(ask)]  # repeats ask again
        known = await truths(self.stage.truth, [one.task.item for one in [*earlier, *asked]], rewards)
        people = [one for one in self.stage.annotators if isinstance(one, Simulated)]

        def truth(task: Any) -> Sequence[float]:
            if task.item.id not in known:
                raise FeedbackError(f"{self.place}: nobody simulated knows task {task.id}; use another store")
            return known[task.item.id]

        answer_all(store, people, truth, seed=self.seed, project=self.stage.project)
        return heard

    async def _waited(self, store: Store, tally: Tally) -> AsyncGenerator[int, None]:
        """Answered questions whenever there are more of them, until all are, or the deadline has passed with enough votes.

        Raises:
            FeedbackError: the deadline has passed with too few votes; names who was waited for.
        """
        stage, last, ends = self.stage, 0, time.monotonic() + self.stage.deadline
        while True:
            tally.hear(store.events(after=tally.heard))
            if tally.answered == len(tally.wanted):
                return
            stopped = self.context.stopped()
            if stopped or last < tally.answered < stage.steps:
                last = min(tally.answered, stage.steps - 1)
                yield last
            if time.monotonic() >= ends:
                wanted = stage.least or sum(tally.wanted.values())
                if tally.votes >= wanted:
                    self.context.report("deadline passed", votes=tally.votes, wanted=sum(tally.wanted.values()))
                    return
                raise FeedbackError(
                    f"{tally.votes} votes ({_counted(tally.by_annotator())}) of at least {wanted} after {stage.deadline:g} s; "
                    f"people answer at: penstock feedback serve {self.place}"
                )
            await asyncio.sleep(min(POLL_SECONDS, max(0.0, ends - time.monotonic())))

    # Judging

    async def _evaluate(self) -> Evaluation:
        """The model that the stage goes on with, on held-out prompts."""
        assert self.stage.evaluation is not None
        sampling = replace(self.stage.sampling, seed=self.seed)
        measure, rewards = sampled(self.stage.evaluation, self.model, self.models, sampling, self.base)
        try:
            found: Evaluation = await measure()
            return found
        finally:
            await rewards.close()

    def _conclude(self, store: Store, asked: Sequence[Asked], heard: Heard) -> Verdict:
        """Judge the policy by the votes, write the verdict down, and take the model to go on with."""
        stage = self.stage
        earlier = [self._verdict(ask) for ask in self.before]
        last = self._questions(self.before[-1]) if self.before and stage.anchors else []
        taken = snapshot(store, project=stage.project)
        votes = Votes.of(taken, self.labels)
        verdict = judged(stage.name, asked, votes, last, earlier, stage.gate if stage.against else None)
        passed = verdict.card is None or verdict.card.passed
        chosen = stage.model.path if passed or stage.against is None else stage.against.path
        promoted = {**self.origin(chosen), "path": chosen}
        write_json(
            self.folder / f"{stage.name}.json",
            {**verdict.plain(), "asked": self.origin(stage.model.path), "promoted": promoted, "until": taken.until},
        )
        for line in reports(asked, heard, taken, votes):
            self.context.report("judge beside people", **line)
        for line in verdict.told():
            self.context.report(line.pop("what"), **line)
        if stage.against is not None:
            word = "promoted" if passed else "not promoted"
            weights = f"version {promoted['version']} of {promoted['stage'] or promoted['path']}"
            self.context.report(word, goes_on_with=weights, because=verdict.because() or "the report card passed")
        if chosen != self.chosen:
            self.chosen, self.model = chosen, self._load(chosen)
        return verdict


def response(sample: Sample, origin: Mapping[str, Any], sampling: Mapping[str, Any], prompt: Prompt) -> Response:
    """A sample as the store keeps it, with its exact tokens, the log-probs of those that were generated, and what it made
    besides text: the blobs that are not the prompt's."""
    logp = tuple(map(float, sample.logp_T[sample.action_T]))
    tokens = tuple(map(int, sample.tokens_T))
    made_by = {name: origin[name] for name in ("run", "stage", "version")}
    blobs = tuple(blob for blob in sample.blobs if blob not in prompt.blobs)
    return Response(sample.raw_text, tokens, logp, **made_by, sampling=dict(sampling), blobs=blobs)


def groups_of(prompt: Prompt) -> dict[str, str]:
    """The values to report by, which a row holds in a column ``groups``."""
    found = prompt.columns.get("groups")
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, Mapping) else {}


def _counted(votes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in votes.items()) or "of nobody"


def prepare(stage: Ask, run: Run, models: Models, base: Path, context: StageContext) -> Asking:
    """Load the policy that is asked about."""
    return Asking(stage, run, models, base, context)

"""A recorded online stage once more, in one process: the same batches and weights, every engine's turns as they were.

All engines are driven from their tapes: a turn is taken only when all that had entered before it has entered again. A weight
update waits for the learner to make that version, the learner for the groups of its batch, so cause stays before effect
whatever the clock does; what took hours on many processes can be looked at step by step under a debugger.
"""

from __future__ import annotations

import asyncio
import copy
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from penstock.core.contracts import Generator
from penstock.core.errors import GenerationError, ReplayError
from penstock.core.tape import LEASES, read_lines
from penstock.core.types import Group, PromptKey, Request, Sample, SampleKey, Version, WeightUpdate
from penstock.engine.sequences import Sequence as Drawn
from penstock.loops.columns import column_changes
from penstock.loops.learn import Step, learn
from penstock.models.families import drawing
from penstock.models.files import load_model
from penstock.models.language_model import LanguageModel
from penstock.runtime.stages.online import OnlineParts
from penstock.runtime.supervise import rules_of
from penstock.stream.enrichment import merged
from penstock.stream.lag import masked
from penstock.stream.leases import Lease
from penstock.stream.stream import LearnerClient

PATIENCE = 600.0
"""Seconds in which what a tape names must come; rewards and environments take the time they take."""


class Motion:
    """Whether anything still moves: engines that stand still while the learner waits have a damaged record."""

    def __init__(self) -> None:
        self.moves = 0
        self.changed = asyncio.Condition()

    async def until(self, ready: Callable[[], bool], what: str) -> None:
        """Wait for ``what``; the caller holds ``changed``.

        Raises:
            ReplayError: nothing has moved for :data:`PATIENCE` seconds.
        """
        while not ready():
            before = self.moves
            try:
                async with asyncio.timeout(PATIENCE):
                    await self.changed.wait()
            except TimeoutError:
                if self.moves == before and not ready():
                    raise ReplayError(f"waited {PATIENCE:.0f} s for {what}, and nothing moved; the record is damaged") from None


@dataclass
class Weights:
    """Versions that the learner has made, for engines that come to them sooner or later. Fulfils ``Channel``."""

    tensors: Callable[[], Iterable[tuple[str, Any]]]
    """Those of the learner as they are now."""
    uses: dict[Version, int]
    """By version: how many tapes load it."""
    motion: Motion
    made: dict[Version, list[tuple[str, Any]]] = field(default_factory=dict)

    async def publish(self, version: Version) -> None:
        async with self.motion.changed:
            self.motion.moves += 1
            if self.uses.get(version):
                self.made[version] = [(name, tensor.detach().clone()) for name, tensor in self.tensors()]
            self.motion.changed.notify_all()

    async def take(self, version: Version) -> list[tuple[str, Any]]:
        """The tensors of a version; waits for them. They are forgotten after their last use."""
        async with self.motion.changed:
            await self.motion.until(lambda: version in self.made, f"weights of version {version} from the learner")
            self.uses[version] -= 1
            return self.made[version] if self.uses[version] else self.made.pop(version)


class Groups:
    """Groups that the engines have finished, by origin. ``failed``: of groups in batches, the samples that had failed."""

    def __init__(self, leases: Iterable[Mapping[str, Any]], motion: Motion) -> None:
        self.failed: dict[str, set[int]] = {}
        for line in leases:
            self.failed |= {origin: set() for origin in line["groups"]}
            for place, number, _ in line["failed"]:
                self.failed[line["groups"][place]].add(number)
        self.wanted, self.motion = self.failed.keys(), motion
        self._found: dict[str, Group] = {}

    async def put(self, group: Group) -> None:
        async with self.motion.changed:
            self.motion.moves += 1
            if group.origin in self.wanted:
                self._found[group.origin] = group
            self.motion.changed.notify_all()

    async def get(self, origins: Sequence[str]) -> list[Group]:
        """The groups of these origins; waits for them."""
        async with self.motion.changed:
            await self.motion.until(lambda: self._found.keys() >= set(origins), f"groups {', '.join(origins)} from the engines")
            return [self._found[origin] for origin in origins]

    def forget(self, origins: Sequence[str]) -> None:
        for origin in origins:
            self._found.pop(origin, None)


class TapedEngine:
    """One engine under its tape. Rollouts call its ``generate``: a request waits there until the tape lets it in."""

    def __init__(self, name: str, lines: Sequence[Any], model_folder: Path | None, parts: OnlineParts, groups: Groups) -> None:
        self.name, self.lines = name, lines
        self.aliased = model_folder is None
        media, model = parts.stage.model.media, copy.deepcopy(parts.model)
        if model_folder is not None:
            model = drawing(load_model(str(model_folder), media=media), parts.stage.denoising).to(parts.model.device)
            model.text = parts.model.text  # which has the run's media
        self.engine = parts.generator(model, version=-1)
        self.roll = replace(parts.roll, generator=cast(Generator, self))
        self.prompts, self.groups, self.kv = parts.source, groups, parts.stage.kv
        self._failed = self._failed_samples()
        self._expected = Counter(sample_key(line) for line in lines if line[1] == "submit")
        self._arrived: dict[SampleKey, list[Drawn]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._news, self._over = asyncio.Event(), False

    async def generate(self, request: Request) -> Sample:
        """Wait until the tape lets the request in, then until it is answered."""
        sequence = self.engine.sequence(request)
        if (reason := sequence.finish_reason(self.engine.text)) is not None:
            return sequence.sample(reason, self.engine.text)
        self._expected[request.key] -= 1
        if request.key in self._failed and self._expected[request.key] < 0:  # its environment had no time to answer
            raise GenerationError(f"{request.key} asks for a turn that it did not have")
        if self._over:
            raise ReplayError(f"{self.name}: the tape ends before {request.key} enters")
        self._arrived.setdefault(request.key, []).append(sequence)
        self._news.set()
        return await sequence.future

    async def abort(self, keys: Collection[SampleKey]) -> list[Sample]:
        """Nothing: the tape says when the engine gave up what it kept for another turn."""
        return []

    async def run(self, weights: Weights) -> None:
        """Follow the tape to its end, then draw what is left."""
        try:
            for line in self.lines:
                await self._until(int(line[0]))
                await self._enter(line, weights)
            while await self._turn():
                pass
            await self._end()
            await asyncio.Event().wait()  # the learner says when the replay is over
        finally:
            for task in self._tasks.values():
                task.cancel()

    def _failed_samples(self) -> set[SampleKey]:
        """Of this tape's groups."""
        ordinals = {line[2]: int(line[3]) for line in self.lines if line[1] == "begin"}
        mine = [(ordinals[origin], numbers) for origin, numbers in self.groups.failed.items() if origin in ordinals and numbers]
        return {SampleKey(self.prompts(ordinal).key, number) for ordinal, numbers in mine for number in numbers}

    async def _end(self) -> None:
        """Wait for the groups that were trained; all is drawn, so that rewards and environments alone are at work."""
        self._over = True
        for origin in self._tasks.keys() - self.groups.wanted:
            self._tasks[origin].cancel()
        left = [key for key, waiting in self._arrived.items() if any(not drawn.future.cancelled() for drawn in waiting)]
        if left:
            raise ReplayError(f"{self.name}: the tape ends before {left[0]} enters")
        for found in await asyncio.gather(*self._tasks.values(), return_exceptions=True):
            if isinstance(found, Exception):
                raise found

    async def _until(self, turn: int) -> None:
        while self.engine.tape.turn < turn:
            if not await self._turn():
                raise ReplayError(
                    f"{self.name}: the tape goes on to turn {turn}, but all is drawn at turn {self.engine.tape.turn}"
                )

    async def _turn(self) -> bool:
        """One turn of the engine; False if it has nothing to do."""
        for task in [task for task in self._tasks.values() if task.done() and not task.cancelled()]:
            task.result()
        if not self.engine.busy:
            return False
        self.engine.step()
        self.groups.motion.moves += 1
        await asyncio.sleep(0)
        return True

    async def _enter(self, line: Sequence[Any], weights: Weights) -> None:
        what, values = line[1], line[2:]
        if what == "begin":
            origin, ordinal = values
            self._tasks[origin] = asyncio.create_task(self._group(origin, int(ordinal)))
        elif what == "submit":
            self.engine.enter(await self._next_arrival(sample_key(line)))
        elif what == "load":
            version, learner_epoch = map(int, values)
            tensors = await weights.take(version)
            if self.aliased:
                overwrite(self.engine.model, tensors)
            await self.engine.load(
                WeightUpdate(version, None if self.aliased else tensors, self.kv, learner_epoch=learner_epoch)
            )
        elif what == "forget":
            self.engine.forget(sample_key(line))
        elif what == "drop":
            self._tasks[values[0]].cancel()
            await asyncio.sleep(0)
        else:
            raise ReplayError(f'{self.name}: the tape says "{what}", which no version of this program writes')

    async def _next_arrival(self, key: SampleKey) -> Drawn:
        try:
            async with asyncio.timeout(PATIENCE):
                while not (arrived := [drawn for drawn in self._arrived.get(key, ()) if not drawn.future.cancelled()]):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise ReplayError(
                f"{self.name}: the tape lets {key} in at turn {self.engine.tape.turn}, but it did not come"
            ) from None
        self._arrived[key] = arrived[1:]
        return arrived[0]

    async def _group(self, origin: str, ordinal: int) -> None:
        group = await self.roll.group(self.prompts(ordinal))
        await self.groups.put(replace(group, origin=origin))


def sample_key(line: Sequence[Any]) -> SampleKey:
    """Whose request a line of a tape lets in."""
    source, epoch, ordinal, sample = line[2]
    return SampleKey(PromptKey(source, epoch, ordinal), sample)


def overwrite(model: LanguageModel, tensors: Sequence[tuple[str, Any]]) -> None:
    """Give a copy of the learner's model the parameters of another moment: adapters and types are as the learner has them."""
    for (_, own), (_, new) in zip(model.policy_weights(), tensors, strict=True):
        own.detach().copy_(new)


class RecordedStream(LearnerClient):
    """The learner's side of the stream: every batch as it was. ``references``: whether processes of their own wrote the
    reference's log-probs, group by group: sums depend on what they are computed with."""

    def __init__(
        self, leases: Mapping[Version, Mapping[str, Any]], groups: Groups, parts: OnlineParts, references: bool = False
    ) -> None:
        super().__init__(rules_of(parts.stage))
        self.leases, self.groups, self.stage, self.labeller = leases, groups, parts.stage, parts.labeller
        self.references = references and self.labeller.reference is not None
        self._last_use = {origin: version for version, line in sorted(leases.items()) for origin in line["groups"]}

    async def lease(self, version: Version) -> Lease:
        if version not in self.leases:
            raise ReplayError(f"the record ends before step {version + 1}")
        line = self.leases[version]
        found = await self.groups.get(line["groups"])
        for place, number, error in line["failed"]:
            samples = list(found[place].samples)
            index = next(index for index, sample in enumerate(samples) if sample.key.sample == number)
            samples[index] = samples[index].failed(error)
            found[place] = replace(found[place], samples=tuple(samples))
        if self.references:
            found = [self._referred(group) for group in found]
        if self.stage.on_stale == "mask":
            found = [masked(group, version - self.stage.max_lag) for group in found]
        return Lease(version, version, tuple(group.key.ordinal for group in found), tuple(found))

    def _referred(self, group: Group) -> Group:
        assert self.labeller.reference is not None
        return merged(group, column_changes("reference", self.labeller.reference, group))

    def trained(self, lease: Lease) -> None:
        self.groups.forget(
            [origin for origin in self.leases[lease.version]["groups"] if self._last_use[origin] == lease.version]
        )

    async def release(self, lease: Lease) -> None:
        return None


def threads_recorded(schedule: Path) -> int:
    """CPU threads of the learner that was recorded: sums depend on them. Raises DataError where there is no record."""
    return max((int(line["threads"]) for line in read_lines(schedule / LEASES)), default=0)


def read_leases(schedule: Path, steps: int) -> dict[Version, Mapping[str, Any]]:
    """The batches of the first ``steps`` steps by version; of one that was made twice, the later one."""
    leases = {int(line["version"]): line for line in read_lines(schedule / LEASES)}
    return {version: line for version, line in sorted(leases.items()) if version < steps}


def read_tapes(schedule: Path, leases: Mapping[Version, Mapping[str, Any]]) -> dict[str, list[Any]]:
    """What decided about the groups of some batches, by tape.

    A tape is cut at the first weights that were made after its last group had been trained on, because these came later. What
    follows in the record of a run that was killed belongs to weights that nobody has any more.

    Raises:
        ReplayError: a group of a batch is on no tape.
    """
    due: dict[str, Version] = {}
    for version, line in leases.items():
        for origin in line["groups"]:
            due.setdefault(origin, version)
    tapes: dict[str, list[Any]] = {}
    for name in sorted({origin.rpartition("/")[0] for origin in due}):
        path = schedule / f"{name}.jsonl"
        lines = list(read_lines(path)) if path.exists() else []
        begun = {line[2] for line in lines if line[1] == "begin"}
        missing = [origin for origin in due if origin.rpartition("/")[0] == name and origin not in begun]
        if missing:
            raise ReplayError(f"step {due[missing[0]] + 1} was trained on group {missing[0]}, which is not on {path}")
        last = max(due[origin] for origin in due if origin.rpartition("/")[0] == name)
        cut = (place for place, line in enumerate(lines) if line[1] == "load" and int(line[2]) > last)
        tapes[name] = lines[: next(cut, len(lines))]
    return tapes


class Replay:
    """The recorded batches of a stage, trained again: ``engines`` run alongside ``steps``.

    ``schedule`` is the stage's folder of tapes and leases; ``model_folder`` has the model that the generators of other
    processes began with, None where the generator read the learner's own parameters; ``references``: see RecordedStream.

    Raises:
        ReplayError: the record is incomplete, or does not fit this program; from engines and steps as well.
        DataError: there is no record.
    """

    def __init__(
        self, parts: OnlineParts, schedule: Path, model_folder: Path | None, steps: int, references: bool = False
    ) -> None:
        self.parts, self.plan = parts, replace(parts.plan, steps=steps, look=False)
        leases = read_leases(schedule, steps)
        tapes = read_tapes(schedule, leases)
        uses = Counter(int(line[2]) for lines in tapes.values() for line in lines if line[1] == "load")
        motion = Motion()
        groups = Groups(leases.values(), motion)
        self.weights = Weights(parts.learner.weights if model_folder else parts.model.policy_weights, uses, motion)
        self.stream = RecordedStream(leases, groups, parts, references)
        self._engines = [TapedEngine(name, lines, model_folder, parts, groups) for name, lines in tapes.items()]

    def engines(self) -> list[Coroutine[Any, Any, None]]:
        """What goes through the record."""
        return [engine.run(self.weights) for engine in self._engines]

    async def steps(self) -> AsyncGenerator[Step, None]:
        """Train; yields after each step."""
        await self.weights.publish(0)
        trained = learn(self.stream, self.parts.labeller, self.parts.trainer, self.weights, self.plan)
        async with aclosing(trained):
            async for step in trained:
                yield step

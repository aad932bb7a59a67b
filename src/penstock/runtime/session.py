"""A run from its folder: stages in order, events, evaluations, checkpoints, resume, and a clean end on Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.ckpt.background import Saver
from penstock.ckpt.entries import Loaded, Position
from penstock.ckpt.lease import LEASE
from penstock.ckpt.mirror import Mirror
from penstock.ckpt.store import CheckpointStore
from penstock.config.run import Run
from penstock.config.stage import Stage
from penstock.core.contracts import State
from penstock.core.errors import CheckpointError, PenstockError, RanksLost, blame, reworded
from penstock.core.events import Event, EventLog
from penstock.core.files import cause, write_json
from penstock.core.sentinels import Alarm, SentinelError
from penstock.core.spans import Recorder
from penstock.core.types import Group, Metrics
from penstock.data.blobs import BLOBS, Blobs
from penstock.loops.evaluate import by_prompt
from penstock.loops.learn import Step
from penstock.loops.look import chosen, due, pictured, rows_of
from penstock.observe.first_rows import remarks_on_behaviour, remarks_on_rows, remarks_on_samples
from penstock.runtime.bootstrap import Bootstrap
from penstock.runtime.build import Models
from penstock.runtime.check import check_stages, named
from penstock.runtime.context import StageContext
from penstock.runtime.folder import RunFolder
from penstock.runtime.local import alongside
from penstock.runtime.pinning import GROWING, require_same_rows, settled
from penstock.runtime.stages import StageRuntime, prepare
from penstock.runtime.stopping import Interrupted, StopSignal
from penstock.train.device import RandomStates, set_up

LOOKED_AT = 3
"""Rows of data that are looked at before a stage's first step."""


@dataclass
class Progressed:
    """What a stage has to show so far; survives a resume with the checkpoint."""

    first: Metrics
    last: Metrics
    metrics: Metrics
    seconds: float = 0.0

    def state(self) -> State:
        return State({}, {"first": self.first, "last": self.last, "metrics": self.metrics, "seconds": self.seconds})

    def load_state(self, state: State) -> None:
        self.first, self.last = state.values["first"], state.values["last"]
        self.metrics, self.seconds = state.values["metrics"], state.values["seconds"]


class Session:
    """Carries a run out in a folder, in this process; :func:`penstock.runtime.launch` makes one and calls :meth:`execute`.

    ``listeners`` see every event as it is logged. ``base`` is the folder that relative paths of the spec start from.
    ``bootstrap`` is what the learner of a run of processes was started with. ``stop`` says whether the run was asked to stop.
    ``begun`` says whether the first stage was made ready, so that there is something to go on with.
    """

    def __init__(
        self,
        run: Run,
        folder: Path,
        listeners: Sequence[Callable[[Event], None]],
        base: Path,
        *,
        stop: StopSignal,
        bootstrap: Bootstrap | None = None,
    ) -> None:
        self.run = run
        self.folder = RunFolder(folder)
        self.base = base
        self.listeners = listeners
        self.bootstrap = bootstrap
        self.stop = stop
        self.step = 0
        self.begun = False

    def execute(self, resume: bool = False) -> dict[str, Any]:
        """Run all stages that are not finished yet; gives the summary. A finished run is left as it is.

        A new run that fails before its first stage is ready leaves no folder behind.

        Raises:
            PenstockError: anything the user can mend; once ``begun``, it says how to go on from the last checkpoint.
            Interrupted: Ctrl-C or SIGTERM; everything is saved, or nothing was begun.
        """
        with self._explained():
            if done := self._finished(resume):
                if (mirror := self._mirror()) is not None and (missing := mirror.send()):
                    raise CheckpointError(missing)
                return done
            with self._opened(resume):
                self.loaded = self.store.load_newest() if resume else None
                self.begun = resume
                for number, stage in enumerate(self.run.stages):
                    if stage.name in self.summary["stages"] and self.folder.stage_model(self.run, stage.name).exists():
                        continue
                    steps = self._ready(number, stage, resume).execute()
                    with self.stop.between_saves():
                        asyncio.run(steps)
                    self.models.policy = None
                    gc.collect()  # its model, optimizer and caches refer to each other: they would stay while the next one runs
                    if self.stop.asked and stage.name != self.run.stages[-1].name:
                        raise Interrupted(f"stopped after stage {stage.name}; everything is saved")
                return self._concluded()

    def _ready(self, number: int, stage: Stage, resume: bool) -> StageRun:
        """A stage where it begins, or goes on; the log has nothing of what comes again."""
        with named(stage.name):
            stage_run = self._prepared(number, stage)
        if resume:  # without a checkpoint the evaluation before the first step comes again as well
            kept = -1 if stage_run.loaded is None else self.step
            self.log.truncate_after(stage.name, kept, open_evaluation(stage_run.loaded))
        return stage_run

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Errors and interrupts that end the run say how to go on with it."""
        try:
            yield
        except Interrupted as stopped:
            raise Interrupted(f"{stopped}; {self.folder.way_on}") from None
        except KeyboardInterrupt:
            raise Interrupted(f"stopped; {self.folder.way_on}") from None
        except PenstockError as error:
            if not self.begun or (self.bootstrap is not None and isinstance(error, RanksLost)):  # its supervisor goes on
                raise
            raise reworded(error, f"{error}; mend that and {self.folder.way_on}") from error

    def _finished(self, resume: bool) -> dict[str, Any] | None:
        """The summary of a run that is finished already. Raises CheckpointError where the folder is another run's."""
        if not resume:
            self.folder.require_free()
            return None
        self.folder.require_same(self.run)
        return self.folder.finished(self.run)

    @contextlib.contextmanager
    def _opened(self, resume: bool) -> Iterator[None]:
        """Hold the folder and open what a run writes."""
        device = set_up(self.run.device, self.bootstrap.threads if self.bootstrap else self.run.threads)
        check_stages(self.run, self.base)
        patience = LEASE if self.bootstrap else 0.0  # of a learner started again, whose last one may be cut off from its run
        self.lease = self.folder.hold(patience) if resume else self.folder.begin(self.run)
        try:
            self.models = Models(lambda name: self.folder.stage_model(self.run, name), device, self.run.seed, self.folder.blobs)
            self.store = CheckpointStore(
                self.folder.checkpoints, keep=self.run.checkpoint.keep, report=self._report, lease=self.lease
            )
            self.summary = self.folder.read_summary()
            self.recorder = Recorder(self.folder.spans)
            mirror = self._mirror()
            log = EventLog(self.folder.events, self.listeners)
            saver = Saver(self.store, self._report, mirror)
            with contextlib.closing(log) as self.log, saver as self.saver, contextlib.closing(self.recorder):
                yield
        except OSError as error:
            raise CheckpointError(f"{self.folder.path}: {cause(error, self.folder.path)}") from error
        finally:
            if not resume and not self.begun and self.lease.is_held():
                self.folder.undo()
            self.lease.close()

    def _prepared(self, number: int, stage: Stage) -> StageRun:
        """A stage made ready, announced in the log, as the checkpoint has it where that is one of its steps."""
        self.log.stage = stage.name
        loaded = self.loaded if self.loaded is not None and self.loaded.entry.position.number == number else None
        self.loaded = None if loaded else self.loaded
        self.step = loaded.entry.position.step if loaded is not None else 0
        if loaded is not None:
            self.log.lifecycle(self.step, "resumed", after=f"step {self.step} of {stage.steps}")
        else:
            self.log.lifecycle(0, "stage started", steps=stage.steps)
        stage = settled(stage, self.run, self.base, self.folder.path)
        require_same_rows(stage, self.base, self.folder.path)
        self._tell_votes(stage)
        made = prepare(stage, self.run, self.models, self.base, self._context(stage))
        self.begun = True
        self.saver.begun()
        return StageRun(self, number, stage, made, loaded)

    def _concluded(self) -> dict[str, Any]:
        """The summary of a run whose stages are done."""
        self.log.stage = ""
        self.summary["headline"] = headline(self.run, self.summary)
        write_json(self.folder.summary, self.summary)
        self.log.lifecycle(0, "finished", headline=self.summary["headline"])
        return self.summary

    def _mirror(self) -> Mirror | None:
        """What uploads the run's folder, where it has a store. Raises SpecError where there is no such kind of store."""
        where = {stage.name: str(self.folder.stage_model(self.run, stage.name)) for stage in self.run.stages}
        models = {name: os.path.relpath(path, self.folder.path) for name, path in where.items()}
        spec = self.run.checkpoint
        return Mirror(spec.store, self.folder.path, spec.keep, models) if spec.store else None

    def _report(self, what: str, step: int | None = None, **fields: Any) -> None:
        self.log.lifecycle(self.step if step is None else step, what, **fields)

    def _tell_votes(self, stage: Stage) -> None:
        """Note which part of a feedback store a stage learns from: so many votes, or entries of another log of the store's."""
        if stage.pinned and stage.data.source.startswith(GROWING):
            options, form = stage.data.options, stage.data.options.get("form", "pairs")
            what = "reads votes" if form in ("pairs", "completions", "corrections") else f"reads {form}"
            self.log.lifecycle(0, what, events=f"1 to {options.get('until')}", content=options.get("content"))

    def _context(self, stage: Stage) -> StageContext:
        schedule, stopped = self.folder.schedule / stage.name, lambda: self.stop.asked > 0
        return StageContext(self.recorder, self._report, self.bootstrap, schedule, self.folder.path, stopped)

    def finished(self, stage: Stage, progressed: Progressed) -> None:
        """Note a finished stage's results."""
        self.summary["stages"][stage.name] = progressed.state().values
        self.summary["seconds"] = sum(entry["seconds"] for entry in self.summary["stages"].values())
        write_json(self.folder.summary, self.summary)


class StageRun:
    """One stage on its way: logs, evaluates, saves after each step."""

    def __init__(self, session: Session, number: int, stage: Stage, runtime: StageRuntime, loaded: Loaded | None) -> None:
        self.session, self.number, self.stage, self.runtime, self.loaded = session, number, stage, runtime, loaded
        self.progressed = Progressed({}, {}, {})
        self.started = time.perf_counter()
        self.every = stage.evaluation.every if stage.evaluation else 0
        self.score: tuple[int, float | None] = (-1, None)
        """The held-out reward of the weights that were evaluated last, and their step."""
        self.spans = session.recorder.role("learner")
        self.holders = {**runtime.holders, "progress": self.progressed, "random": RandomStates()}
        self.watcher, self.decode, self.blobs = runtime.watcher, runtime.decode, Blobs(session.folder.path / BLOBS)
        self.watcher.restore = self._go_back

    async def execute(self) -> None:
        """From the start or a checkpoint to the stage's saved model."""
        session, start = self.session, self.session.step
        try:
            self._restore()
            if start == 0:
                self._remark([*self.runtime.remarks, *remarks_on_rows(self.runtime.first_rows(LOOKED_AT))])
            if start == 0 and self.runtime.evaluate is not None:
                self.progressed.first = await self._evaluate(0)
            async with alongside(*self.runtime.background()), aclosing(self.runtime.steps(start)) as steps:
                async for step in steps:  # whatever ends one, a signal among them: what it holds open is closed first
                    await self._after(step)
        except SentinelError as error:
            self._tell(error.alarms)
            raise
        finally:
            await self.runtime.close()
        self.progressed.seconds += time.perf_counter() - self.started
        folder = session.folder.stage_model(session.run, self.stage.name)
        session.lease.check()
        with self.spans.span("save"), blame(CheckpointError, f"{folder}: the model cannot be written"):
            self.runtime.save(folder)  # a full disk comes as one of many errors
        session.finished(self.stage, self.progressed)
        session.log.lifecycle(self.stage.steps, "stage finished", seconds=round(self.progressed.seconds, 1))

    def _restore(self) -> None:
        """Take the checkpoint's state, if there is one, and let go of it: its files stay on the disk while it is held."""
        loaded, self.loaded = self.loaded, None
        if loaded is None:
            return
        for name, holder in self.holders.items():
            if name not in loaded.states:
                raise CheckpointError(f'{loaded.entry.path}: holds no state of "{name}"; it belongs to another kind of run')
            holder.load_state(loaded.states[name])

    def _go_back(self, before: int, least: float | None) -> int | None:
        """Load the learner's state of a good checkpoint of this stage; gives its step, or None where there is none."""
        self.session.saver.wait()
        loaded = self.session.store.load_good(self.number, before, least)
        if loaded is None:
            return None
        self.holders["learner"].load_state(loaded.states["learner"])
        return loaded.entry.position.step

    async def _evaluate(self, step: int) -> Metrics:
        assert self.runtime.evaluate is not None
        with self.spans.span("evaluate", step=step):
            metrics, groups = await self.runtime.evaluate()
        self._measured(step, metrics, groups)
        return metrics

    def _measured(self, step: int, metrics: Metrics, groups: Sequence[Group]) -> None:
        self.session.log.metrics(step, metrics)
        if groups:
            self.session.log.samples(step, rows_of(pictured(chosen(groups), self.blobs), self.decode, evaluated=step))
        self._tell(self.watcher.evaluated(step, metrics, by_prompt(groups)))
        self.progressed.last = metrics
        self.score = step, metrics.get("evaluation/reward")
        self.session.saver.rate(self._position(step), self.score[1])

    def _position(self, step: int) -> Position:
        return Position(self.number, self.stage.name, step)

    async def _evaluate_if_due(self, done: int) -> None:
        """Evaluate at the end and in between; what is in between may be measured by another process, and heard later."""
        remote, last = self.runtime.elsewhere, self._is_last(done)
        due = self.runtime.evaluate is not None and (last or (self.every and done % self.every == 0))
        if due and not last and remote is not None:
            await remote.ask(done)
        for answer in await remote.answers(wait=last) if remote is not None else ():
            self._measured(*answer)
        if due and (last or remote is None):
            await self._evaluate(done)

    def _is_last(self, done: int) -> bool:
        return done == self.stage.steps or self.watcher.over

    async def _after(self, step: Step) -> None:
        """After each step: log, evaluate, save."""
        done, total = step.index + 1, self.stage.steps
        self.session.lease.look()
        self.session.step = done
        self.session.log.metrics(done, step.metrics)
        self._acknowledge()
        self._tell(step.alarms)
        if step.index == 0:
            said = remarks_on_behaviour(step) if self.stage.model.path else ()
            self._remark([*remarks_on_samples(step, self.runtime.bounds), *said])
        self.progressed.metrics = step.metrics
        if step.groups and due(done, total):
            seen = pictured(step.seen or chosen(step.groups), self.blobs)
            self.session.log.samples(done, rows_of(seen, self.decode))
        await self._evaluate_if_due(done)
        every, asked = (
            self.session.run.checkpoint.every,
            self.session.stop.asked,
        )  # once: a signal between save and stop comes later
        if asked or self._is_last(done) or (every and done % every == 0):
            for answer in await self.runtime.elsewhere.settle(done) if self.runtime.elsewhere is not None else ():
                self._measured(*answer)
            self._save(done)
            if asked or self._is_last(done):
                self.session.saver.wait()
            self._acknowledge()
        if asked and not self._is_last(done):
            raise Interrupted(f"stopped after step {done} of {total} of stage {self.stage.name}; everything is saved")

    def _remark(self, remarks: Iterable[str]) -> None:
        for remark in remarks:
            self.session.log.lifecycle(self.session.step, "remark", reason=remark)

    def _tell(self, alarms: Sequence[Alarm]) -> None:
        for alarm in alarms:
            self.session.log.sentinel(alarm)

    def _acknowledge(self) -> None:
        """Let go of the batches that a checkpoint holds now."""
        durable = self.session.saver.look()
        if durable is not None:
            self.runtime.acknowledge(durable.step)

    def _save(self, step: int) -> None:
        spent = self.progressed.seconds
        self.progressed.seconds = spent + time.perf_counter() - self.started
        score = self.score[1] if self.score[0] == step else None
        states: Mapping[str, State] = {name: holder.state() for name, holder in self.holders.items()}
        with self.spans.span("save", step=step):
            self.session.saver.save(self._position(step), states, score=score, good=self.watcher.healthy(step))
        self.session.recorder.flush()
        self.progressed.seconds = spent


def open_evaluation(loaded: Loaded | None) -> int | None:
    """The step whose evaluation was not answered when a checkpoint was written, and is asked again."""
    known = loaded.states.get("evaluation") if loaded is not None else None
    return int(known.values["open"]) if known is not None else None


def headline(run: Run, summary: Mapping[str, Any]) -> str:
    """The closing line of a run: its template over the last stage's first and last evaluation and the seconds spent."""
    last = summary["stages"][run.stages[-1].name]
    values = {"first": last["first"], "last": last["last"], "seconds": summary["seconds"], "stages": summary["stages"]}
    if run.headline:
        try:
            return run.headline.format(**values)
        except (LookupError, ValueError, TypeError, AttributeError) as error:
            return f"done in {summary['seconds']:.0f} s (headline {run.headline!r} does not fit: {error!r})"
    first, told = last["first"], []
    for name, value in last["last"].items():
        short = name.removeprefix("evaluation/")
        repeats = short != "reward" and value == last["last"].get("evaluation/reward")
        aside = short in ("length", "failed") or short.startswith("distinct_")
        if name in first and not aside and not repeats:
            told.append(f"{short} {first[name]:.4g} → {value:.4g}")
    return f"{'held-out ' if told else ''}{', '.join(told) or 'done'} in {summary['seconds']:.0f} s"

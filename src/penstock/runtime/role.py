"""A process of a run. It reads who it is from its standard input, one line of JSON, and ends when that input ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.core.errors import ConnectionLost, PenstockError, RanksLost, RoleError
from penstock.core.types import Group
from penstock.runtime.bootstrap import RANKS_LOST, Bootstrap
from penstock.runtime.launching import IN_A_ROLE
from penstock.runtime.local import run_roles

if TYPE_CHECKING:
    from penstock.runtime.engines import Opened

PARTING = 30.0
"""Seconds in which a process may end in order once its supervisor is gone."""
CHECKED = 8
"""Every so manieth version's weights are compared with the learner's once they are in use."""
STANDARD_INPUT = 0
SHOWN = 8
"""Groups of an evaluation that the learner is given to look at."""
GROUPS = 16
"""Groups that a reward worker scores at a time."""


def main() -> int:
    """Take up the role; gives the exit code."""
    os.environ[IN_A_ROLE] = "1"
    bootstrap = Bootstrap.read(_first_line())
    threading.Thread(target=_end_with_parent, args=[bootstrap.die_with_parent], name="parent", daemon=True).start()
    if bootstrap.role == "learner":
        return learner(bootstrap)
    try:
        asyncio.run(_until_told(ROLES[bootstrap.role](bootstrap)))
    except ConnectionLost as error:  # the run is over, or the hub has let go of us
        print(error, file=sys.stderr, flush=True)
        return 0
    except PenstockError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return 2
    return 0


def _first_line() -> bytes:
    """What the supervisor says first. Read without Python's buffers, whose lock a thread must not hold at the exit."""
    line = b""
    while not line.endswith(b"\n"):
        said = os.read(STANDARD_INPUT, 1)
        if not said:
            raise RoleError("the standard input ended before it said what to do; roles are started by their run")
        line += said
    return line


def _end_with_parent(at_once: bool) -> None:
    """The supervisor holds the other end of our input: when it ends, it is gone or wants us to go.

    ``at_once``: it is gone, and a successor may have started.
    """
    while os.read(STANDARD_INPUT, 4096):
        pass
    if at_once:
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(PARTING)
    os.killpg(0, signal.SIGKILL) if os.getpgrp() == os.getpid() else os._exit(1)


async def _until_told(work: Coroutine[Any, Any, None]) -> None:
    """Work until SIGTERM, then close everything in order."""
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


def learner(bootstrap: Bootstrap) -> int:
    """Carry the run out, with the other roles in processes of their own; gives the exit code.

    Events, and how the run ended, go to the process that launched it.
    """
    from penstock.runtime.listeners import EventSender
    from penstock.runtime.session import Session
    from penstock.runtime.stopping import Interrupted, StopSignal

    if bootstrap.rank_threads:
        from penstock.train.fleet import start_ranks_by
        from penstock.train.rank_elsewhere import Elsewhere
        from penstock.train.rank_meeting import host_of_this_node

        start_ranks_by(Elsewhere(bootstrap.folder, host_of_this_node(), bootstrap.token, bootstrap.rank_threads))
    sender = EventSender(bootstrap)
    with StopSignal() as stop:
        session = Session(bootstrap.run, bootstrap.folder, [sender], bootstrap.base, stop=stop, bootstrap=bootstrap)
        try:
            session.execute(bootstrap.resuming)
        except RanksLost as lost:
            print(f"penstock: {lost}", file=sys.stderr, flush=True)
            return RANKS_LOST
        except (Interrupted, PenstockError) as error:
            sender.close(error)
            return 130 if isinstance(error, Interrupted) else 2
        sender.close()
    return 0


async def _once_loaded(client: Any, holding: Any, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Begin to draw with the first weights: a generator that is refused them is not ready."""
    await holding.first()
    await client.call("ready_now", deadline=30.0)
    await work()


async def generator(bootstrap: Bootstrap) -> None:
    """Draw groups with an engine of its own, whose weights follow the learner's."""
    from penstock.runtime.engine_choice import sends_adapters
    from penstock.runtime.engines import opened
    from penstock.train.device import set_up

    run, stage = bootstrap.run, bootstrap.online
    device = set_up(run.device, bootstrap.threads)
    start, weights = bootstrap.stage_start(stage.name), bootstrap.weights
    shared = weights.with_name(f"{weights.name}-{bootstrap.name}")
    alone = sends_adapters(run, stage)
    ways: Any = {"shared": shared, "adapters": alone}
    async with opened(run.roles.engine, start, device, slots=stage.slots, **ways) as found:
        await draw(bootstrap, found)


async def draw(bootstrap: Bootstrap, found: Opened) -> None:
    """Draw groups for ever, with an engine that is open."""
    from penstock.core.spans import Spans
    from penstock.core.tape import Tape
    from penstock.data.sampler import prompts
    from penstock.loops.rollout import Rollout, rollout
    from penstock.runtime.build import environments, seed_of
    from penstock.runtime.remote import Holding, RemoteDrawing, joined
    from penstock.weights.channels import open_subscriber
    from penstock.weights.follow import Border, follow

    run, stage = bootstrap.run, bootstrap.online
    folder, name = bootstrap.folder, bootstrap.name
    engine = found.engine
    engine.spans = Spans(folder / "spans" / f"{name}.jsonl", name)
    engine.tape = Tape.next_take(folder / "schedule" / stage.name, name)
    algorithm: Any = stage.algorithm
    seed = seed_of(run.seed, stage.name)
    roll = Rollout(
        engine,
        environments(found.text, stage.environment, bootstrap.base),
        Unscored(),
        replace(stage.sampling, seed=seed),
        stage.samples,
        "greedy" in algorithm.needs,
        engine.tape,
    )
    source = prompts(stage.data, bootstrap.base, seed)
    subscriber = open_subscriber(run.roles.channel, bootstrap.weights, name)
    holding = Holding(engine)
    border = Border()

    def counts() -> dict[str, float]:
        stats = engine.stats()
        return {"generated_tokens": stats.generated_tokens, "busy_seconds": stats.busy_seconds}

    async with joined(bootstrap, name, "generator", counts) as client:
        drawing = RemoteDrawing(client)
        notes = Notes(client, holding, found)
        groups = -(-(stage.max_lag + 1) * stage.batch // run.roles.generators) + stage.oversample
        drains = stage.kv == "drain"
        await run_roles(
            _once_loaded(client, holding, lambda: rollout(drawing, source, roll, holding, groups, border.group)),
            follow(engine, drawing.newest, subscriber, stage.kv, notes, border.update if drains else contextlib.nullcontext),
            notes.send(),
            client.until_lost(),
        )


class Unscored:
    """The reward of a generator whose groups are scored elsewhere."""

    async def __call__(self, group: Group) -> Group:
        return group

    async def close(self) -> None:
        return None


class Notes:
    """What becomes of weight updates: wakes those who wait for a version, and tells the hub of refusals."""

    def __init__(self, client: Any, holding: Any, found: Opened) -> None:
        self.client, self.holding, self.engine, self.sums = client, holding, found.engine, found.sums
        self.told: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue(maxsize=1000)

    def __call__(self, what: str, **fields: Any) -> None:
        with contextlib.suppress(asyncio.QueueFull):  # the newest word is about the newest version; nobody waits for an old one
            self.told.put_nowait((what, fields))

    async def send(self) -> None:
        while True:
            what, fields = await self.told.get()
            self.holding.loaded(fields.get("reason", ""))
            if what != "weights loaded":
                await self.client.call("tell_note", what=what, fields=fields)
            elif fields["version"] % CHECKED == 0:
                await self._tell_sums(fields["version"], fields["incarnation"])

    async def _tell_sums(self, version: int, incarnation: int) -> None:
        """Checksums of the weights that are in use, for the learner to compare: of what was loaded, not of what came."""
        order = (incarnation, version)
        if order == (self.engine.incarnation, self.engine.version):
            sums = await self.sums()
            if sums and order == (self.engine.incarnation, self.engine.version):  # or the next came into them meanwhile
                await self.client.call("held", version=version, incarnation=incarnation, sums=sums)


async def reward(bootstrap: Bootstrap) -> None:
    """Score groups as they come."""
    from penstock.core.spans import Spans
    from penstock.models.files import load_text
    from penstock.runtime.build import Models, StageRewards
    from penstock.runtime.folder import RunFolder
    from penstock.runtime.remote import RemoteColumns, joined
    from penstock.stream.columns import REWARD, changes
    from penstock.stream.rules import Ticket
    from penstock.train.device import set_up

    run, stage = bootstrap.run, bootstrap.online
    folder, name = RunFolder(bootstrap.folder), bootstrap.name
    device = set_up(run.device, bootstrap.threads)
    text = load_text(str(bootstrap.stage_start(stage.name)))
    models = Models(lambda earlier: folder.stage_model(run, earlier), device, run.seed)
    rewards = StageRewards(stage.rewards, models, text, bootstrap.base)
    rewards.spans = Spans(folder.spans / f"{name}.jsonl", name)
    async with joined(bootstrap, name, "reward", dict) as client:
        columns = RemoteColumns(client)
        await client.call("ready_now", deadline=30.0)

        async def one(ticket: Ticket, group: Group) -> None:
            await columns.write(ticket, REWARD.name, changes(group, await rewards(group)))

        try:
            await run_roles(each(columns, REWARD.name, one), client.until_lost())
        finally:
            await rewards.close()


async def each(columns: Any, stage: str, work: Callable[..., Coroutine[Any, Any, None]]) -> None:
    """Take groups that lack a column, at most :data:`GROUPS` at a time, and work on them side by side, for ever."""
    running: set[asyncio.Task[None]] = set()
    taking: asyncio.Task[Any] | None = None
    try:
        while True:
            if taking is None and len(running) < GROUPS:
                taking = asyncio.create_task(columns.take(stage, GROUPS - len(running)))
            await asyncio.wait({*running, *([taking] if taking else [])}, return_when=asyncio.FIRST_COMPLETED)
            for task in [task for task in running if task.done()]:
                task.result()
                running.discard(task)
            if taking is not None and taking.done():
                running |= {asyncio.create_task(work(ticket, group)) for ticket, group in taking.result()}
                taking = None
    finally:
        for task in (*running, *([taking] if taking else [])):
            task.cancel()


async def reference(bootstrap: Bootstrap) -> None:
    """Compute the log-probs of the reference model for groups as they come."""
    from penstock.core.spans import Spans
    from penstock.loops.learn import reference_column
    from penstock.runtime.build import Models, corpus_of
    from penstock.runtime.folder import RunFolder
    from penstock.runtime.remote import RemoteColumns, joined
    from penstock.stream.columns import REFERENCE
    from penstock.stream.rules import Ticket
    from penstock.train.device import set_up
    from penstock.train.learner import Scoring

    run, stage = bootstrap.run, bootstrap.online
    folder, name, base = RunFolder(bootstrap.folder), bootstrap.name, bootstrap.base
    device = set_up(run.device, bootstrap.threads)
    models = Models(lambda earlier: folder.stage_model(run, earlier), device, run.seed)
    model = models.load(stage.model, corpus_of(stage.data, base))
    scorer = Scoring(models.reference(stage, model, stage.sampling.temperature))
    spans = Spans(folder.spans / f"{name}.jsonl", name)
    async with joined(bootstrap, name, "reference", dict) as client:
        columns = RemoteColumns(client)
        await client.call("ready_now", deadline=30.0)

        async def one(ticket: Ticket, group: Group) -> None:
            with spans.overlapping("label"):
                found = await asyncio.to_thread(reference_column, scorer, group)
            await columns.write(ticket, REFERENCE.name, found)

        await run_roles(each(columns, REFERENCE.name, one), client.until_lost())


async def evaluator(bootstrap: Bootstrap) -> None:
    """Measure the versions that the learner asks for, on the held-out prompts of the stage."""
    from penstock.core.spans import Spans
    from penstock.engine.encoder_decoder import embedded_generator
    from penstock.loops.rollout import Rollout
    from penstock.models.files import load_model
    from penstock.runtime.build import Models, StageRewards, environments, seed_of
    from penstock.runtime.folder import RunFolder
    from penstock.runtime.remote import NEVER, joined
    from penstock.runtime.stages import measured
    from penstock.runtime.supervise import exam_folder
    from penstock.train.device import set_up
    from penstock.weights.channels import open_subscriber

    run, stage = bootstrap.run, bootstrap.online
    folder, name, base = RunFolder(bootstrap.folder), bootstrap.name, bootstrap.base
    device = set_up(run.device, bootstrap.threads)
    model = load_model(str(bootstrap.stage_start(stage.name))).to(device)
    models = Models(lambda earlier: folder.stage_model(run, earlier), device, run.seed)
    rewards = StageRewards(stage.rewards, models, model.text, base)
    sampling = replace(stage.sampling, seed=seed_of(run.seed, stage.name))
    engine = embedded_generator(model, slots=stage.slots, version=-1)
    roll = Rollout(engine, environments(model.text, stage.environment, base), rewards, sampling, stage.samples)
    measure, closing = measured(stage.evaluation, roll, rewards, models, model, base)
    assert measure is not None
    subscriber = open_subscriber(run.roles.channel, exam_folder(bootstrap.weights), name)
    spans = Spans(folder.spans / f"{name}.jsonl", name)
    async with joined(bootstrap, name, "evaluator", dict) as client:
        await client.call("ready_now", deadline=30.0)

        async def work() -> None:
            while True:
                exam = await client.call("next_exam", deadline=NEVER)
                with spans.span("evaluate", step=exam["step"]):
                    update = await asyncio.to_thread(subscriber.open, exam["manifest"])
                    engine.version = -1  # a learner that was started again may ask for an older version
                    await engine.load(update)
                    metrics, groups = await measure()
                answer = {"step": exam["step"], "metrics": metrics, "groups": list(groups[:SHOWN])}
                await client.call("answer", deadline=60.0, **answer)

        try:
            await run_roles(work(), client.until_lost())
        finally:
            for made in closing:
                await made.close()


async def rank(bootstrap: Bootstrap) -> None:
    """Keep one rank of the learner on a node of its own."""
    from penstock.runtime.rank_role import rank as keep

    await keep(bootstrap)


ROLES: Mapping[str, Callable[[Bootstrap], Coroutine[Any, Any, None]]] = {
    "generator": generator,
    "reward": reward,
    "reference": reference,
    "evaluator": evaluator,
    "rank": rank,
}

if __name__ == "__main__":
    sys.exit(main())

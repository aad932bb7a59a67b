"""A run whose roles are processes: the supervisor's side. No torch in here; the hub and the watch over the others."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import os
import secrets
import shutil
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from penstock.config.roles import columns, most_ranks, ranks_apart, roles
from penstock.config.run import Online, Run
from penstock.core import errors
from penstock.core.algorithm import FromSamples
from penstock.core.errors import RoleError, SpecError
from penstock.data.blobs import BLOBS, Blobs
from penstock.runtime.blobs import BlobVerbs
from penstock.runtime.bootstrap import RANKS_LOST, Bootstrap
from penstock.runtime.folder import RunFolder
from penstock.runtime.hub import Hub
from penstock.runtime.listeners import EventVerbs, Listener
from penstock.runtime.stopping import Interrupted, StopSignal
from penstock.runtime.supervisor import COMMAND, FAILED_STARTS, Child, Place, Role, Supervisor, ending
from penstock.stream.enrichment import EnrichmentStep
from penstock.stream.rules import Rules
from penstock.stream.verbs import handlers
from penstock.train.rendezvous import Rendezvous
from penstock.weights.folder import shared_folder

PATIENCE = 120.0
"""Seconds in which the learner may end by itself once another role cannot be kept alive."""
NOTICING = 20.0
"""Seconds in which the learner may notice by itself that one of its ranks is gone."""


def rules_of(stage: Any, written: Sequence[str] = ()) -> Rules:
    """What the stream of an ``Online`` or ``Control`` stage enforces; ``written``: columns that other processes write."""
    algorithm: FromSamples = stage.algorithm
    return Rules(
        stage.batch,
        stage.max_lag,
        stage.on_stale,
        stage.batch_selector,
        stage.oversample,
        algorithm.has_signal if stage.dynamic_sampling else None,
        stage.dynamic_sampling,
        stage.max_uses,
        tuple(map(EnrichmentStep, written)),
    )


def weights_folder(run: Run, folder: Path) -> Path:
    """Where weights travel through: memory, or the run's own folder, which other machines see as well."""
    if run.roles.channel == "disk" or (run.runtime == "ray" and run.roles.channel != "shared memory"):
        return folder / "weights"
    return shared_folder(hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16])


def evaluation_folder(weights: Path) -> Path:
    """Where weights travel through to the evaluator; apart from those of the generators, because they must stay longer."""
    return weights.with_name(f"{weights.name}-evaluation")


def place_of(run: Run) -> Place:
    """Where the processes of a run are started."""
    if run.runtime == "ray":
        from penstock.runtime.ray import Cluster

        return Cluster(run.roles.placement.bundles(run))
    return Place()


def threads_of(run: Run, name: str = "learner") -> int:
    """CPU threads of a process; in a cluster, as many as it takes cores."""
    if run.runtime == "ray":
        return run.threads or max(1, int(run.roles.placement.bundles(run).find(name)[1].cpus))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return run.threads or max(1, cores // (1 + max(run.roles.generators, len(roles()["actor"].names(run)))))


class Supervised:
    """Carries a run out in processes. ``command`` starts one; the rest is as for a
    :class:`penstock.runtime.session.Session`."""

    def __init__(
        self,
        run: Run,
        folder: Path,
        listeners: Sequence[Listener],
        base: Path,
        *,
        stop: StopSignal,
        command: tuple[str, ...] = COMMAND,
    ) -> None:
        self.run, self.folder, self.stop = run, RunFolder(folder), stop
        self.resuming, self.base, self.command = False, base, command
        self.token = secrets.token_hex(32)
        self.place = place_of(run)
        events = EventVerbs(listeners, self._outcome)
        blobs = BlobVerbs(Blobs(folder / BLOBS), lambda: self.hub.needed_blobs())
        further = handlers(EventVerbs, lambda peer: events) | handlers(BlobVerbs, lambda peer: blobs)
        self.hub = Hub(self._rules, self.token, self._open, self._close, further=further)
        self.address = ""
        self.error: Exception | None = None
        """What ended the learner, in its own words."""
        self._ranks = ranks_apart(run) and most_ranks(run) > 1
        """Whether the learner has ranks on other nodes."""
        self.learner: Child | None = None

    def execute(self, resume: bool) -> dict[str, Any]:
        """From the first process to the last, to the run's end; gives its summary. All are gone when this returns.

        Raises:
            RoleError: the learner died again and again without getting on.
            SpecError: the generators' engine cannot be started.
            PenstockError: what ended the learner.
            Interrupted: ``stop`` was asked to.
        """
        self.run.roles.engine.check(self.run.roles.generators)
        self.resuming = resume
        asyncio.run(self._execute())
        return self.folder.read_summary()

    async def _execute(self) -> None:
        try:
            await self.place.open(self.hub.note)
            code = await self._attend()
        finally:
            await self.place.close()
        if self.error is not None:
            raise self.error
        if code:
            raise RoleError(f"the learner ended with exit code {code}; {self.folder.way_on}")

    async def _attend(self) -> int:
        self.address = await self.hub.start(self.place.host)
        self.supervisor = Supervisor(self._note, self.hub.presence, self._spawn, self._reached)
        self.supervisor.failed.add_done_callback(lambda failed: self.hub.fail(failed.exception()))
        loop = asyncio.get_running_loop()
        self.stop.on_ask = functools.partial(loop.call_soon_threadsafe, self._ask)
        for name in roles()["rank"].names(self.run):
            self.supervisor.start(self._role("rank", name))
        try:
            return await self._keep_learner()
        finally:
            await self.supervisor.stop()
            await self.hub.stop()
            self.stop.on_ask = None
            weights = weights_folder(self.run, self.folder.path)
            for folder in (weights, evaluation_folder(weights)):
                shutil.rmtree(folder, ignore_errors=True)

    def _outcome(self, kind: str, message: str) -> None:
        """How the learner ended: the kind of its error and what it says; none if ``kind`` is empty."""
        known = {"Interrupted": Interrupted, "": None}.get(kind, vars(errors).get(kind, RoleError))
        self.error = known(message) if known is not None else None

    def _rules(self, name: str) -> Rules:
        return rules_of(self._stage(name), columns(self.run, self._stage(name)))

    def _stage(self, name: str) -> Online:
        return cast(Online, next(stage for stage in self.run.stages if stage.name == name))

    def _ask(self) -> None:
        """Ctrl-C reached this process alone: the learner finishes its step and saves; the others follow.

        The second one ends the learner at once, as soon as it listens; the third one whatever it does.
        """
        if self.learner is not None and self.stop.asked > 2:
            self.learner.signal(signal.SIGKILL)
        elif self.learner is not None:
            self.learner.signal(signal.SIGTERM, alone=True)

    async def _keep_learner(self) -> int:
        """Start the learner until it ends in order; one that was killed goes on from its last checkpoint."""
        fruitless, before = 0, (-1, "")
        while True:
            learner = self._role("learner", "learner", resuming=self.resuming)
            self.learner = await self._spawn(replace(learner, log=None))
            if self.stop.asked:  # while there was none
                self.learner.signal(signal.SIGTERM, alone=True)
            try:
                code = await self._ended(self.learner)
            except (asyncio.CancelledError, RoleError):
                await self.learner.stop()
                raise
            self.learner.signal(signal.SIGKILL)  # whatever it had started
            if code >= 0 and code != RANKS_LOST:
                return code
            if self.stop.asked:  # it ended before it could say so itself
                raise Interrupted(f"stopped; {self.folder.way_on}")
            self.hub.note("role restarted", role="learner", code=code, words="")
            reached = self._reached()
            fruitless, before = (0 if reached > before else fruitless + 1), reached
            if fruitless >= FAILED_STARTS:
                raise RoleError(f"the learner was {ending(code)} {FAILED_STARTS + 1} times without finishing a step in between")
            self.resuming = self.resuming or self.folder.spec.exists()

    async def _ended(self, learner: Child) -> int:
        """The learner's exit code. Raises what keeps another role from living where the learner does not end of that itself."""
        ended = asyncio.ensure_future(learner.wait())
        try:
            ends: set[asyncio.Future[Any]] = {ended, self.supervisor.failed}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({ended}, timeout=PATIENCE)
            if not ended.done():
                self.supervisor.failed.result()
            return ended.result()
        finally:
            ended.cancel()

    def _note(self, what: str, **fields: Any) -> None:
        self.hub.note(what, **fields)
        if what == "role restarted" and fields["role"].startswith("rank-") and self.learner is not None:
            asyncio.get_running_loop().call_later(NOTICING, self._end_without_rank, self.learner)

    def _end_without_rank(self, learner: Child) -> None:
        """A learner at work does not survive its rank. It may not notice where a node has vanished, so it is ended."""
        if self.learner is learner and Rendezvous(self.folder.path / "ranks").working.exists():
            learner.signal(signal.SIGKILL)

    def _reached(self) -> tuple[int, str]:
        """How far the run is: online steps, and the newest checkpoint, which offline stages have as well."""
        saved = (folder.name for folder in self.folder.checkpoints.glob("stage-*"))
        return self.hub.reached, max(saved, default="")

    # ---- the roles of a stage

    async def _spawn(self, role: Role) -> Child:
        """Start a role; one before it of that name, wherever it still lives, is shut out.

        Raises:
            SpecError: the learner's weights cannot reach it there.
        """
        await self.hub.server.drop(role.name)
        child = await self.place.spawn(role)
        here = self.learner.address if self.learner else child.address
        reads = roles()[role.bootstrap["role"]].reads_weights
        if reads and child.address not in ("", here) and self.run.roles.channel == "shared memory":
            await child.stop()
            raise SpecError(
                f"{role.name} is on {child.address} and the learner on {here}, where shared memory does not reach; set "
                '--roles.channel disk or --roles.channel "process group"'
            )
        return child

    async def _open(self, name: str) -> None:
        for role in self._roles(name):
            self.supervisor.start(role)

    async def _close(self, name: str) -> None:
        self.supervisor.release(role.name for role in self._roles(name))

    def _roles(self, stage: str) -> Iterator[Role]:
        for kind in roles().values():
            yield from (self._role(kind.name, name, stage=stage) for name in kind.names(self.run, self._stage(stage)))

    def _role(self, kind: str, name: str, **more: Any) -> Role:
        """A process, with what it must know."""
        path, threads = self.folder.path, threads_of(self.run, name)
        bootstrap = Bootstrap(
            role=kind,
            name=name,
            run=self.run,
            folder=path.resolve() if self.run.runtime == "ray" else path,
            base=self.base,
            hub=self.address,
            token=self.token,
            weights=weights_folder(self.run, path),
            threads=threads,
            rank_threads=threads_of(self.run, "rank-1") if self._ranks else 0,
            **more,
        ).plain()
        command = self.run.roles.engine.command(self.command) if kind == "generator" else self.command
        return Role(name, bootstrap, command, path / "logs" / f"{name}.log", {"OMP_NUM_THREADS": str(threads)})

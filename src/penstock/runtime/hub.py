"""What the processes of a run have in common, served by the supervisor: stream, weight registry, evaluations and notes.

Roles come and go; the hub stays. What a role worked on when its connection ended goes back into the stream. The verbs that a
role may call are methods of :class:`RoleVerbs`, :class:`LearnerVerbs`, and of what a stage holds: its stream's workers, its
weight registry, its evaluations.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeVar

from penstock.core.errors import StreamError
from penstock.core.types import Version
from penstock.loops.evaluation_queue import Answer, EvaluationQueue
from penstock.net.rpc import Handler, Peer, Server
from penstock.runtime.local import alongside
from penstock.runtime.supervisor import Presence
from penstock.stream.rules import Rules
from penstock.stream.stream import DEADLINE, Stream, Worker
from penstock.stream.verbs import handlers, verb
from penstock.stream.weight_registry import WeightRegistry

NOTES = 1000
"""Notes that wait for the learner to write them down; the oldest are given up first."""

Result = TypeVar("Result")
OpenStage = Callable[[str], Awaitable[None]]
Notes = list[dict[str, Any]]


class Stage:
    """What the roles of one stage share. A role that is late to leave works on with its own stage's, and disturbs no other."""

    def __init__(
        self, name: str, rules: Rules, deadline: float, kept: Mapping[str, Any], work: Callable[[], float] = lambda: 0.0
    ) -> None:
        self.name = name
        self.stream = Stream(rules, deadline, kept=kept, work=work)
        self.registry = WeightRegistry(deadline)
        self.evaluations = EvaluationQueue(deadline, work)


class Hub:
    """Serves one run. ``rules`` gives what the stream of a stage enforces, ``open_stage`` and ``close_stage`` start and stop
    the roles that a stage needs; all handlers run in one event loop, so none sees another's half-done work.
    """

    def __init__(
        self,
        rules: Callable[[str], Rules],
        token: str,
        open_stage: OpenStage,
        close_stage: OpenStage,
        deadline: float = DEADLINE,
        further: Mapping[str, Handler] | None = None,
    ) -> None:
        """``further``: verbs of the hub's owner."""
        self.rules, self.deadline = rules, deadline
        self.open_stage, self.close_stage = open_stage, close_stage
        served = (
            handlers(RoleVerbs, lambda peer: RoleVerbs(self, peer))
            | handlers(LearnerVerbs, self._learner_verbs)
            | handlers(Worker, lambda peer: self._member(peer)[1])
            | handlers(WeightRegistry, self._followed)
            | handlers(EvaluationQueue, self._evaluated)
            | dict(further or {})
        )
        self.server = Server(served, token, self._left, lambda line: self.note("refused", reason=line), "hub")
        self.stage: Stage | None = None
        self.learner: int | None = None
        """Who began the stage, by its id; nobody else may lease, announce or end it."""
        self.learner_epoch = 0
        self.reached = 0
        """Steps of the learner that were published, over all stages."""
        self.presence: defaultdict[str, Presence] = defaultdict(Presence)
        """What is known of the processes of each role."""
        self.counts: dict[str, dict[str, float]] = {}
        """The latest counts of each role."""
        self.machines: dict[str, float] = {}
        """What roles have seen of their machines since the learner asked last."""
        self.held: deque[dict[str, Any]] = deque(maxlen=NOTES)
        """Checksums of the weights that generators hold, until the learner compares them with its own."""
        self.followers: dict[int, str] = {}
        """The names of peers that take weights, by their ids."""
        self.departure = asyncio.Event()
        """Set, and replaced, as one of them leaves."""
        self.notes: deque[dict[str, Any]] = deque(maxlen=NOTES)
        self.noted = asyncio.Event()
        self.sent: Notes = []
        """Notes that the learner was sent, until it asks for more: they come again if it died before."""
        self.members: dict[int, tuple[Stage, Worker]] = {}
        """By id: the stage that a peer works for, and what it is there."""
        self._broken = asyncio.Event()
        self._error: BaseException | None = None

    async def start(self, host: str = "127.0.0.1") -> str:
        """Listen; gives the address. By default for this machine only; peers prove that they know the token in any case."""
        return await self.server.start(host)

    async def stop(self) -> None:
        await self.server.stop()

    def work(self) -> float:
        """A count that grows while a role generates."""
        return sum(sum(counts.values()) for counts in self.counts.values())

    def needed_blobs(self) -> set[str]:
        """Hashes of the blobs that groups in the stream and leases refer to."""
        groups = self.stage.stream.gate.groups() if self.stage is not None else ()
        return {blob.hash for group in groups for blob in group.blobs}

    def fail(self, error: BaseException | None) -> None:
        """The run cannot go on: the learner hears of it when it next waits for others."""
        if error is not None:
            self._error = error
            self._broken.set()

    async def unless_broken(self, work: Coroutine[Any, Any, Result]) -> Result:
        """What ``work`` gives, unless the run breaks before."""
        async with alongside(self._until_broken()):
            return await work

    async def _until_broken(self) -> None:
        await self._broken.wait()
        assert self._error is not None
        raise self._error

    # ---- notes

    def note(self, what: str, **fields: Any) -> None:
        """Something the run's log should hold."""
        self.notes.append({"what": what, **fields})
        self.noted.set()

    def unsent_notes(self) -> Notes:
        """The notes that the learner has not been sent; they come again if it dies before it asks for more."""
        self.sent = list(self.notes)
        self.notes.clear()
        return self.sent

    # ---- peers

    def require(self, allowed: bool, refusal: str) -> None:
        """Raises StreamError where a peer asked for what it may not have."""
        if not allowed:
            self.note("refused", reason=refusal)
            raise StreamError(refusal)

    def _member(self, peer: Peer) -> tuple[Stage, Worker]:
        self.require(peer.id in self.members, f"{peer} has joined no stage, so it has no part in a stream")
        return self.members[peer.id]

    def _learner_verbs(self, peer: Peer) -> LearnerVerbs:
        self.require(peer.id == self.learner, f"{peer} asked for what only the learner that began the stage may")
        assert self.stage is not None, "it has begun one"
        return LearnerVerbs(self, self.stage)

    def _followed(self, peer: Peer) -> WeightRegistry:
        stage, _ = self._member(peer)
        self.followers[peer.id] = peer.name
        return stage.registry

    def _evaluated(self, peer: Peer) -> EvaluationQueue:
        self.require(peer.role == "evaluator", f"{peer} would evaluate, which only an evaluator may")
        return self._member(peer)[0].evaluations

    async def _left(self, peer: Peer) -> None:
        self.presence[peer.name].left = asyncio.get_running_loop().time()
        self.followers.pop(peer.id, None)
        self.departure.set()
        self.departure = asyncio.Event()
        if peer.id == self.learner:
            self.learner = None
            self.notes.extendleft(reversed(self.sent))
            self.sent = []
            if self.stage is not None:
                await self.stage.evaluations.cancel()
        if peer.id not in self.members:
            return
        stage, worker = self.members.pop(peer.id)
        await worker.leave()
        if peer.role == "evaluator":
            try:
                stage.evaluations.evaluator_left()
            except StreamError as error:
                self.fail(error)


class RoleVerbs:
    """What every role tells the hub."""

    def __init__(self, hub: Hub, peer: Peer) -> None:
        self.hub, self.peer = hub, peer

    @verb()
    async def alive(self, counts: Mapping[str, float], machine: Mapping[str, float] | None = None) -> None:
        """A sign of life, what the role has counted so far, and what it has newly seen of its machine."""
        known, now = self.hub.presence[self.peer.name], asyncio.get_running_loop().time()
        if known.peer != self.peer.id:  # its first sign of life
            known.peer, known.connected = self.peer.id, now
        else:
            known.gap = max(known.gap, now - known.seen)
        known.seen = now
        self.hub.counts[self.peer.name] = dict(counts)
        self.hub.machines |= machine or {}

    @verb()
    async def join(self, stage: str) -> None:
        """Work for a stage from now on. Raises StreamError where it is not the one under way."""
        hub, peer = self.hub, self.peer
        if hub.stage is None or hub.stage.name != stage:
            raise StreamError(f"{peer} is for the stage {stage}, which is not under way")
        hub.members[peer.id] = hub.stage, Worker(hub.stage.stream, f"{peer.name}#{peer.id}")

    @verb()
    async def ready(self) -> None:
        """The role can work."""
        self.hub.presence[self.peer.name].ready.set()

    @verb()
    async def note(self, what: str, fields: Mapping[str, Any]) -> None:
        """Something the run's log should hold."""
        self.hub.note(what, role=self.peer.name, **fields)

    @verb()
    async def holds(self, version: Version, learner_epoch: int, sums: Sequence[str]) -> None:
        """Checksums of the weights that are in use."""
        self.hub.held.append({"role": self.peer.name, "version": version, "learner_epoch": learner_epoch, "sums": list(sums)})

    @verb(waits=True)
    async def begin(self, stage: str, ledger: Mapping[str, Any]) -> int:
        """A stage begins, or goes on under a learner that was started again; gives how many learners there were.

        Raises:
            StreamError: the role is no learner, or there is another one.
        """
        hub, peer = self.hub, self.peer
        hub.require(
            peer.role == "learner" and hub.learner is None,
            f"{peer} asked to begin a stage, which only a learner may, and only while there is no other",
        )
        hub.learner = peer.id
        hub.learner_epoch += 1
        if hub.stage is None or hub.stage.name != stage:
            hub.stage = Stage(stage, hub.rules(stage), hub.deadline, ledger, hub.work)
        else:
            stream = hub.stage.stream
            await stream.now(lambda: stream.gate.restore(ledger))
        await hub.open_stage(stage)
        return hub.learner_epoch


class LearnerVerbs:
    """What the learner of a stage asks of the hub."""

    def __init__(self, hub: Hub, stage: Stage) -> None:
        self.hub, self.stage = hub, stage

    @verb(waits=True, many=True)
    async def lease(self, version: Version) -> list[Any]:
        """The next batch for weights of ``version``: the lease without its groups, then these, new ones before reused ones.

        Waits for it. Raises what keeps the run from going on.
        """
        lease = await self.hub.unless_broken(self.stage.stream.lease(version))
        return [replace(lease, groups=(), reused=()), *lease.groups, *lease.reused]

    @verb()
    async def release(self, number: int, saved: Version) -> None:
        """The weights of a lease are published; ``saved``: the version of the newest checkpoint."""
        await self.stage.stream.release(number, saved)
        self.hub.reached += 1

    @verb()
    async def status(self) -> dict[str, Any]:
        """``counts`` of roles, ``stats`` of the stream; what generators ``held`` and what was seen of ``machines`` since the
        last call."""
        held, machines, self.hub.machines = self.hub.held, self.hub.machines, {}
        new = {"held": [held.popleft() for _ in range(len(held))], "machines": machines}
        return {"counts": self.hub.counts, "stats": asdict(self.stage.stream.stats), **new}

    @verb()
    async def announce(self, manifest: Mapping[str, Any]) -> list[str]:
        """Weights that can be fetched; gives the names of the roles that take weights."""
        await self.stage.registry.announce(manifest)
        return sorted(set(self.hub.followers.values()))

    @verb(waits=True)
    async def departure(self, among: Sequence[str]) -> list[str]:
        """The names of the roles that take weights, as soon as one of ``among`` is none of them, or after the deadline."""
        hub = self.hub
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(hub.deadline):
                while set(among) <= set(hub.followers.values()):
                    await hub.departure.wait()
        return sorted(set(hub.followers.values()))

    @verb(waits=True)
    async def listen(self) -> Notes:
        """Notes for the run's log, as soon as there are some; none after the deadline. They must not wait for a batch, which
        may never come."""
        hub = self.hub
        hub.sent = []
        if not hub.notes:
            hub.noted.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(hub.deadline):
                    await hub.noted.wait()
        return hub.unsent_notes()

    @verb(waits=True)
    async def ask(self, step: int, manifest: Mapping[str, Any]) -> None:
        """Have weights evaluated; waits for the evaluation before. Raises what keeps the run from going on."""
        await self.hub.unless_broken(self.stage.evaluations.ask(step, manifest))

    @verb(waits=True)
    async def answers(self, wait: bool) -> list[Answer]:
        """What was evaluated since the last call; ``wait`` for what is open. Raises what keeps the run from going on."""
        return await self.hub.unless_broken(self.stage.evaluations.answers(wait))

    @verb()
    async def end(self) -> Notes:
        """The stage is over; gives the last notes. Its roles are let go."""
        hub = self.hub
        hub.stage, hub.learner = None, None
        await hub.close_stage(self.stage.name)
        return hub.unsent_notes()

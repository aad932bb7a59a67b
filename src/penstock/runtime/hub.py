"""What the processes of a run have in common, served by the supervisor: the stream, the weights board and the notes.

Roles come and go; the hub stays. What a role worked on when its connection ended goes back into the stream.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from penstock.core.contracts import State
from penstock.core.errors import StreamError, WeightError
from penstock.core.types import Group, Version
from penstock.net.rpc import Handler, Many, Peer, Server
from penstock.runtime.exams import Answer, Exam, Exams
from penstock.stream.columns import Change
from penstock.stream.rules import Lease, Rules, Ticket
from penstock.stream.stream import DEADLINE, Stream

NOTES = 1000
"""Notes that wait for the learner to write them down; the oldest are given up first."""

Result = TypeVar("Result")
OpenStage = Callable[[str], Awaitable[None]]


class Board:
    """The newest manifest of the weights, for whoever wants something newer than what it has."""

    def __init__(self) -> None:
        self.manifest: Mapping[str, Any] | None = None
        self._changed = asyncio.Condition()

    @staticmethod
    def order(manifest: Mapping[str, Any]) -> tuple[Version, int]:
        """Later versions count more; of one version, the one of the learner that was started later."""
        return int(manifest["version"]), int(manifest["incarnation"])

    async def post(self, manifest: Mapping[str, Any]) -> None:
        """Put up a manifest. An older one is passed over: a learner that started again repeats versions that are known."""
        if not {"version", "incarnation", "kind"} <= manifest.keys():
            raise WeightError(f"a weights manifest has version, incarnation and kind; this one has {sorted(manifest)}")
        async with self._changed:
            if self.manifest is None or self.order(manifest) > self.order(self.manifest):
                self.manifest = manifest
                self._changed.notify_all()

    async def newest(self, incarnation: int, version: Version) -> Mapping[str, Any]:
        """A manifest that comes after the given one; waits for it."""
        async with self._changed:
            await self._changed.wait_for(
                lambda: self.manifest is not None and self.order(self.manifest) > (version, incarnation)
            )
            assert self.manifest is not None
            return self.manifest


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
        handlers: Mapping[str, Handler] | None = None,
    ) -> None:
        """``handlers``: further verbs, of whoever made the hub."""
        self.rules, self.deadline = rules, deadline
        self.open_stage, self.close_stage = open_stage, close_stage
        self.server = Server(
            {**self._handlers(), **(handlers or {})}, token, self._left, lambda line: self.note("refused", reason=line), "hub"
        )
        self.stage = ""
        self.stream: Stream | None = None
        self.board = Board()
        self.exams = Exams()
        self.incarnation = 0
        self.notes: deque[dict[str, Any]] = deque(maxlen=NOTES)
        self.reached = 0
        """Steps of the learner that were published, over all stages."""
        self._ready: dict[str, asyncio.Event] = {}
        self._noted = asyncio.Event()
        self._handed: list[dict[str, Any]] = []
        """Notes that were given to the learner, until it asks for more: they come again if it died before."""
        self._learner: int | None = None
        """Who began the stage; nobody else may lease, publish or end it."""
        self._broken: BaseException | None = None
        self._breaking = asyncio.Event()
        self.seen: dict[str, float] = {}
        """When each role was last heard of, seconds of the event loop's clock."""
        self.followers: dict[int, str] = {}
        """The names of peers that take weights from the board, by their ids."""
        self.moments: dict[str, dict[str, float]] = {}
        """When the latest process of each role connected, and when one last left, by the same clock."""
        self.told: dict[str, dict[str, float]] = {}
        """The latest counts of each role."""
        self.held: deque[dict[str, Any]] = deque(maxlen=NOTES)
        """Checksums of the weights that generators hold, until the learner compares them with its own."""
        self._leases: dict[int, Lease] = {}
        self._numbers = 0

    async def start(self, host: str = "127.0.0.1") -> str:
        """Listen; gives the address. By default for this machine only; peers prove that they know the token in any case."""
        return await self.server.start(host)

    async def stop(self) -> None:
        await self.server.stop()

    def readiness(self, name: str) -> asyncio.Event:
        """Set while the latest process of a role is ready for work."""
        return self._ready.setdefault(name, asyncio.Event())

    def fail(self, error: BaseException | None) -> None:
        """The run cannot go on: the learner hears of it when it asks for a batch."""
        if error is not None:
            self._broken = error
            self._breaking.set()

    def note(self, what: str, **fields: Any) -> None:
        """Something the run's log should hold."""
        self.notes.append({"what": what, **fields})
        self._noted.set()

    def _handlers(self) -> dict[str, Handler]:
        verbs = (
            *("begin", "admit", "put", "withdrawn", "take", "write", "newest"),
            *("next_exam", "answer", "alive", "held", "ready_now", "tell_note"),
        )
        found = {verb: getattr(self, f"_{verb}") for verb in verbs}
        return found | {
            verb: self._for_learner(verb) for verb in ("end", "lease", "release", "post", "listen", "ask", "answers")
        }

    def _for_learner(self, verb: str) -> Handler:
        """A handler that the learner of the stage alone may call."""
        handler: Handler = getattr(self, f"_{verb}")

        async def checked(peer: Peer, **values: Any) -> Any:
            if peer.id != self._learner:
                self._refuse(f'{peer} asked for "{verb}", which only the learner that began the stage may')
            return await handler(peer, **values)

        return checked

    def _refuse(self, reason: str) -> None:
        self.note("refused", reason=reason)
        raise StreamError(reason)

    async def _left(self, peer: Peer) -> None:
        self.moments.setdefault(peer.name, {})["left"] = asyncio.get_running_loop().time()
        self.followers.pop(peer.id, None)
        if peer.id == self._learner:
            self._learner = None
            self.notes.extendleft(reversed(self._handed))
            self._handed = []
        if self.stream is not None:
            await self.stream.leave(_maker(peer))

    def _flowing(self) -> Stream:
        if self.stream is None:
            raise StreamError("no stage has begun, so there is no stream; the learner begins it")
        return self.stream

    # ---- every role

    async def _alive(self, peer: Peer, counts: Mapping[str, float]) -> None:
        now = self.seen[peer.name] = asyncio.get_running_loop().time()
        known = self.moments.setdefault(peer.name, {})
        if known.get("peer") != peer.id:  # its first sign of life
            known |= {"peer": peer.id, "connected": now}
        self.told[peer.name] = dict(counts)

    async def _held(self, peer: Peer, version: Version, incarnation: int, sums: Sequence[str]) -> None:
        self.held.append({"role": peer.name, "version": version, "incarnation": incarnation, "sums": list(sums)})

    async def _ready_now(self, peer: Peer) -> None:
        self.readiness(peer.name).set()

    async def _tell_note(self, peer: Peer, what: str, fields: Mapping[str, Any]) -> None:
        self.note(what, role=peer.name, **fields)

    # ---- generators, reward workers, scorers

    async def _admit(self, peer: Peer, most: int, in_hand: int) -> list[Ticket]:
        return await self._flowing().admit(_maker(peer), most, in_hand)

    async def _put(self, peer: Peer, ticket: Ticket, group: Group) -> bool:
        return await self._flowing().put(ticket, group)

    async def _withdrawn(self, peer: Peer) -> list[Ticket]:
        return await self._flowing().withdrawn(_maker(peer))

    async def _take(self, peer: Peer, stage: str, most: int) -> Many:
        return Many(None, await self._flowing().take(stage, _maker(peer), most))

    async def _write(self, peer: Peer, ticket: Ticket, stage: str, found: Sequence[Change]) -> bool:
        return await self._flowing().write(ticket, stage, found)

    async def _newest(self, peer: Peer, incarnation: int, version: Version) -> Mapping[str, Any]:
        self.followers[peer.id] = peer.name
        return await self.board.newest(incarnation, version)

    # ---- the evaluator

    async def _next_exam(self, peer: Peer) -> Exam:
        self._require_evaluator(peer)
        return await self.exams.next()

    def _require_evaluator(self, peer: Peer) -> None:
        if peer.role != "evaluator":
            self._refuse(f"{peer} would evaluate, which only an evaluator may")

    async def _answer(self, peer: Peer, step: int, metrics: dict[str, float], groups: Sequence[Group]) -> None:
        self._require_evaluator(peer)
        await self.exams.answer(step, metrics, groups)

    # ---- the learner

    async def _ask(self, peer: Peer, exam: Exam) -> None:
        await self._unless_broken(self.exams.ask(exam))

    async def _answers(self, peer: Peer, wait: bool) -> list[Answer]:
        return await self._unless_broken(self.exams.answers(wait))

    async def _begin(self, peer: Peer, stage: str, ledger: Mapping[str, Any]) -> int:
        """A stage begins, or goes on under a learner that was started again; gives the learner's incarnation."""
        if peer.role != "learner" or self._learner is not None:
            self._refuse(f"{peer} asked to begin a stage, which only a learner may, and only while there is no other")
        self._learner = peer.id
        self.incarnation += 1
        if self.stream is None or self.stage != stage:
            self.stage, self.board, self.stream = stage, Board(), Stream(self.rules(stage), self.deadline)
            self.exams = Exams()
            self.stream.load_state(State({}, dict(ledger)))
        else:
            await self.stream.restore(State({}, dict(ledger)))
        self._leases.clear()
        await self.open_stage(stage)
        return self.incarnation

    async def _end(self, peer: Peer, stage: str) -> list[dict[str, Any]]:
        """The stage is over; gives the last notes, when its roles are gone."""
        if stage == self.stage:
            self.stage, self.stream = "", None
            await self.close_stage(stage)
        self._learner = None
        return self._hand_over()

    async def _listen(self, peer: Peer) -> list[dict[str, Any]]:
        """The notes that nobody has heard yet; waits for one. They must not wait for a batch, which may never come."""
        self._handed = []
        while not self.notes:
            self._noted.clear()
            await self._noted.wait()
        return self._hand_over()

    def _hand_over(self) -> list[dict[str, Any]]:
        self._handed = list(self.notes)
        self.notes.clear()
        return self._handed

    async def _lease(self, peer: Peer, version: Version) -> Many:
        lease = await self._unless_broken(self._flowing().lease(version))
        self._numbers += 1
        self._leases[self._numbers] = lease
        found = {
            "number": self._numbers,
            "lease": {name: getattr(lease, name) for name in ("ordinals", "passed", "version")},
            "told": self.told,
            "held": [self.held.popleft() for _ in range(len(self.held))],
            "stats": asdict(self._flowing().stats),
        }
        return Many(found, lease.groups + lease.again)

    async def _unless_broken(self, work: Coroutine[Any, Any, Result]) -> Result:
        leasing, breaking = asyncio.ensure_future(work), asyncio.ensure_future(self._breaking.wait())
        try:
            await asyncio.wait({leasing, breaking}, return_when=asyncio.FIRST_COMPLETED)
            if self._broken is not None:
                raise self._broken
            return leasing.result()
        finally:
            for task in (leasing, breaking):
                task.cancel()

    async def _release(self, peer: Peer, number: int, saved: bool) -> None:
        """The weights of a lease are published; ``saved``: everything trained up to it is in a checkpoint."""
        stream, lease = self._flowing(), self._leases.pop(number, None)
        if lease is None:
            raise StreamError(f"lease {number} is not the learner's, or was released before")
        stream.trained(lease)
        if saved:
            stream.acknowledge()
        await stream.release(lease)
        self.reached += 1

    async def _post(self, peer: Peer, manifest: Mapping[str, Any]) -> list[str]:
        await self.board.post(manifest)
        return sorted(set(self.followers.values()))


def _maker(peer: Peer) -> str:
    """A name that a role which was started again does not share with the one before it."""
    return f"{peer.name}#{peer.id}"

"""The stream from another process: what the loops call, carried to the hub."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Any

from penstock.core.contracts import Generator, State
from penstock.core.errors import GenerationError, PenstockError
from penstock.core.types import Group, Version
from penstock.net.rpc import Client, Many, connect
from penstock.runtime.bootstrap import Bootstrap
from penstock.stream.columns import Change
from penstock.stream.ledger import Ledger
from penstock.stream.rules import UNLIMITED, Lease, Rules, Ticket
from penstock.stream.stream import DEADLINE

ANSWER = 60.0
"""Seconds in which the hub answers a call that waits for nobody."""
SLACK = 30.0
"""Seconds by which a caller waits longer than the hub, so that the hub's error, which knows more, comes first."""
BEAT = 2.0
"""Seconds between two signs of life."""
KEPT = 64
"""Versions whose checksums the learner remembers."""


class RemoteDrawing:
    """The rollout's side."""

    def __init__(self, client: Client, deadline: float = DEADLINE) -> None:
        self.client, self.deadline = client, deadline + SLACK

    async def admit(self, *, most: int, in_hand: int = UNLIMITED) -> list[Ticket]:
        return list(await self.client.call("admit", deadline=self.deadline, most=most, in_hand=in_hand))

    async def put(self, ticket: Ticket, group: Group) -> bool:
        return bool(await self.client.call("put", deadline=ANSWER, ticket=ticket, group=group))

    async def withdrawn(self) -> list[Ticket]:
        return list(await self.client.call("withdrawn", deadline=NEVER))

    async def newest(self, incarnation: int, version: Version) -> Mapping[str, Any]:
        """The weights board: a manifest newer than the given one."""
        found: Mapping[str, Any] = await self.client.call("newest", deadline=NEVER, incarnation=incarnation, version=version)
        return found


NEVER = 10 * 365 * 86400.0
"""The deadline of a call that waits for something that need not come; it ends with the connection."""


class RemoteColumns:
    """The side of those who write a column."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def take(self, stage: str, most: int) -> list[tuple[Ticket, Group]]:
        """Groups that lack a column."""
        found: Many = await self.client.call("take", deadline=NEVER, stage=stage, most=most)
        return list(found.items)

    async def write(self, ticket: Ticket, stage: str, found: Sequence[Change]) -> bool:
        return bool(await self.client.call("write", deadline=ANSWER, ticket=ticket, stage=stage, found=list(found)))


class RemoteLeasing:
    """The learner's side. Keeps the ledger itself, because it belongs to the weights and into their checkpoints."""

    def __init__(self, rules: Rules, report: Callable[..., None], deadline: float = DEADLINE) -> None:
        """``report`` is told what other roles have to say, as ``report(what, **fields)``."""
        self.rules, self.report, self.deadline = rules, report, deadline + SLACK
        self.ledger = Ledger()
        self.told: Mapping[str, Mapping[str, float]] = {}
        """The latest counts of the other roles."""
        self.stats: Mapping[str, float] = {}
        """The stream's counts."""
        self.held: list[Mapping[str, Any]] = []
        """Checksums of the weights that generators hold, which nobody has compared yet."""
        self.sums: dict[tuple[int, Version], list[str]] = {}
        """Those of the latest versions that went out, by incarnation and version."""
        self._client: Client | None = None
        self._numbers: dict[int, int] = {}
        self._saved = False

    @property
    def client(self) -> Client:
        if self._client is None:
            raise GenerationError("the learner is not connected; call begin first")
        return self._client

    async def begin(self, client: Client, stage: str) -> int:
        """Begin or go on with a stage from the ledger as it is; gives the number of this start of the learner."""
        self._client = client
        ledger = self.ledger.state().values
        return int(await client.call("begin", deadline=self.deadline, stage=stage, ledger=ledger))

    async def end(self, stage: str) -> None:
        self._write_down(await self.client.call("end", deadline=ANSWER, stage=stage))

    async def post(self, manifest: Mapping[str, Any]) -> Collection[str]:
        """Announce weights on the board; gives the names of those who take weights from it."""
        order = int(manifest["incarnation"]), int(manifest["version"])
        self.sums[order] = [bucket["checksum"] for bucket in manifest["buckets"]]
        for old in list(self.sums)[:-KEPT]:
            del self.sums[old]
        return list(await self.client.call("post", deadline=ANSWER, manifest=dict(manifest)))

    async def lease(self, version: Version) -> Lease:
        """The next batch."""
        leased: Many = await self.client.call("lease", deadline=self.deadline, version=version)
        found, groups = leased.value, tuple(leased.items)
        ordinals, passed = tuple(found["lease"]["ordinals"]), tuple(found["lease"]["passed"])
        fresh, again = groups[: len(ordinals)], groups[len(ordinals) :]
        lease = Lease(ordinals, fresh, passed, again, int(found["lease"]["version"]))
        self._numbers[id(lease)] = int(found["number"])
        self.told, self.stats = found["told"], found["stats"]
        self.held += found["held"]
        return lease

    async def listen(self) -> None:
        """Write down what other roles have to say as soon as they say it; until the task is cancelled."""
        while True:
            self._write_down(await self.client.call("listen", deadline=NEVER))

    def _write_down(self, notes: Sequence[dict[str, Any]]) -> None:
        for note in notes:
            self.report(note.pop("what"), **note)

    def trained(self, lease: Lease) -> None:
        self.ledger.add(lease.ordinals + lease.passed, lease.version + 1)

    def acknowledge(self) -> None:
        """A checkpoint holds what was trained so far; the hub hears of it with the next release."""
        self._saved = True

    async def release(self, lease: Lease) -> None:
        number, saved, self._saved = self._numbers.pop(id(lease)), self._saved, False
        await self.client.call("release", deadline=ANSWER, number=number, saved=saved)

    def state(self) -> State:
        return self.ledger.state()

    def load_state(self, state: State) -> None:
        self.ledger.load_state(state)


@contextlib.asynccontextmanager
async def joined(
    bootstrap: Bootstrap, name: str, role: str, counts: Callable[[], Mapping[str, float]]
) -> AsyncIterator[Client]:
    """A connection to the hub, with signs of life as long as the event loop turns; ``counts`` go with them."""
    client = await connect(bootstrap.hub, bootstrap.token, name=name, role=role)

    async def beat() -> None:
        while True:
            await client.call("alive", counts=dict(counts()))
            await asyncio.sleep(BEAT)

    beating = asyncio.create_task(beat())
    try:
        yield client
    except Exception as error:
        if role != "learner":  # which says so itself; others have but a log, and the disk may be full
            reason = f"{type(error).__name__}: {error}"
            with contextlib.suppress(PenstockError):
                await client.call("tell_note", deadline=BEAT, what="role failed", fields={"reason": reason})
        raise
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
        await client.close()


class Holding:
    """Lets groups wait until a generator holds the version that their ticket asks for.

    All who wait for the same weights go on in the same turn of the event loop, so that they enter the same decode step.
    """

    def __init__(self, generator: Generator, deadline: float = ANSWER) -> None:
        self.generator, self.deadline = generator, deadline
        self._loaded = asyncio.Event()
        self._refused = ""

    def loaded(self, refused: str = "") -> None:
        """Say that the generator may hold another version now, or why the last one was ``refused``."""
        self._refused = refused
        self._loaded.set()
        self._loaded = asyncio.Event()

    async def first(self) -> None:
        """Wait for the weights that a generator begins with. Raises GenerationError where they are refused."""
        while self.generator.stats().version < 0:
            if self._refused:
                raise GenerationError(f"this generator has no weights to begin with: {self._refused}")
            await self._loaded.wait()

    async def __call__(self, version: Version) -> None:
        """Wait until the generator holds ``version`` or a younger one. Raises GenerationError after the deadline."""
        try:
            async with asyncio.timeout(self.deadline):
                while self.generator.stats().version < version:
                    await self._loaded.wait()
        except TimeoutError:
            raise GenerationError(
                f"waited {self.deadline:.0f} s for weights of version {version} from the learner; this generator holds "
                f"{self.generator.stats().version}" + (f"; {self._refused}" if self._refused else "")
            ) from None

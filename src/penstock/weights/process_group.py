"""The channel through a process group: the learner broadcasts a snapshot in buckets to the generators that answer its call.

Each version is a round. The publisher announces it; generators note their names in the round's store; when all that are
expected have come, or the deadline has passed, the publisher writes down who takes part, in order of rank (itself is rank 0),
and broadcasts. A round stays open for late comers and for those whose group broke, who get a pass of their own, until there is
a newer version. The last group is used again while its members are the same; otherwise a new one is built from those who came.

Rounds run behind the learner's back: ``publish`` returns once the weights are copied. A generator that sleeps, or that dies
while it is waited for, delays one round by the deadline and none afterwards; one that is known to have left delays none, nor
one that leaves while it is waited for. Stores are files in the publisher's folder, for its user's eyes alone, and sockets are
on the loopback interface, or on that of the address in ``PENSTOCK_HOST``.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as distributed
from torch import Tensor

from penstock.core.errors import GenerationError, Superseded, WeightError, blame
from penstock.core.types import Version, WeightUpdate
from penstock.weights.ends import Publisher, Subscriber
from penstock.weights.snapshot import Announced, buckets_of, empty_snapshot, manifest_of

KIND = "process group"
Departure = Callable[[Sequence[str]], Awaitable[Collection[str]]]
"""Gives the names of those who follow, as soon as one of the given names is none of them, or after a while."""
ATTEMPTS = 3
"""Passes of one round that a generator takes part in at most."""

_gloo: Any = distributed.ProcessGroupGloo if distributed.is_available() else None


@cache
def _network() -> Any:
    """The loopback interface, or in a cluster that of this node's address."""
    return _gloo.create_device(hostname=os.environ.get("PENSTOCK_HOST", "127.0.0.1"))


def join_gloo(store: Any, rank: int, size: int, wait: timedelta) -> Any:
    """A process group that meets at a store. Raises RuntimeError where the others do not all come in time."""
    options = _gloo._Options()
    options._devices, options._timeout = [_network()], wait
    return _gloo(store, rank, size, options)


def broadcast(group: Any, tensor: Tensor, wait: timedelta) -> None:
    """Rank 0's tensor becomes everybody's. Raises RuntimeError where somebody is gone or the deadline passes."""
    options = distributed.BroadcastOptions()
    options.rootRank, options.timeout = 0, wait
    group.broadcast([tensor], options).wait(wait)


class Group:
    """A process group of the publisher (rank 0) and ``members``, in order of rank, that meets at a store in ``file``."""

    def __init__(self, file: str, members: list[str], rank: int, seconds: float) -> None:
        """Raises RuntimeError where the others do not all come within ``seconds``."""
        self.file, self.members, self.wait = file, members, timedelta(seconds=seconds)
        self._inner = join_gloo(distributed.FileStore(file), rank, len(members) + 1, self.wait)

    def broadcast(self, bytes_I: Tensor) -> None:
        """The publisher's snapshot becomes everybody's. Raises RuntimeError where somebody is gone or the deadline passes."""
        for offset, size in buckets_of(len(bytes_I)):
            broadcast(self._inner, bytes_I[offset : offset + size], self.wait)


class Round:
    """The publisher's side of a round: hears who comes, says who takes part in each pass."""

    def __init__(self, file: Path, seconds: float) -> None:
        self.file = str(file)
        self.passes = 0
        self._store = store_in(self.file, seconds)
        self._heard = 0

    def arrivals(self, enough: Callable[[int], bool], seconds: float) -> dict[str, str]:
        """The next to come, in order of rank, and which group each still holds: until their number is ``enough``, of which
        each arrival and each :meth:`wake` asks again, or the deadline passes."""
        came: dict[str, str] = {}
        until = time.monotonic() + seconds
        while not enough(len(came)):
            key = f"here/{self._heard + 1}"
            try:
                self._store.wait([key], timedelta(seconds=max(0.001, until - time.monotonic())))
            except RuntimeError:  # the deadline
                break
            self._heard += 1
            name, held = json.loads(self._store.get(key))
            if name:
                came[name] = held
        return dict(sorted(came.items()))

    def announce(self, **fields: Any) -> None:
        """Begin a pass among those heard so far, or close the round."""
        self.passes += 1
        self._store.set(f"pass/{self.passes}", json.dumps({"heard": self._heard, **fields}))

    def wake(self) -> None:
        """Have a wait for arrivals ask again whether they are enough."""
        arrive(self._store, "", "")


def store_in(file: str, seconds: float) -> distributed.FileStore:
    """A store that other processes open too; an operation on it takes no longer than ``seconds``."""
    store = distributed.FileStore(file)
    store.set_timeout(timedelta(seconds=seconds))
    return store


def arrive(store: Any, name: str, held: str) -> int:
    """Note in a round's store a name and the file of the group that it still holds, if any; gives how many have come."""
    count: int = store.add("arrivals", 1)
    store.set(f"here/{count}", json.dumps([name, held]))
    return count


class ProcessGroupPublisher(Publisher):
    """Copies the weights, then announces and broadcasts them in a task of its own. Of versions that wait, only the newest is
    sent; what ended the sending of an earlier version is raised by the next :meth:`publish`."""

    def __init__(
        self, *given: Any, generators: int = 1, seconds: float = 10.0,
        report: Callable[..., None] = lambda *_, **__: None, departure: Departure | None = None, **options: Any,
    ) -> None:  # fmt: skip
        """``generators`` are expected in the first round; later on those whom the round before reached, as far as ``post``
        says that they still follow, and ``departure`` while they are waited for. A pass waits at most ``seconds`` for those
        it expects, for their connections and for a bucket. ``report`` hears ("weights not delivered", version, members,
        reason), all but the first by name."""
        super().__init__(*given, **options)
        self.expected, self.seconds, self.report, self.departure = generators, seconds, report, departure
        self._rounds = 0
        self._reached: set[str] = set()
        """Who took part in the latest round that had anybody."""
        self._round: Round | None = None
        self._group: Group | None = None
        self._pending: tuple[Version, Tensor] | None = None
        self._serving = self._closed = False
        self._ending = threading.Lock()
        """Held by the thread that writes to a store or removes it: a round may end by itself while it is woken."""
        self._sender: asyncio.Task[None] | None = None
        self._waking: asyncio.Future[None] | None = None

    async def publish(self, version: Version) -> None:
        self._pending = version, await asyncio.to_thread(self.snapshots.take)
        if self._sender is not None and self._sender.done():
            self._sender.result()
        self._sender = self._sender or asyncio.create_task(self._send(), name="weights")
        self._wake()

    def close(self) -> None:
        """Stop sending and remove the stores, at the latest when the pass under way has met its deadline."""
        with self._ending:
            self._closed = True
            if self._round is not None and self._serving:
                self._round.wake()
                return
            self.folder.close()
        if self._sender is not None and not self._sender.cancel() and not self._sender.cancelled():
            self._sender.exception()  # the learner ends, for this reason or another

    def _wake(self) -> None:
        if self._round is not None:  # not awaited: a writer has locked the store
            self._waking = asyncio.get_running_loop().run_in_executor(None, self._wake_round, self._round)

    def _wake_round(self, round: Round) -> None:
        with self._ending:
            if not self._closed:
                round.wake()

    async def _send(self) -> None:
        """Round after round; each lasts until a newer version is pending."""
        self._loop = asyncio.get_running_loop()
        while self._pending is not None and not self._closed:
            (version, bytes_I), self._pending = self._pending, None
            self._rounds += 1
            self._round = Round(self.folder.path / f"{self.learner_epoch}-{self._rounds}.round", self.seconds)
            layout, order = self.snapshots.layout, (self.learner_epoch, version)
            more = {"round": self._round.file, "seconds": self.seconds}
            following = await self.post(await asyncio.to_thread(manifest_of, KIND, order, layout, bytes_I, **more))
            self._expect(following)
            self._serving = True
            leaving = asyncio.create_task(self._heed_departures(following))
            try:
                await asyncio.to_thread(self._serve, self._round, version, bytes_I)
            finally:
                leaving.cancel()
                await asyncio.gather(leaving, return_exceptions=True)

    async def _heed_departures(self, following: Collection[str] | None) -> None:
        """While a round is under way: a generator that leaves is expected no longer."""
        while self.departure is not None and following is not None:
            following = await self.departure(sorted({_generator(name) for name in self._reached} & set(following)))
            self._expect(following)
            self._wake()

    def _expect(self, following: Collection[str] | None) -> None:
        if self._reached:
            here = self._reached if following is None else {name for name in self._reached if _generator(name) in following}
            self.expected = max(1, len(here))

    def _serve(self, round: Round, version: Version, bytes_I: Tensor) -> None:
        try:
            self._passes(round, version, bytes_I)
        finally:
            with self._ending:
                self._serving = False
                if self._closed:  # not before: an operation on a store that is gone waits for it
                    self.folder.close()

    def _passes(self, round: Round, version: Version, bytes_I: Tensor) -> None:
        served: set[str] = set()
        late = False
        while not self._superseded:
            came = round.arrivals(partial(self._enough, late), self.seconds)
            if came:
                served |= self._deliver(round, came, version, bytes_I)
            elif not served and not self._superseded:
                self._failed(version, [], f"nobody came in {self.seconds:.0f} s")
            late = True
        if not self._closed:
            round.announce(closed=True, members=[])
        self._reached = served or self._reached

    def _enough(self, late: bool, count: int) -> bool:
        """Whether a pass may begin with ``count`` members, a ``late`` one with any; whom it expects may change meanwhile."""
        return self._superseded or count >= (1 if late else self.expected)

    @property
    def _superseded(self) -> bool:
        """Whether the round that is under way is to end."""
        return self._closed or self._pending is not None

    def _deliver(self, round: Round, came: Mapping[str, str], version: Version, bytes_I: Tensor) -> set[str]:
        """One pass; gives the members that it reached."""
        members = list(came)
        whole = self._group is not None and self._group.members == members
        if self._group is None or not whole or set(came.values()) != {self._group.file}:
            self._group = None
        file = self._group.file if self._group else f"{round.file}.{round.passes + 1}.group"
        round.announce(members=members, file=file)
        try:
            self._group = self._group or Group(file, members, 0, self.seconds)
            self._group.broadcast(bytes_I)
        except RuntimeError as error:  # members that live come again
            self._group = None
            self._failed(version, members, str(error))
            return set()
        return set(members)

    def _failed(self, version: Version, members: list[str], reason: str) -> None:
        report = partial(self.report, "weights not delivered", version=version, members=members, reason=reason)
        self._loop.call_soon_threadsafe(report)


def _generator(member: str) -> str:
    """The generator that a member belongs to: a worker of an engine has its name after that of its generator."""
    return member.partition("/")[0]


class ProcessGroupSubscriber(Subscriber):
    """Answers the publisher's calls under its name and verifies what it receives."""

    _group: Group | None = None

    def open(self, manifest: Mapping[str, Any]) -> WeightUpdate:
        """Take part in the round that a manifest announces.

        Waits for the publisher to begin a pass with this generator and for its buckets, no longer than its deadlines.
        """
        announced = Announced.read(manifest, KIND)
        file, seconds = announced.inside(manifest.get("round"), self.folder), manifest.get("seconds")
        if not isinstance(seconds, float | int):
            raise WeightError(f"{announced.name} refused: {seconds!r} is no number of seconds")
        bytes_I = empty_snapshot(announced.layout.bytes)
        problem = ""
        for _ in range(ATTEMPTS):
            with announced.reading(file):
                file.stat()  # a round that was closed is gone
            try:
                self._receive(str(file), seconds, bytes_I)
                return announced.update(bytes_I)
            except RuntimeError as error:
                self._group, problem = None, str(error)
        raise WeightError(f"{announced.name} refused: the learner, or another generator of its group, is gone: {problem}")

    def _receive(self, file: str, seconds: float, bytes_I: Tensor) -> None:
        store = store_in(file, seconds)
        mine = arrive(store, self.name, self._group.file if self._group else "")
        count, begun = 0, dict[str, Any](members=[], heard=0)
        while self.name not in begun["members"] or begun["heard"] < mine:
            count += 1
            store.wait([f"pass/{count}"], timedelta(seconds=3 * seconds))
            begun = json.loads(store.get(f"pass/{count}"))
            if begun.get("closed"):
                raise Superseded(f"{file} was closed before {self.name} came")
        members = begun["members"]
        if self._group is None or self._group.file != begun["file"]:
            self._group = None
            self._group = Group(begun["file"], members, members.index(self.name) + 1, seconds)
        self._group.broadcast(bytes_I)


class EngineGroup:
    """Rank 0 of a group whose other members are the processes of an inference server, which join by torch's rendezvous.

    The server is given an address, a port, a name and how many take part; its processes meet at a TCP store there. The name is
    the group's own: a server that has met the same trainer before knows groups of other names. The store is on the loopback
    interface, or on that of the address in ``PENSTOCK_HOST``. torch protects it by nothing: any process that reaches the port
    while the group is alive can disturb it, or is sent the weights if it comes before the server.
    """

    def __init__(self, device: torch.device, seconds: float) -> None:
        """Tensors are broadcast by NCCL from a CUDA ``device``, otherwise by gloo. No wait is longer than ``seconds``.

        Raises:
            GenerationError: the port cannot be opened.
        """
        self.device, self.wait = device, timedelta(seconds=seconds)
        self.backend = "nccl" if device.type == "cuda" else "gloo"
        self.name = f"penstock-{secrets.token_hex(8)}"
        self.address = os.environ.get("PENSTOCK_HOST", "127.0.0.1")
        with blame(GenerationError, f"opening a port on {self.address} for a process group"):
            listening = socket.create_server((self.address, 0))  # torch itself would listen on every interface
            self.port = int(listening.getsockname()[1])
            self._store: Any = distributed.TCPStore(
                self.address, self.port, is_master=True, timeout=self.wait, wait_for_workers=False,
                master_listen_fd=listening.detach(),
            )  # fmt: skip
        self._inner: Any = None

    def join(self, world: int) -> None:
        """Enter the group of ``world`` processes as rank 0. With gloo it blocks until all are there.

        Raises:
            GenerationError: they do not all come in time.
        """
        kind = "cuda" if self.backend == "nccl" else "cpu"
        named = distributed.PrefixStore(f"{self.name}/", distributed.PrefixStore(self.name, self._store))
        store = distributed.PrefixStore(f"{kind}/", named)
        with blame(GenerationError, f"{world - 1} processes of the server did not join in {self.wait.total_seconds():.0f} s"):
            self._inner = self._nccl(store, world) if self.backend == "nccl" else join_gloo(store, 0, world, self.wait)

    def _nccl(self, store: Any, world: int) -> Any:
        nccl: Any = distributed.ProcessGroupNCCL
        options = nccl.Options()
        options._timeout = self.wait
        return nccl(store, 0, world, options)

    def broadcast(self, pairs: Sequence[tuple[str, Tensor]]) -> None:
        """Send tensors one after the other; each takes the memory of one on the group's device.

        Raises:
            GenerationError: a process of the server is gone, or does not take a tensor in time.
        """
        for name, tensor in pairs:
            with blame(GenerationError, f'"{name}" did not reach the processes of the server'):
                broadcast(self._inner, tensor.detach().to(self.device).contiguous(), self.wait)
        if self.backend == "nccl":  # whose broadcasts have only been queued
            torch.cuda.synchronize(self.device)

    def close(self) -> None:
        """Leave the group and close the port."""
        self._inner = self._store = None

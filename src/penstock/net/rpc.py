"""Calls between processes of a run, over authenticated connections.

A :class:`Server` runs handlers for its peers; :func:`connect` gives a :class:`Client` that calls them. Messages are lists:
``call`` with a number, a verb and values, ``cancel`` with a number, and exactly one ``value`` or ``error`` for each number,
after as many ``item`` as the handler gives with its value. At most :data:`WINDOW` numbers of a client are open at a time,
which bounds what waits at both ends. The server never stops reading, so that it sees a cancel or the end of a connection at
once.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from penstock.core import errors
from penstock.core.errors import ConnectionLost, DeadlinePassed, PenstockError, RemoteError, WireError
from penstock.net import wire
from penstock.net.handshake import client_half, server_half
from penstock.net.link import Link

WINDOW = 256
"""Calls of one client that may be open at a time; further ones wait in the client.

A call whose handler waits holds its place: a client must not fill the window with calls that wait for what its next one brings.
"""

GREETING_AT_ONCE = 64
"""Connections that may be in the handshake at a time."""

CROWDED = 1.0
"""Seconds until a server that found no room for a connection tries again."""


@dataclass(frozen=True)
class Peer:
    """Who is at the other end of a connection. ``id`` is unique among all peers a server ever had."""

    id: int
    name: str
    role: str

    def __str__(self) -> str:
        return f'{self.role} "{self.name}"'


Handler = Callable[..., Awaitable[Any]]
"""``async (peer, **values) -> value``; cancelled when the caller gives up or its connection ends."""


@dataclass(frozen=True)
class Many:
    """What a handler returns, and a call then gives, where one frame may not hold it all: each item has a frame of its own.

    The call gives all of it or fails.
    """

    value: Any
    items: Sequence[Any]


class Server:
    """Carries out calls of its peers.

    Args:
        handlers: a coroutine function for each verb.
        token: the run's secret, which every peer must know.
        on_leave: awaited once for each peer whose connection ended, after its handlers did.
        report: gets, in one line, what went wrong without a caller to hear of it: a stranger, garbage, silence.
        name: what peers call this server in their errors.
    """

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        token: str,
        on_leave: Callable[[Peer], Awaitable[None]] | None = None,
        report: Callable[[str], None] | None = None,
        name: str = "server",
    ) -> None:
        self.handlers, self.name = dict(handlers), name
        self.peers: dict[int, Peer] = {}
        self._links: dict[int, tuple[Link, asyncio.Task[Any] | None]] = {}
        self._token, self._on_leave = token, on_leave
        self.report = report or (lambda line: None)
        self._ids = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._greeting = asyncio.Semaphore(GREETING_AT_ONCE)
        self._listener: socket.socket | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Listen; returns the address ``host:port`` (port 0 takes a free one)."""
        self._listener = socket.create_server((host, port), backlog=GREETING_AT_ONCE)
        self._listener.setblocking(False)
        self._spawn(self._accept(self._listener))
        return "{}:{}".format(*self._listener.getsockname()[:2])

    async def stop(self) -> None:
        """Stop listening, end all connections, and wait until every peer has left."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()

    async def drop(self, name: str) -> None:
        """End the connections of the peers of that name, and wait until they have left; on behalf of a successor."""
        dropped = [self._links[peer.id] for peer in self.peers.values() if peer.name == name]
        for link, _ in dropped:
            link.lose("another process takes its place")
        await asyncio.gather(*(task for _, task in dropped if task), return_exceptions=True)

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listener: socket.socket) -> None:
        loop, crowded = asyncio.get_running_loop(), False
        while True:
            await self._greeting.acquire()
            try:
                connection, address = await loop.sock_accept(listener)
            except OSError as cause:
                self._greeting.release()
                if not isinstance(cause, ConnectionError):  # one of these has left before it was accepted
                    if not crowded:
                        self.report(
                            f"{self.name} takes no connections for now: {cause}; where files are too many, raise ulimit -n"
                        )
                    crowded = True
                    await asyncio.sleep(CROWDED)
                continue
            crowded = False
            self._spawn(self._serve(connection, "{}:{}".format(*address[:2])))

    async def _serve(self, connection: socket.socket, address: str) -> None:
        link = Link(connection, address)
        try:
            try:
                name, role = await link.shake_hands(server_half(self._token, self.name, address))
            except (WireError, ConnectionLost, TimeoutError) as error:
                return self.report(f"{self.name} refused a connection: {str(error) or f'{address} did not greet in time'}")
            finally:
                self._greeting.release()
            await self._attend(Peer(next(self._ids), name, role), link)
        finally:
            link.close()

    async def _attend(self, peer: Peer, link: Link) -> None:
        self.peers[peer.id], self._links[peer.id] = peer, (link, asyncio.current_task())
        link.peer, session = f"{peer} ({link.peer})", _Session(self, peer, link)
        try:
            await session.run()
        except WireError as error:
            self.report(f"{self.name} ended a connection: {error}")
        except ConnectionLost:  # leaving is no error; on_leave hears of it
            if link.reason:
                self.report(f"{self.name} ended the connection of {peer}: {link.reason}")
        finally:
            await session.end()
            del self.peers[peer.id], self._links[peer.id]
            if self._on_leave is not None:
                try:
                    await self._on_leave(peer)
                except Exception as error:
                    self.report(f"{self.name} failed when {peer} left: {type(error).__name__}: {error}")


class _Session:
    """The open calls of one peer. Takes its messages, gives replies; waits for nothing but the next message."""

    def __init__(self, server: Server, peer: Peer, link: Link) -> None:
        self.server, self.peer, self.link = server, peer, link
        self.running: dict[int, asyncio.Task[Any]] = {}

    async def run(self) -> None:
        while True:
            match await self.link.receive():
                case ["call", int(number), str(verb), dict(values)] if number not in self.running:
                    if len(self.running) >= WINDOW or len(self.link.unsent) >= 2 * WINDOW:
                        raise WireError(f"{self.link.peer} has more than {WINDOW} calls open")
                    task = asyncio.create_task(self.carry_out(number, verb, values), name=f"{verb} of {self.peer}")
                    self.running[number] = task
                    task.add_done_callback(functools.partial(self.reply, number))
                case ["cancel", int(number)]:
                    if number in self.running:
                        self.running[number].cancel()
                case _:
                    raise WireError(f"{self.link.peer} sent a message that is neither call nor cancel")

    async def carry_out(self, number: int, verb: str, values: dict[str, Any]) -> Any:
        if verb not in self.server.handlers:
            raise WireError(f'{self.server.name} has no verb "{verb}"; it has {", ".join(sorted(self.server.handlers))}')
        found = await self.server.handlers[verb](self.peer, **values)
        if not isinstance(found, Many):
            return found
        for item in found.items:
            await self.link.send(wire.pack(["item", number, item]))
        return found.value

    def reply(self, number: int, task: asyncio.Task[Any]) -> None:
        """Answer for a task that is done, also for one that was cancelled before it began."""
        del self.running[number]
        error = asyncio.CancelledError("cancelled") if task.cancelled() else task.exception()
        if self.link.reason:  # nobody hears the answer; its error has been looked at, else asyncio would print it
            return
        try:
            frame = wire.pack(["value", number, None if error else task.result()])
        except WireError as cause:
            error = cause
        if error is not None:
            frame = wire.pack(["error", number, type(error).__name__, str(error)])
        self.link.post(frame)

    async def end(self) -> None:
        """Cancel what runs and wait until it has ended."""
        self.link.lose(f"{self.peer} left")
        tasks = list(self.running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def connect(address: str, token: str, *, name: str, role: str, deadline: float = 30.0) -> Client:
    """Connect to a server of this run.

    Raises:
        ConnectionLost: nobody listens at ``address``, or it hung up.
        WireError: who listens is no server of this run.
        DeadlinePassed: it took longer than ``deadline`` seconds.
    """
    host, _, port = address.rpartition(":")
    link = Link(socket.socket(socket.AF_INET, socket.SOCK_STREAM), address)
    try:
        async with asyncio.timeout(deadline):
            await asyncio.get_running_loop().sock_connect(link.socket, (host, int(port)))
            there = await link.shake_hands(client_half(token, name, role, address))
    except BaseException as cause:
        link.close()
        match cause:
            case TimeoutError():
                raise DeadlinePassed(f'{address} did not answer the greeting of {role} "{name}" in time') from cause
            case OSError():
                raise ConnectionLost(f"no server listens at {address}: {cause}") from cause
        raise
    link.peer = f"{there} at {address}"
    return Client(link)


class Client:
    """Calls a server. Made by :func:`connect`.

    Attributes:
        server: name and address of the server, for errors.
        lost: set once the connection has ended, by either end.
        reason: why it ended.
    """

    def __init__(self, link: Link) -> None:
        self.server = link.peer
        self.lost = asyncio.Event()
        self.reason = f"the connection to {self.server} was closed here"
        self._link = link
        self._numbers = itertools.count(1)
        self._window = asyncio.Semaphore(WINDOW)
        self._open: dict[int, asyncio.Future[Any]] = {}
        self._items: dict[int, list[Any]] = {}
        self._reader = asyncio.create_task(self._read())

    async def until_lost(self) -> NoReturn:
        """For work that ends with the connection. Raises ConnectionLost once it has ended."""
        await self.lost.wait()
        raise ConnectionLost(self.reason)

    async def call(self, verb: str, /, *, deadline: float = 60.0, **values: Any) -> Any:
        """What the server's handler of ``verb`` returns. Cancelling the call cancels the handler.

        A call that was cancelled or ran out of time may still have been carried out.

        Raises:
            DeadlinePassed: there was no reply within ``deadline`` seconds; the handler is cancelled.
            ConnectionLost: the connection ended.
            RemoteError: the handler failed with an error that is no PenstockError; those are raised as they are.
        """
        try:
            async with asyncio.timeout(deadline):
                number, reply = await self._request(verb, values)
                try:
                    return await reply
                finally:
                    if number in self._open and not self._link.reason:
                        self._link.post(wire.pack(["cancel", number]))
        except TimeoutError as cause:
            raise DeadlinePassed(f'{self.server} did not answer "{verb}" within {deadline:g} s') from cause

    async def close(self) -> None:
        """End the connection; open calls fail."""
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        await self._end()  # a reader that was cancelled before it began has ended nothing

    async def _request(self, verb: str, values: dict[str, Any]) -> tuple[int, asyncio.Future[Any]]:
        await self._window.acquire()
        number = next(self._numbers)
        try:
            if self.lost.is_set():
                raise ConnectionLost(self.reason)
            self._link.post(wire.pack(["call", number, verb, values]))
        except BaseException:
            self._window.release()
            raise
        self._open[number] = asyncio.get_running_loop().create_future()
        return number, self._open[number]

    async def _read(self) -> None:
        """Takes replies, gives them to those who wait. Ends with the connection and then fails all who wait."""
        try:
            while True:
                match await self._link.receive():
                    case ["item", int(number), item] if number in self._open:
                        self._items.setdefault(number, []).append(item)
                    case ["value", int(number), value] if number in self._open:
                        items = self._items.pop(number, None)
                        self._settle(number, value if items is None else Many(value, items))
                    case ["error", int(number), str(kind), str(message)] if number in self._open:
                        self._items.pop(number, None)
                        self._settle(number, self._error(kind, message))
                    case _:
                        raise WireError(f"{self.server} sent a message that is no answer to an open call")
        except (ConnectionLost, WireError) as error:
            self.reason = str(error)
        finally:
            await self._end()

    async def _end(self) -> None:
        self.lost.set()
        for number in list(self._open):
            self._settle(number, ConnectionLost(self.reason))
        self._link.close()

    def _settle(self, number: int, outcome: Any) -> None:
        reply = self._open.pop(number)
        self._window.release()
        if reply.done():
            return  # its caller has gone
        if isinstance(outcome, PenstockError):
            reply.set_exception(outcome)
        else:
            reply.set_result(outcome)

    def _error(self, kind: str, message: str) -> PenstockError:
        known = getattr(errors, kind, None)
        if isinstance(known, type) and issubclass(known, PenstockError):
            return known(message)
        return RemoteError(f"{self.server}: {kind}: {message}")

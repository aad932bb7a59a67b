"""A server with handlers that tests steer, and raw connections to it."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from penstock.core.errors import StreamError
from penstock.net.handshake import client_half
from penstock.net.link import Link
from penstock.net.rpc import Client, Peer, Server, connect

TOKEN = "the token of this run"


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test on a loop of its own, within a minute; an error that nobody saw fails it."""

    async def watched() -> None:
        unseen: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
        async with asyncio.timeout(60):
            await main()
        gc.collect()  # tasks and futures complain when they are collected
        assert unseen == []

    asyncio.run(watched())


class Hub:
    """Handlers, and what happened to them.

    Attributes:
        begun: values of ``note`` in the order in which its handlers began.
        left: peers that left, and how many handlers ran at that moment.
        lines: what the server reported.
        running, most: ``wait`` handlers that run now, and at most so far.
        gate: opens all ``wait`` handlers.
    """

    def __init__(self) -> None:
        self.begun: list[Any] = []
        self.left: list[tuple[Peer, int]] = []
        self.lines: list[str] = []
        self.running = self.most = self.cancelled = 0
        self.gate, self.someone_waits, self.someone_left = asyncio.Event(), asyncio.Event(), asyncio.Event()
        handlers = {"echo": self.echo, "note": self.note, "wait": self.wait, "fail": self.fail, "who": self.who}
        self.server = Server(handlers, TOKEN, self.leave, self.lines.append, "hub")

    async def echo(self, peer: Peer, value: Any) -> Any:
        return value

    async def note(self, peer: Peer, value: Any) -> None:
        self.begun.append(value)

    async def who(self, peer: Peer) -> list[Any]:
        return [peer.id, peer.name, peer.role]

    async def wait(self, peer: Peer) -> str:
        self.running += 1
        self.most = max(self.most, self.running)
        self.someone_waits.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        return "opened"

    async def fail(self, peer: Peer, kind: str) -> Any:
        match kind:
            case "stream":
                raise StreamError("group gsm8k/0/3 is stale")
            case "key":
                raise KeyError("reward")
            case "unpackable":
                return {1, 2}
            case "cancelled":
                raise asyncio.CancelledError

    async def leave(self, peer: Peer) -> None:
        self.left.append((peer, self.running))
        self.someone_left.set()


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[Hub, str]]:
    """A hub that listens, and its address."""
    hub = Hub()
    address = await hub.server.start()
    try:
        yield hub, address
    finally:
        await hub.server.stop()


@asynccontextmanager
async def serving_one() -> AsyncIterator[tuple[Hub, Client]]:
    """A hub with one client."""
    async with serving() as (hub, address):
        client = await joined(address)
        try:
            yield hub, client
        finally:
            await client.close()


def joined(address: str, name: str = "generator-0") -> Awaitable[Client]:
    return connect(address, TOKEN, name=name, role="generator", deadline=20.0)


def port(address: str) -> tuple[str, int]:
    host, _, number = address.rpartition(":")
    return host, int(number)


async def raw(address: str) -> Link:
    """A connection that has passed the handshake and may now send anything."""
    connection = socket.create_connection(port(address))
    link = Link(connection, address)
    await link.shake_hands(client_half(TOKEN, "rude", "generator", address))
    return link

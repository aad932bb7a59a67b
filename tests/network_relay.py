"""A relay before a server that can stop forwarding without closing anything, as a broken network does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Relay:
    """``crossed`` is what went through, in either direction; ``open`` lets it through."""

    def __init__(self) -> None:
        self.crossed: list[bytes] = []
        self.open = asyncio.Event()
        self.open.set()
        self._writers: list[asyncio.StreamWriter] = []

    async def pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        while data := await reader.read(1 << 16):
            await self.open.wait()
            self.crossed.append(data)
            writer.write(data)
        await self.open.wait()
        writer.close()


@asynccontextmanager
async def relayed(address: str) -> AsyncIterator[tuple[Relay, str]]:
    """A relay, and the address under which it stands for ``address``."""
    relay = Relay()
    pumps: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = address.rpartition(":")
        inner_reader, inner_writer = await asyncio.open_connection(host, int(port))
        pumps.update({asyncio.create_task(relay.pump(*pair)) for pair in ((reader, inner_writer), (inner_reader, writer))})

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield relay, f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        for writer in relay._writers:
            writer.close()

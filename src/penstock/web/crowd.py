"""What a server takes in at once, of everybody and of one address: connections, and bytes of bodies that are being read.

One client can neither fill the memory nor take the places of all others.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Protocol

from penstock.web.refusals import Refusal

LEAST = 64 << 10
"""Bytes that a body counts for at least: what its connection takes. Shorter ones are parsed at once."""
IDLE = 3.0
"""How many times as long as parsing a large body took no other one is parsed: the event loop answers everybody meanwhile."""


def block_of(address: str) -> str:
    """An address as what is counted for it: of IPv6 the first 64 bits, since one customer has all the others."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address[:100]
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped:  # how a socket for both names who comes by IPv4
        return str(found.ipv4_mapped)
    return str(found) if found.version == 4 else str(ipaddress.ip_network((found, 64), strict=False))


class Connection(Protocol):
    """What is counted."""

    def busy(self) -> bool:
        """Whether a request has come as a whole and is being answered."""
        ...

    def close(self) -> None:
        """End at once."""
        ...


class Connections:
    """Open connections by address: at most ``each`` of one (0: as many as of all), and ``most`` of all.

    Where all places are taken, one that is not busy gives way: the oldest of the address that has most.
    """

    def __init__(self, most: int, each: int = 0) -> None:
        self.most, self.each = most, each or most
        self._open: dict[str, dict[Connection, None]] = {}
        """The connections of each address, the oldest first."""

    def add(self, address: str, connection: Connection) -> None:
        """Take a connection in, or close it."""
        mine = self._open.setdefault(address, {})
        mine[connection] = None
        if len(mine) > self.each:
            self._close(address, connection)
        elif sum(map(len, self._open.values())) > self.most:
            crowded = sorted(self._open, key=lambda other: len(self._open[other]), reverse=True)
            idle = ((where, other) for where in crowded for other in self._open[where] if not other.busy())
            self._close(*next(idle, (address, connection)))

    def discard(self, address: str, connection: Connection) -> None:
        """A connection has ended."""
        mine = self._open.get(address, {})
        mine.pop(connection, None)
        if not mine:
            self._open.pop(address, None)

    def _close(self, address: str, connection: Connection) -> None:
        self.discard(address, connection)
        connection.close()


class Bodies:
    """Room for the bodies that a server is reading: bytes of one address and of all; and turns at parsing the large ones."""

    def __init__(self, most: int = 64 << 20, each: int = 16 << 20) -> None:
        self.most, self.each = most, each
        self._taken: Counter[str] = Counter()
        self._parsing, self._rest = asyncio.Lock(), 0.0

    @contextlib.contextmanager
    def reserved(self, address: str, headers: Mapping[str, str], most: int) -> Iterator[None]:
        """Room for one body, as long as it says it is, or else as long as it may be.

        Raises:
            Refusal: with 429 where the address has too many under way, 503 where all together have.
        """
        length = headers.get("content-length", "")
        size = max(LEAST, min(int(length), most) if length.isdecimal() and len(length) < 16 else most)
        full = self._taken.total() + size > self.most
        if full or self._taken[address] + size > self.each:
            whose = "all clients" if full else "your address"
            raise Refusal(503 if full else 429, f"too many requests of {whose} are being read; try again later",
                          code="too_many_requests", headers={"Retry-After": "1"})  # fmt: skip
        self._taken[address] += size
        try:
            yield
        finally:
            self._taken[address] -= size
            if not self._taken[address]:
                del self._taken[address]

    @contextlib.asynccontextmanager
    async def turn(self, size: int) -> AsyncIterator[None]:
        """Within it a body is parsed, which nothing can interrupt: large ones one at a time, with rests."""
        if size <= LEAST:
            yield
            return
        async with self._parsing:
            await asyncio.sleep(max(0.0, self._rest - time.monotonic()))
            began = time.monotonic()
            try:
                yield
            finally:
                self._rest = time.monotonic() + IDLE * (time.monotonic() - began)

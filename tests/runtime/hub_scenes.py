"""A hub and roles that are connected to it, in one process."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from typing import Any

from penstock.net.rpc import Client, connect
from penstock.runtime.hub import Hub
from penstock.runtime.remote import HubClient, RemoteLearner
from penstock.stream.enrichment import REWARD
from penstock.stream.rules import Rules

TOKEN = "a token of sixteen characters"
RULES = Rules(batch=1, enrichment=(REWARD,))


def scene(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that is played in an event loop, with its ``peers`` if it has any, in half a minute at most."""

    @functools.wraps(test)
    def play(**fixtures: Any) -> None:
        async def main() -> None:
            async with asyncio.timeout(30), fixtures.get("peers", nullcontext()):
                await test(**fixtures)

        asyncio.run(main())

    return play


async def nothing(stage: str) -> None:
    return None


class Peers:
    """A hub, and the roles that are connected to it while the block goes on."""

    verbs: Any = None

    def __init__(self, rules: Rules = RULES, deadline: float = 20.0) -> None:
        self.rules, self.deadline = rules, deadline
        self.clients: list[Client] = []
        self.epochs: list[int] = []
        """What number each start of a learner was given."""

    async def __aenter__(self) -> Peers:
        self.hub = Hub(lambda stage: self.rules, TOKEN, nothing, nothing, self.deadline, self.verbs)
        self.address = await self.hub.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        for client in self.clients:
            await client.close()
        await self.hub.stop()

    async def connect(self, name: str, role: str = "generator", stage: str = "one", address: str = "") -> HubClient:
        """A role that has joined a stage; no stage: that has joined none."""
        self.clients.append(await connect(address or self.address, TOKEN, name=name, role=role))
        made = self.client_of(name)
        if stage:
            await made.role.join(stage)
        return made

    def client_of(self, name: str) -> HubClient:
        """What a role that has just connected asks the hub with."""
        return HubClient(self.clients[-1])

    async def learner(self, stage: str = "one", address: str = "") -> RemoteLearner:
        made = RemoteLearner(self.rules, lambda what, **fields: None)
        self.epochs.append(await made.begin(await self.connect("learner", "learner", "", address), stage))
        return made

    async def leave(self, name: str) -> None:
        """A role hangs up, and the hub has noticed."""
        (peer,) = (peer for peer in self.hub.server.peers.values() if peer.name == name)
        await self.clients[peer.id - 1].close()
        while peer.id in self.hub.server.peers:
            await asyncio.sleep(0.001)

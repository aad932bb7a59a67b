"""Who takes weights from the board, as the learner hears of it."""

from __future__ import annotations

import asyncio
from typing import Any

from penstock.net.rpc import connect
from penstock.runtime.hub import Hub
from penstock.runtime.remote import RemoteDrawing, RemoteLeasing
from penstock.stream.rules import Rules

TOKEN = "a token of sixteen characters"
RULES = Rules(batch=1)


def manifest(version: int) -> dict[str, Any]:
    return {"kind": "disk", "version": version, "incarnation": 1, "buckets": []}


async def nothing(stage: str) -> None:
    return None


def test_the_learner_hears_who_takes_weights_and_no_more_of_those_who_left() -> None:
    async def main() -> list[list[str]]:
        hub = Hub(lambda stage: RULES, TOKEN, nothing, nothing)
        address = await hub.start()
        learner = RemoteLeasing(RULES, lambda what, **fields: None)
        teller = await connect(address, TOKEN, name="learner", role="learner")
        await learner.begin(teller, "stage")
        told = [list(await learner.post(manifest(1)))]
        clients = [await connect(address, TOKEN, name=f"generator-{n}", role="generator") for n in (0, 1, 2)]
        for client in clients[:2]:
            assert (await RemoteDrawing(client).newest(-1, -1))["version"] == 1
        told.append(list(await learner.post(manifest(2))))
        await clients[0].close()
        while "generator-0" in {peer.name for peer in hub.server.peers.values()}:
            await asyncio.sleep(0.001)
        told.append(list(await learner.post(manifest(3))))
        for client in (*clients[1:], teller):
            await client.close()
        await hub.stop()
        return told

    assert asyncio.run(asyncio.wait_for(main(), 30)) == [[], ["generator-0", "generator-1"], ["generator-1"]]

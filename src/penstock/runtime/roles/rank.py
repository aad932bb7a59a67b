"""A process that keeps one rank of the learner on a node of its own: it starts one for each learner that waits for it."""

from __future__ import annotations

import asyncio
import sys

from penstock.core.errors import ConnectionLost, DeadlinePassed, WireError
from penstock.runtime.bootstrap import Bootstrap
from penstock.runtime.local import alongside
from penstock.runtime.remote import joined
from penstock.train.rendezvous import Rendezvous, connect_to_learner

LOOK = 0.1
"""Seconds between two looks for a learner that waits."""


async def run(bootstrap: Bootstrap) -> None:
    """Keep a rank. Ends when the run does, or when it is to stop."""
    async with joined(bootstrap, bootstrap.name, "rank", dict) as hub:
        await hub.role.ready()
        async with alongside(hub.until_lost()):
            await _serve(bootstrap)


async def _serve(bootstrap: Bootstrap) -> None:
    """Be the rank of one learner after another."""
    number = int(bootstrap.name.rpartition("-")[2])
    files, token = Rendezvous(bootstrap.folder / "ranks"), bootstrap.token
    while True:
        if (place := await asyncio.to_thread(files.address)) is not None:
            await _be(number, place, token)
        await asyncio.sleep(LOOK)


async def _be(number: int, place: tuple[str, int], token: str) -> None:
    """Be the rank of the learner that listens there, until either ends."""
    try:
        connection = await asyncio.to_thread(connect_to_learner, place, token, number)
    except (OSError, WireError, ConnectionLost, DeadlinePassed):  # it has ended, or has its ranks by now
        return
    command = [sys.executable, "-m", "penstock.train.rank", str(number)]
    with connection:
        process = await asyncio.create_subprocess_exec(*command, stdin=connection.fileno())
    try:
        await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()

"""Where the groups of a run lie on their way: ``roles.stream`` as things that work, and in words. No torch in here."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from penstock.config.run import Run
from penstock.config.streams import TransferQueue
from penstock.core.errors import SpecError
from penstock.net.rpc import Client
from penstock.stream.payloads import CARRIED, Payloads

if TYPE_CHECKING:
    from penstock.runtime.hub import Hub
    from penstock.runtime.ray import Cluster

NEVER = 10 * 365 * 86400.0
"""The deadline of a question that is answered when the store moves, which it need not."""


def require_stream(run: Run) -> None:
    """Refuse a run whose stream cannot be opened, before anything is begun.

    Raises:
        SpecError: TransferQueue is not installed, or its ports would be open unasked.
    """
    if not isinstance(run.roles.stream, TransferQueue):
        return
    if importlib.util.find_spec("transfer_queue") is None:
        raise SpecError('roles.stream=TransferQueue needs it: pip install "penstock[transferqueue]"')
    if os.environ.get("RAY_ADDRESS") and not run.roles.stream.open_ports:
        raise SpecError(
            "TransferQueue's sockets ask for no token and unpickle what comes, and the cluster of RAY_ADDRESS may have other "
            "machines; where its network is yours alone, set roles.stream.open_ports=True"
        )


def stream_line(run: Run) -> str:
    """Where groups lie, for ``penstock explain``."""
    require_stream(run)
    chosen = run.roles.stream
    if isinstance(chosen, TransferQueue):
        ports = "its ports open to the cluster's network" if os.environ.get("RAY_ADDRESS") else "on this machine only"
        return f"  groups lie in TransferQueue, {chosen.units} storage units ({ports}); the hub keeps the gate and their cards"
    return "  groups lie in the hub"


@contextlib.asynccontextmanager
async def storing(run: Run, place: Any, hub: Hub) -> AsyncIterator[None]:
    """The store of a run's payloads, as long as its roles live; nothing where groups lie in the hub."""
    chosen = run.roles.stream
    if not isinstance(chosen, TransferQueue):
        yield
        return
    from penstock.runtime.transfer_queue import Units

    cluster: Cluster = place
    units = Units(chosen.units, "127.0.0.1" if cluster.alone else "", cluster.helper, cluster.end, hub.note)
    try:
        await units.open()
        hub.storage = units.newer
        units.sweep(hub.freed, hub.worthless)
        yield
    finally:
        hub.storage = None
        await units.close()


@contextlib.asynccontextmanager
async def payloads_of(run: Run, client: Client, stage: str, name: str) -> AsyncIterator[Payloads]:
    """What a role does with the payload of the groups of a stage. ``client`` is its connection to the hub."""
    if not isinstance(run.roles.stream, TransferQueue):
        yield CARRIED
        return
    from penstock.runtime import transfer_queue

    async def newer(generation: int) -> transfer_queue.Table:
        found: transfer_queue.Table = await client.call("storage", deadline=NEVER, generation=generation)
        return found

    rows = transfer_queue.Client(newer, stage, name)
    try:
        yield Payloads(rows)
    finally:
        await rows.close()

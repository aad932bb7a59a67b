"""Payloads in TransferQueue: rows of one column in its storage units, which are actors of a Ray cluster.

The driver (:class:`Units`) starts TransferQueue's controller and units, replaces those that die, and clears rows that nobody
needs. The hub tells the other processes where they listen; each opens a :class:`Client` and needs no connection to Ray. Of
TransferQueue its store is used; who may draw, take and train is the gate's business.

TransferQueue cannot move the rows of a unit that died, so these are gone and a reader is told; its requests would wait for an
answer for minutes, so whatever is under way is begun again as soon as the hub names another table.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from penstock.core.errors import SpecError, StreamError
from penstock.stream.payloads import Frame

os.environ.setdefault("TQ_LOGGING_LEVEL", "CRITICAL")  # read on import; what goes wrong is said in our own words

try:
    import transfer_queue.controller as _controller
    import transfer_queue.storage.simple_storage as _storage
    from tensordict import TensorDict
    from transfer_queue.client import AsyncTransferQueueClient
    from transfer_queue.sampler import SequentialSampler
    from transfer_queue.utils.zmq_utils import ZMQServerInfo
except ImportError as cause:
    raise SpecError('roles.stream=TransferQueue needs it: pip install "penstock[transferqueue]"') from cause

COLUMN = "frame"
"""The one column of a row: the bytes of a frame."""
ANSWER = 60.0
"""Seconds in which the units answer a request."""
OPENING = 180.0
"""Seconds in which the actors must listen."""
PULSE = 0.5
"""Seconds between two looks at the actors."""
SILENT = 30.0
"""Seconds after which an actor that answers nothing is held dead."""
SWEEP = 5.0
"""Seconds after which rows are looked through at the latest; usually a released batch is the reason."""

Table = Mapping[str, Any]
"""Where the controller and the units listen: ``generation``, ``controller``, ``units``; plain values."""
Newer = Callable[[int], Awaitable[Table]]
"""Waits for a table younger than a generation."""
Worthless = Callable[[str, Sequence[str]], list[str]]
"""Those of a partition's rows that nobody needs."""
Result = TypeVar("Result")


class Client:
    """The rows of a partition, from any process. Every call may be repeated, so one that was cut short is."""

    def __init__(self, newer: Newer, partition: str, name: str) -> None:
        self.newer, self.partition, self.name = newer, partition, name
        self.generation = -1
        self._client: Any = None
        self._refused = ""
        """Why the latest table could not be opened."""
        self._other = asyncio.Event()
        """Set, and replaced, when another table came."""
        self._following = asyncio.create_task(self._follow(), name="follow the units")

    async def close(self) -> None:
        self._following.cancel()
        await asyncio.gather(self._following, return_exceptions=True)
        if self._client is not None:
            await asyncio.to_thread(self._client.close)

    async def put(self, key: str, frame: Frame) -> None:
        """Store a frame. Raises StreamError where the units do not take it."""

        async def work(client: Any) -> None:
            meta = await client.async_kv_retrieve_meta(keys=[key], partition_id=self.partition, create=True)
            await client.async_put(data=TensorDict({COLUMN: frame[None]}, batch_size=1), metadata=meta)

        await self._do(work, f"store {key}")

    async def get(self, keys: Sequence[str]) -> Mapping[str, Frame]:
        """The frames of those keys that are there. Raises StreamError where the units do not answer."""

        async def work(client: Any) -> dict[str, Frame]:
            with contextlib.suppress(LookupError):
                return await self._read(client, keys)
            found: dict[str, Frame] = {}
            for key in keys:  # some are gone, and a request for several does not say which
                with contextlib.suppress(LookupError):
                    found |= await self._read(client, [key])
            return found

        return await self._do(work, f"read {len(keys)} rows") if keys else {}

    async def _read(self, client: Any, keys: Sequence[str]) -> dict[str, Frame]:
        """Raises LookupError where one of them is gone."""
        meta = await client.async_kv_retrieve_meta(keys=list(keys), partition_id=self.partition, create=False)
        if meta.size != len(keys) or COLUMN not in meta.field_names:
            raise LookupError
        try:
            data = await client.async_get_data(meta)
        except RuntimeError as error:
            if "not found" in str(error):  # both of a unit that lost its rows: the row, or the column of all rows
                raise LookupError from error
            raise
        return {key: tensor.numpy() for key, tensor in zip(keys, data[COLUMN].unbind(), strict=True)}

    async def listed(self) -> dict[str, list[str]]:
        """The rows that are stored, by partition."""

        async def work(client: Any) -> dict[str, list[str]]:
            return {name: list(rows) for name, rows in (await client.async_kv_list()).items()}

        return await self._do(work, "list rows")

    async def clear(self, partition: str, keys: Sequence[str]) -> None:
        """Forget rows."""

        async def work(client: Any) -> None:
            meta = await client.async_kv_retrieve_meta(keys=list(keys), partition_id=partition, create=False)
            if meta.size:
                await client.async_clear_samples(meta)

        await self._do(work, f"clear {len(keys)} rows")

    async def _do(self, work: Callable[[Any], Awaitable[Result]], what: str) -> Result:
        """Carry a request out; again with every table that comes meanwhile.

        Raises:
            StreamError: no table, or no answer, came within :data:`ANSWER` seconds.
        """
        said = ""
        while True:
            other, client = self._other, self._client
            waiting = asyncio.ensure_future(other.wait())
            doing = asyncio.ensure_future(work(client)) if client is not None else None
            try:
                ends: set[asyncio.Future[Any]] = {waiting} if doing is None else {waiting, doing}
                await asyncio.wait(ends, timeout=ANSWER, return_when=asyncio.FIRST_COMPLETED)
                if doing is not None and doing.done():
                    error = doing.exception()
                    if error is None:
                        return doing.result()
                    said = f": {error}"
                    await asyncio.wait({waiting}, timeout=SILENT)  # it may be one that died just now
                if not waiting.done():
                    raise StreamError(
                        f"TransferQueue did not {what} for {self.name}{said or self._refused or f' within {ANSWER:.0f} s'}"
                    )
            finally:
                for task in (waiting, *([doing] if doing is not None else [])):
                    task.cancel()

    async def _follow(self) -> None:
        """Open a client for each table; for ever."""
        while True:
            table = await self.newer(self.generation)
            try:
                made = await asyncio.to_thread(_opened, table, self.name)
            except Exception as error:  # its controller died before it answered; another table comes, or this one works yet
                self._refused = f": {error}"
                await asyncio.sleep(PULSE)
                continue
            before, self._client, self._refused = self._client, made, ""
            self.generation = int(table["generation"])
            self._other.set()
            self._other = asyncio.Event()
            if before is not None:
                await asyncio.sleep(0)  # those who waited on it let go first
                await asyncio.to_thread(before.close)


def _opened(table: Table, name: str) -> Any:
    infos = {one["id"]: _info(one, _storage.Role.STORAGE) for one in table["units"]}
    client = AsyncTransferQueueClient(name, _info(table["controller"], _controller.Role.CONTROLLER))
    try:
        client.initialize_storage_manager("SimpleStorage", {"zmq_info": infos})
    except BaseException:
        client.close()  # one that is collected with open sockets stands still in its finalizer
        raise
    return client


def _info(one: Mapping[str, Any], role: Any) -> Any:
    return ZMQServerInfo(role, one["id"], one["ip"], dict(one["ports"]))


def _plain(info: Any) -> dict[str, Any]:
    return {"id": info.id, "ip": info.ip, "ports": dict(info.ports)}


def _listening(module: Any, address: str) -> None:
    """Have TransferQueue listen on ``address`` in this process; it would take the node's, also where all is on one machine."""
    if address:
        module.get_node_ip_address = lambda: address


class Controller(_controller.TransferQueueController.__ray_metadata__.modified_class):  # type: ignore[misc]
    """TransferQueue's controller on an address of ours; empty: the node's."""

    def __init__(self, address: str) -> None:
        _listening(_controller, address)
        super().__init__(sampler=SequentialSampler(), polling_mode=True)


class Unit(_storage.SimpleStorageUnit.__ray_metadata__.modified_class):  # type: ignore[misc]
    """A storage unit of TransferQueue on an address of ours; empty: the node's."""

    def __init__(self, address: str, units: int) -> None:
        _listening(_storage, address)
        super().__init__({"num_data_storage_units": units})


class Units:
    """The actors, watched by the driver.

    Args:
        units: how many storage units.
        address: where they listen; empty: on their nodes' addresses.
        actor: makes an actor of a class and its arguments; with ``here=True`` on the driver's node, which outlives all others.
        kill: ends an actor.
        note: hears of actors that died, as ``note(what, **fields)``.
    """

    def __init__(
        self,
        units: int,
        address: str,
        actor: Callable[..., Any],
        kill: Callable[[Any], None],
        note: Callable[..., None],
    ) -> None:
        self.count, self.address, self.actor, self.kill, self.note = units, address, actor, kill, note
        self.table: Table = {"generation": -1}
        self.controller: Any = None
        self.units: list[Any] = []
        self._changed = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Start everything; returns once it listens.

        Raises:
            SpecError: an actor cannot be started, or did not listen within :data:`OPENING` seconds.
        """
        try:
            await asyncio.wait_for(self._begin(), OPENING)
        except Exception as cause:  # Ray's errors are many, and a node's own import errors come as one of them
            said = str(cause).strip().splitlines() or [f"nothing within {OPENING:.0f} s"]
            raise SpecError(
                f'TransferQueue does not start: {said[-1]}; all nodes of the cluster need pip install "penstock[transferqueue]"'
            ) from cause
        self._tasks.append(asyncio.create_task(self._watch(), name="watch the units"))

    def sweep(self, freed: asyncio.Event, worthless: Worthless) -> None:
        """Clear rows that are ``worthless``, whenever ``freed`` is set, from now on."""
        self._tasks.append(asyncio.create_task(sweep(self.newer, freed, worthless, self.note), name="sweep the units"))

    async def newer(self, generation: int) -> Table:
        """The table, once it is younger than ``generation``."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.table["generation"] > generation)
            return self.table

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for actor in (*self.units, self.controller):
            if actor is not None:
                self.kill(actor)

    async def _begin(self) -> None:
        """A controller and units that hold nothing."""
        for actor in (*self.units, *([self.controller] if self.controller is not None else [])):
            self.kill(actor)
        self.controller = self.actor(Controller, self.address, here=True)
        self.units = [self._unit() for _ in range(self.count)]
        await self._tell()

    def _unit(self) -> Any:
        return self.actor(Unit, self.address, self.count)

    async def _tell(self) -> None:
        """Make the table anew, once all of them listen."""
        infos = await asyncio.gather(*(one.get_zmq_server_info.remote() for one in (self.controller, *self.units)))
        async with self._changed:
            self.table = {
                "generation": self.table["generation"] + 1,
                "controller": _plain(infos[0]),
                "units": [_plain(info) for info in infos[1:]],
            }
            self._changed.notify_all()

    async def _watch(self) -> None:
        """Replace who died: a unit by an empty one in its place; with the controller goes the knowledge of all rows."""
        while True:
            await asyncio.sleep(PULSE)
            living = await asyncio.gather(*(_lives(one) for one in (self.controller, *self.units)))
            if all(living):
                continue
            what = "its controller" if not living[0] else f"{living[1:].count(False)} of {self.count} storage units"
            self.note("payload store lost", reason=f"TransferQueue lost {what}; groups that lay there are drawn again")
            with contextlib.suppress(Exception):  # one that dies while it begins is found the next time
                if living[0]:
                    self.units = [one if lives else self._unit() for one, lives in zip(self.units, living[1:], strict=True)]
                    await self._tell()
                else:
                    await self._begin()


async def sweep(newer: Newer, freed: asyncio.Event, worthless: Worthless, note: Callable[..., None]) -> None:
    """Clear rows that are ``worthless``, whenever ``freed`` is set, for ever; ``note`` hears of what could not be cleared."""
    client = Client(newer, "", "the driver")
    try:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(freed.wait(), SWEEP)
            freed.clear()
            try:
                for partition, rows in (await client.listed()).items():
                    if chosen := worthless(partition, rows):
                        await client.clear(partition, chosen)
            except StreamError as error:
                note("payload store not cleared", reason=str(error))
    finally:
        await client.close()


async def _lives(actor: Any) -> bool:
    """Whether an actor answers."""
    try:
        await asyncio.wait_for(actor.get_zmq_server_info.remote(), SILENT)
    except Exception:  # Ray's errors, or no answer: either way it is of no use
        return False
    return True

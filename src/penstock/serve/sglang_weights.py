"""How weights reach the processes of an SGLang server: a model folder that it reads, or a process group."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from penstock.core.errors import GenerationError, PenstockError, WeightError
from penstock.serve.http_client import HttpClient

Write = Callable[[Mapping[str, Any], Path], None]
"""Writes tensors as a model folder in Hugging Face format."""


class FromDisk:
    """Writes each version into a folder that the server can read, and lets it load that (``update_weights_from_disk``)."""

    def __init__(self, folder: Path, write: Write) -> None:
        self.folder, self.write = folder, write
        self._held: tuple[Path, str] | None = None
        """The folder and the label of the weights in use."""

    async def send(self, client: HttpClient, tensors: Mapping[str, Any], label: str, flush: bool) -> None:
        """Raises WeightError where the server refuses the folder, GenerationError where it then takes not even the last one."""
        path = self.folder / label
        await asyncio.to_thread(self.write, tensors, path)
        try:
            await self._load(client, path, label, flush)
        except GenerationError as error:
            await asyncio.to_thread(shutil.rmtree, path, True)
            if self._held is not None:  # the server falls back on the weights that it was started with, not on the last
                await self._load(client, *self._held, flush)
            raise WeightError(f"weight update {label} refused by SGLang: {error}") from error
        old, self._held = self._held, (path, label)
        if old is not None:
            await asyncio.to_thread(shutil.rmtree, old[0], True)

    async def close(self, client: HttpClient) -> None:
        """The folders are their owner's to remove."""

    async def _load(self, client: HttpClient, path: Path, label: str, flush: bool) -> None:
        body = {"model_path": str(path), "weight_version": label, "flush_cache": flush}
        require_success(await client.post("/update_weights_from_disk", body))


class Trainer(Protocol):
    """Rank 0 of a process group with the server's processes (:class:`penstock.weights.process_group.EngineGroup`)."""

    address: str
    port: int
    name: str
    backend: str

    def join(self, world: int) -> None:
        """Enter the group of ``world`` processes; blocks."""
        ...

    def broadcast(self, pairs: Sequence[tuple[str, Any]]) -> None:
        """Broadcast tensors in their order; blocks."""
        ...

    def close(self) -> None: ...


class FromGroup:
    """Broadcasts each version to the server's processes, which are ranks 1 and on of a group
    (``update_weights_from_distributed``)."""

    def __init__(self, open_group: Callable[[], Trainer]) -> None:
        """``open_group`` opens a group that nobody has joined: with the first update, and again where that has failed."""
        self.open_group = open_group
        self._group: Trainer | None = None

    async def send(self, client: HttpClient, tensors: Mapping[str, Any], label: str, flush: bool) -> None:
        """Raises WeightError where there is no group with the server, GenerationError where a broadcast breaks: some tensors
        may be new by then."""
        group = self._group = self._group or await self._joined(client, label)
        pairs = list(tensors.items())
        body = {
            "names": [name for name, _ in pairs],
            "dtypes": [str(tensor.dtype).removeprefix("torch.") for _, tensor in pairs],
            "shapes": [list(tensor.shape) for _, tensor in pairs],
            "group_name": group.name,
            "flush_cache": flush,
            "weight_version": label,
        }
        sending = _aside(partial(group.broadcast, pairs))
        answer, _ = await asyncio.gather(client.post("/update_weights_from_distributed", body), sending)
        require_success(answer)

    async def _joined(self, client: HttpClient, label: str) -> Trainer:
        group: Trainer | None = None
        try:
            world = 1 + await workers_of(client)
            group = await asyncio.to_thread(self.open_group)
            body = {
                "master_address": group.address, "master_port": group.port, "rank_offset": 1, "world_size": world,
                "group_name": group.name, "backend": group.backend,
            }  # fmt: skip
            joining = _aside(partial(group.join, world))
            answer, _ = await asyncio.gather(client.post("/init_weights_update_group", body), joining)
            require_success(answer)
        except PenstockError as error:
            if group is not None:
                group.close()
            raise WeightError(f"weight update {label} refused: no process group with {client.url}: {error}") from error
        return group

    async def close(self, client: HttpClient) -> None:
        """Leave the group, and have the server leave it."""
        if self._group is not None:
            group, self._group = self._group, None
            with contextlib.suppress(PenstockError):  # a server that is gone has left
                await client.post("/destroy_weights_update_group", {"group_name": group.name})
            group.close()


def _aside(work: Callable[[], None]) -> asyncio.Future[None]:
    """Run work in a thread that nobody waits for where the server has said no: the work's own deadline ends it."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def tell(error: Exception | None) -> None:
        if not done.done():
            done.set_exception(error) if error else done.set_result(None)

    def run() -> None:
        problem = None
        try:
            work()
        except Exception as error:
            problem = error
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(tell, problem)

    threading.Thread(target=run, name="weights", daemon=True).start()
    return done


async def workers_of(client: HttpClient) -> int:
    """How many processes of a server hold a part of its model.

    Raises:
        GenerationError: it does not say, or it holds several models or stages, whose processes have no ranks of their own.
    """
    try:
        found = await client.get("/server_info")
    except GenerationError:  # what older servers call it
        found = await client.get("/get_server_info")
    for name in ("dp_size", "pp_size"):
        if found.get(name, 1) != 1:
            raise GenerationError(
                f"the server has {name}={found[name]}, and a process group needs 1; set roles.engine.weights=disk"
            )
    if not isinstance(found.get("tp_size"), int):
        raise GenerationError("the server does not say its tp_size; set roles.engine.weights=disk")
    return int(found["tp_size"])


def require_success(answer: Mapping[str, Any]) -> None:
    """Raises GenerationError for an answer that says so."""
    if not answer.get("success", False):
        raise GenerationError(str(answer.get("message") or "the server gave no reason"))

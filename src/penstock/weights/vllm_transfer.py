"""Weights on their way into vLLM's workers: a weight-transfer engine of vLLM's, registered by a plugin of vLLM's.

vLLM calls :func:`register` in each of its processes (entry point ``vllm.general_plugins``). An update has vLLM's phases:
``start`` does nothing; ``update`` receives and verifies the snapshot (``worker_loader.ReceiveBuffer``), which may be
refused as long as no byte has changed; ``finish`` loads it through the model's own loader, layer by layer, which packs the
weights anew for the kernels that run. Between the last two vLLM decodes on, and the generator's process asks every worker how
far it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.lora.lora_model import LoRAModel
from vllm.lora.peft_helper import PEFTHelper
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from penstock.core.errors import WeightError
from penstock.weights.worker_loader import BACKEND, ReceiveBuffer

ADAPTER = 1
"""Number of the only adapter, which requests name."""


def register() -> None:
    """Make the transfer known to vLLM, once in each process."""
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, "penstock.weights.vllm_transfer", "Transfer")


@dataclass
class Nothing(WeightTransferInitInfo):
    """What ``init_weight_transfer_engine`` would be called with: the workers need nothing before their first update."""


@dataclass
class Sent(WeightTransferUpdateInfo):
    """What ``update_weights`` is called with: a manifest of ``worker_loader.WorkerLoader``."""

    manifest: Mapping[str, Any]
    adapter: Mapping[str, float] = field(default_factory=dict)
    """Rank and alpha where the weights are low-rank adapters; empty: they are the model's own."""


class Transfer(WeightTransferEngine[Nothing, Sent]):
    """A worker's side of the transfer."""

    init_info_cls = Nothing
    update_info_cls = Sent
    supports_draft_weight_update = False

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.buffer = ReceiveBuffer()
        self.adapters: Any = None
        """vLLM's own manager of adapters, where the engine was opened for them."""
        self.adapter: LoRAModel | None = None
        """The adapter that is to be put in place."""
        self.sums: Sequence[str] = ()
        """Checksums of the snapshot whose weights are in use."""

    def init_transfer_engine(self, init_info: Nothing) -> None:
        pass

    def start_weight_update(self) -> None:
        self.drop()

    def receive_weights(self, update_info: Sent) -> None:
        """Receive a snapshot; whether it is refused the buffer says, and nothing has changed until it is loaded."""
        scale = update_info.adapter
        self.buffer.receive(update_info.manifest, lambda tensors: self._adapter_of(tensors, scale) if scale else None)

    def _adapter_of(self, tensors: list[tuple[str, Tensor]], scale: Mapping[str, float]) -> LoRAModel:
        return adapter_model(tensors, scale, self.adapters.lora_config.lora_dtype)

    def finish_weight_update(self) -> None:
        """Switch over. An error from here on leaves a model that is neither old nor new: the engine must be ended."""
        received = self.buffer.take()
        self.adapter = received.prepared
        if self.adapter is None:
            initialize_layerwise_reload(self.model)
            wanted = {name for name, parameter in self.model.named_parameters() if parameter.numel()}
            loaded = self.model.load_weights(iter(received.tensors))
            finalize_layerwise_reload(self.model, self.model_config)
            if loaded is not None:
                settle_tied(self.model, loaded, wanted - loaded)
        self.sums = received.sums

    def replace_adapter(self) -> None:
        """Put the adapter that was taken in the place of the one before it, under the same number: requests in flight go on
        with it. To be called after :meth:`finish_weight_update`, at whose end vLLM forgets all adapters.

        Raises:
            WeightError: none was taken.
        """
        if self.adapter is None:
            raise WeightError("replace_adapter came without an adapter; call update_weights first")
        self.adapters.remove_adapter(ADAPTER)
        self.adapters.add_adapter(self.adapter)
        self.adapters.activate_adapter(ADAPTER)
        self.adapter = None

    def drop(self) -> None:
        """Forget an update that is not to be loaded."""
        self.buffer.drop()
        self.adapter = None

    def shutdown(self) -> None:
        self.drop()


def adapter_model(tensors: list[tuple[str, Tensor]], scale: Mapping[str, float], dtype: torch.dtype) -> LoRAModel:
    """vLLM's form of adapters with peft's names. A copy: vLLM scales and packs it in place."""
    peft = PEFTHelper(r=int(scale["rank"]), lora_alpha=scale["alpha"], target_modules=[])  # type: ignore[arg-type]
    copies = {name: tensor.clone() for name, tensor in tensors}
    return LoRAModel.from_lora_tensors(ADAPTER, copies, peft, device="cpu", dtype=dtype)


def settle_tied(model: Any, loaded: set[str], lost: set[str]) -> None:
    """Pack tied weights anew: vLLM loads them where they are first used, and its CPU kernels keep a copy where else they are.

    Raises:
        WeightError: a parameter was not loaded and is not one that was.
    """
    fresh = {parameter.data_ptr() for name, parameter in model.named_parameters(remove_duplicate=False) if name in loaded}
    for name in sorted(lost):
        path, _, leaf = name.rpartition(".")
        module = model.get_submodule(path)
        if getattr(module, leaf).data_ptr() not in fresh:
            raise WeightError(f'vLLM loaded no weights into "{name}"')
        module.quant_method.process_weights_after_loading(module)


class WorkerExtension:
    """What vLLM's worker class learns besides its own methods (``worker_extension_cls``)."""

    weight_transfer_engine: Any
    model_runner: Any
    _weight_update_active: bool

    def penstock_refusal(self) -> str:
        """Why the worker does not take the update that was sent; "" where it has it."""
        return self.weight_transfer_engine.buffer.refusal  # type: ignore[no-any-return]

    def penstock_drop(self) -> None:
        """End an update that is not to be loaded, for which vLLM has no word."""
        self.weight_transfer_engine.drop()
        self._weight_update_active = False

    def penstock_adapters(self) -> None:
        """Let the transfer replace adapters; the engine was opened with room for one."""
        self.weight_transfer_engine.adapters = self.model_runner.lora_manager._adapter_manager

    def penstock_replace_adapter(self) -> None:
        self.weight_transfer_engine.replace_adapter()

    def penstock_sums(self) -> list[str]:
        """Checksums of the snapshot that the worker's weights were loaded from."""
        return list(self.weight_transfer_engine.sums)

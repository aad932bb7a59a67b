"""Weights on their way into vLLM's workers: a weight-transfer engine of vLLM's, registered by a plugin of vLLM's.

vLLM calls :func:`register` in each of its processes (entry point ``vllm.general_plugins``). An update has vLLM's phases:
``start`` does nothing; ``update`` maps and verifies the image, which may be refused as long as no byte has changed; ``finish``
loads it through the model's own loader, layer by layer, which packs the weights anew for the kernels that run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from penstock.core.errors import WeightError
from penstock.weights.handover import take

BACKEND = "penstock"
"""What ``WeightTransferConfig.backend`` is set to."""


def register() -> None:
    """Make the transfer known to vLLM, once in each process."""
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, "penstock.weights.vllm_transfer", "Transfer")


@dataclass
class Opening(WeightTransferInitInfo):
    """Nothing has to be agreed on beforehand."""


@dataclass
class Sent(WeightTransferUpdateInfo):
    """What ``update_weights`` is called with: a manifest of :class:`penstock.weights.handover.Handover`."""

    manifest: Mapping[str, Any]


class Transfer(WeightTransferEngine[Opening, Sent]):
    """A worker's side of the transfer."""

    init_info_cls = Opening
    update_info_cls = Sent
    supports_draft_weight_update = False

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.taken: tuple[list[tuple[str, Tensor]], Sequence[str]] | None = None
        self.sums: Sequence[str] = ()
        """Checksums of the image whose weights are in use."""

    def init_transfer_engine(self, init_info: Opening) -> None:
        self.taken, self.sums = None, ()

    def start_weight_update(self) -> None:
        self.taken = None

    def receive_weights(self, update_info: Sent) -> None:
        """Raises WeightError where the image is not what its manifest says; nothing has changed then."""
        self.taken = take(update_info.manifest)

    def finish_weight_update(self) -> None:
        """Switch over. An error from here on leaves a model that is neither old nor new: the engine must be ended."""
        if self.taken is None:
            raise WeightError("finish_weight_update came without weights; call update_weights first")
        (tensors, sums), self.taken = self.taken, None
        initialize_layerwise_reload(self.model)
        wanted = {name for name, parameter in self.model.named_parameters() if parameter.numel()}
        loaded = self.model.load_weights(iter(tensors))
        finalize_layerwise_reload(self.model, self.model_config)
        if loaded is not None:
            settle_tied(self.model, loaded, wanted - loaded)
        self.sums = sums

    def shutdown(self) -> None:
        self.taken = None


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
    """What vLLM's worker class learns beside its own methods (``worker_extension_cls``)."""

    weight_transfer_engine: Any

    def penstock_sums(self) -> list[str]:
        """Checksums of the image that the worker's weights were loaded from."""
        return list(self.weight_transfer_engine.sums)

"""A rank's part of a learner whose parameters, gradients and optimizer are sharded by ``fully_shard`` (FSDP2).

Each block of the model is gathered when it computes and given up afterwards (Rajbhandari et al. 2020, arXiv:1910.02054, ZeRO-3;
Zhao et al. 2023, arXiv:2304.11277). Shards are float32 and are the masters; with ``dtype="bfloat16"`` blocks are gathered
as bfloat16 and gradients are summed in float32, as on one device.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from penstock.config.learner import LearnerSpec
from penstock.config.strategies import FSDP2, refuse_shape
from penstock.core.contracts import FULL_STEP, Caution
from penstock.core.errors import ModelError
from penstock.core.types import Metrics
from penstock.models.freezing import blocks_of
from penstock.models.language_model import LanguageModel
from penstock.train.optimizer import Masters
from penstock.train.part import Part, Pass
from penstock.train.sequence import Sequence
from penstock.train.skeleton import fill, materialise, tensors_of
from penstock.train.vocabulary import SplitHead, local, split_vocabulary
from penstock.train.world import World

LLAMA = {
    "self_attn.q_proj": ColwiseParallel,
    "self_attn.k_proj": ColwiseParallel,
    "self_attn.v_proj": ColwiseParallel,
    "self_attn.o_proj": RowwiseParallel,
    "mlp.gate_proj": ColwiseParallel,
    "mlp.up_proj": ColwiseParallel,
    "mlp.down_proj": RowwiseParallel,
}
NEOX = {
    "attention.query_key_value": ColwiseParallel,  # whole heads after each other: queries, keys and values of each together
    "attention.dense": RowwiseParallel,
    "mlp.dense_h_to_4h": ColwiseParallel,
    "mlp.dense_4h_to_h": RowwiseParallel,
}
PLANS: dict[str, dict[str, type[Any]]] = {"llama": LLAMA, "qwen2": LLAMA, "mistral": LLAMA, "gpt_neox": NEOX}
"""Names of linear layers within a block and how they are split, by the model type of transformers (Shoeybi et al. 2019,
arXiv:1909.08053): projections into heads and into the feed-forward's width by columns, those back by rows, so each of a block's
two branches needs one sum over the ranks. Heads stay whole. :mod:`penstock.train.vocabulary` splits embeddings and head."""


def check_plan(config: Any, strategy: FSDP2) -> None:
    """Refuse a model that a strategy cannot cut.

    Raises:
        ModelError: its type has no plan, or its heads or its vocabulary do not divide.
    """
    if strategy.tensor_parallel > 1 and config.model_type not in PLANS:
        raise ModelError(
            f"strategy.tensor_parallel={strategy.tensor_parallel}: there is no plan that splits {config.model_type}; known are "
            f"{', '.join(PLANS)}; set strategy.tensor_parallel=1"
        )
    heads = config.num_attention_heads
    refuse_shape(strategy, heads, getattr(config, "num_key_value_heads", None) or heads, config.vocab_size)


def split_block(block: nn.Module, model_type: str, mesh: DeviceMesh) -> None:
    """Split a filled block's matrices over the ranks of ``mesh``; each keeps its part of what it has."""
    plan: dict[str, ParallelStyle] = {name: style() for name, style in PLANS[model_type].items()}
    parallelize_module(block, mesh, plan, src_data_rank=None)


logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)  # a shard of a shard takes two gathers

DATA, TENSOR = "data", "tensor"
"""Axes of the ranks: those that hold shards of a parameter, and those that every matrix is split over."""


class ShardMasters(Masters):
    """Masters of the shards that this rank holds; they are the shards themselves."""

    def __init__(self, module: nn.Module, spec: LearnerSpec, world: World, copies: int) -> None:
        self.world, self.copies = world, copies
        super().__init__(module, spec)

    def _master_of(self, parameter: nn.Parameter) -> Tensor:
        return local(parameter).detach().requires_grad_(True)

    def collect(self) -> None:
        """Take the gradients of the shards over from the parameters."""
        for parameter, master in zip(self.parameters.values(), self.masters, strict=True):
            master.grad = None if parameter.grad is None else local(parameter.grad)
            parameter.grad = None

    def drop(self) -> None:
        for parameter in self.parameters.values():
            parameter.grad = None
        super().drop()

    def norm(self, gradients: list[Tensor]) -> Tensor:
        """Of the whole gradient: squares are summed over shards, and once for what ranks hold in common."""
        square = torch.zeros((), device=self.world.device, dtype=torch.float64)
        for parameter, master in zip(self.parameters.values(), self.masters, strict=True):
            if master.grad is not None:
                own = master.grad.to(self.world.device).square().sum(dtype=torch.float64)
                square += own if is_split(parameter) else own / self.copies
        return self.world.total(square).sqrt().to(gradients[0])

    def mean_square(self, values: Tensor) -> float:
        return self.world.mean_square(values)

    def _write_back(self) -> None:
        """The masters are the parameters."""


class ShardedPart(Part):
    """A rank's shards of parameters, gradients and moments."""

    def _made_ready(self) -> Masters:
        assert isinstance(self.spec.strategy, FSDP2)
        strategy = self.spec.strategy
        check_plan(self.model.config, strategy)
        self.mesh = mesh_of(self.world, strategy.tensor_parallel)
        self.sequence = sequence_of(self.world, strategy)
        head = sharded(self.model, self.spec, self.mesh, self._source, self.world)
        if head is not None:
            self.policy.vocabulary = head
        self.passing: Any = Pass(self.policy)
        shard(self.passing, self.spec, self.mesh[DATA], keep=True)
        return ShardMasters(self.model, self.spec, self.world, strategy.tensor_parallel)

    def outputs(self, batch: Any, needs: frozenset[str]) -> dict[str, Tensor]:
        tensors = self.policy.tensors(batch, needs)
        with warnings.catch_warnings():  # nobody writes into what a module gave, which is what it warns of
            warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
            if self.sequence is None:
                found: dict[str, Tensor] = self.passing(tensors, needs)
                return found
            own = self.sequence.split(tensors)
            return self.sequence.join(self.passing(own.tensors, needs), own, self.policy.per_row)

    def settle(self) -> None:
        """Give gathered parameters up: after a step they would be stale."""
        for module in self.passing.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def optimise(self, caution: Caution = FULL_STEP) -> Metrics:
        assert isinstance(self.masters, ShardMasters)
        self.masters.collect()
        self.settle()
        return super().optimise(caution)

    @torch.no_grad()
    def whole(self, name: str) -> Tensor:
        kind, _, of = name.partition(".")
        if kind == "step":
            return self.masters.state().arrays[name]
        parameter = self.masters.parameters[of]
        values = local(parameter) if kind in ("parameter", "master") else self.masters.state().arrays[name]
        like = parameter.data
        assert isinstance(like, DTensor)
        made = DTensor.from_local(
            values.to(self.world.device), like.device_mesh, like.placements, run_check=False, shape=like.shape,
            stride=like.stride(),
        )  # fmt: skip
        return made.full_tensor()

    def share(self, name: str, array: Tensor) -> Tensor:
        kind, _, of = name.partition(".")
        parameter = self.masters.parameters.get(of)
        return array if parameter is None or kind == "step" else own_part(array, parameter).to(local(parameter).device)

    def table(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        shapes = {name: tuple(parameter.shape) for name, parameter in self.masters.parameters.items()}
        return {
            name: (kind, shapes[name.partition(".")[2]] if shape else shape)
            for name, (kind, shape) in super().table().items()
            if name != "noise"
        }


def is_split(tensor: Tensor) -> bool:
    """Whether the ranks of one copy hold different parts of a distributed tensor."""
    assert isinstance(tensor, DTensor)
    axes = zip(tensor.device_mesh.mesh_dim_names or (), tensor.placements, strict=True)
    return any(axis == TENSOR and hasattr(placement, "dim") for axis, placement in axes)


def own_part(whole: Tensor, like: Tensor) -> Tensor:
    """This rank's part of a whole tensor that is to be cut as ``like`` is."""
    assert isinstance(like, DTensor)
    mesh, coordinate = like.device_mesh, like.device_mesh.get_coordinate()
    assert coordinate is not None
    for axis in reversed(range(mesh.ndim)):  # tensor parallelism cut first, data parallelism what it left
        dimension = getattr(like.placements[axis], "dim", None)
        if dimension is not None:
            pieces = whole.chunk(mesh.size(axis), dimension)
            here = coordinate[axis]
            whole = pieces[here] if here < len(pieces) else whole.narrow(dimension, 0, 0)
    return whole


def mesh_of(world: World, tensor: int) -> DeviceMesh:
    """The ranks as those that hold shards × those that split matrices. Ranks of a sequence hold shards like any others: each
    gives a parameter's gradient over its own tokens, and all are summed."""
    return init_device_mesh(world.device.type, (world.size // tensor, tensor), mesh_dim_names=(DATA, TENSOR))


def sequence_of(world: World, strategy: FSDP2) -> Sequence | None:
    """The ranks that share the tokens of this rank's micro-batches, where there are more than this one."""
    if strategy.sequence_parallel == 1:
        return None
    shape = (world.size // strategy.span, strategy.sequence_parallel, strategy.tensor_parallel)
    mesh = init_device_mesh(world.device.type, shape, mesh_dim_names=("copy", "sequence", TENSOR))["sequence"]
    return Sequence(mesh.get_group(), mesh.get_local_rank(), strategy.sequence_parallel)


def shard(module: nn.Module, spec: LearnerSpec, mesh: DeviceMesh, keep: bool = False) -> None:
    """Shard what a module holds and no module within it does. ``keep`` what was gathered until the backward pass."""
    strategy: Any = spec.strategy
    half = torch.bfloat16 if spec.dtype == "bfloat16" else None
    policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=half and torch.float32, cast_forward_inputs=False)
    more: dict[str, Any] = {"offload_policy": CPUOffloadPolicy()} if strategy.offload and mesh.device_type == "cuda" else {}
    made: Any = fully_shard(module, mesh=mesh, reshard_after_forward=strategy.reshard and not keep, mp_policy=policy, **more)
    made.set_gradient_divide_factor(1.0)  # losses have the whole batch's denominator, so gradients are summed
    made.set_force_sum_reduction_for_comms(True)  # gloo has no scaled sum


def sharded(
    model: LanguageModel, spec: LearnerSpec, mesh: DeviceMesh, source: Mapping[str, Tensor] | None, world: World
) -> SplitHead | None:
    """Fill a model without memory from rank 0 and shard it, block by block: no rank but the first ever holds it whole.

    Gives what scores tokens where the output head is split over ranks.

    Raises:
        ModelError: blocks cannot be found.
    """
    split = mesh[TENSOR].size() > 1
    trunks = [trunk for trunk in (model.network.base_model, model.critic_trunk) if trunk is not None]
    blocks = {id(block) for trunk in trunks for block in blocks_of(trunk)}
    for name, block in list(model.named_modules()):
        if id(block) in blocks:
            materialise(block, world.device)
            fill({f"{name}.{own}": tensor for own, tensor in tensors_of(block).items()}, source, world)
            if split:
                split_block(block, model.config.model_type, mesh[TENSOR])
            shard(block, spec, mesh[DATA])
    materialise(model, world.device)
    fill({name: tensor for name, tensor in tensors_of(model).items() if not isinstance(tensor, DTensor)}, source, world)
    head = split_vocabulary(model, mesh[TENSOR]) if split else None
    if model.value_head is not None:
        shard(model.value_head, replace(spec, dtype="float32"), mesh[DATA])
    return head

"""Plans by which the matrices of a block are split over the ranks of one copy (Shoeybi et al. 2019, arXiv:1909.08053).

Projections into heads and into the feed-forward's width are split by columns, those back by rows, so each of a block's two
branches needs one sum over the ranks. Heads stay whole. :mod:`penstock.train.vocabulary` splits embeddings and head.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from penstock.config.strategies import FSDP2, refuse_shape
from penstock.core.errors import ModelError

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
"""Names of linear layers within a block and how they are split, by the model type of transformers."""


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

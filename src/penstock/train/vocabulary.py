"""Embeddings and output head split by rows of the vocabulary over the ranks of one copy (Shoeybi et al., arXiv:1909.08053).

A rank computes the logits of its own rows alone; log-probs and entropies need three sums over the ranks of one number a token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as distributed
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn import functional

from penstock.config.strategies import FSDP2, refuse_shape
from penstock.core.errors import ModelError
from penstock.models.language_model import LanguageModel
from penstock.models.outputs import entropy_of
from penstock.train.world import common, summed


@dataclass(frozen=True)
class Rows:
    """The rows of a vocabulary that one rank holds: as many on each, but for the last ranks."""

    start: int
    count: int

    @staticmethod
    def of(vocabulary: int, rank: int, ranks: int) -> Rows:
        """Those of a rank. Raises ModelError where a rank would hold none."""
        refuse_shape(FSDP2(ranks=ranks, tensor_parallel=ranks), ranks, ranks, vocabulary)
        each = -(-vocabulary // ranks)
        return Rows(rank * each, min(each, vocabulary - rank * each))

    def local(self, token: Tensor) -> tuple[Tensor, Tensor]:
        """Row on this rank of each token, and whether it is here; 0 where it is not."""
        row = token - self.start
        here = (row >= 0) & (row < self.count)
        return torch.where(here, row, 0), here


class SplitEmbedding(nn.Embedding):
    """Embeddings of which this rank holds ``rows``; gives whole ones on all ranks."""

    def __init__(self, whole: nn.Embedding, mesh: DeviceMesh) -> None:
        super().__init__(whole.num_embeddings, whole.embedding_dim, whole.padding_idx, device="meta")
        self.group, self.rows = mesh.get_group(), rows_of(whole.weight, mesh)
        self.weight = split_rows(whole.weight, mesh)
        padding = -1 if self.padding_idx is None else self.padding_idx - self.rows.start
        self.own_padding = padding if 0 <= padding < self.rows.count else None

    def forward(self, token_BN: Tensor) -> Tensor:
        row, here = self.rows.local(token_BN)
        own = functional.embedding(row, local(self.weight), self.own_padding)
        return summed(own * here[..., None], self.group)


class SplitHead:
    """The vocabulary of a model whose output head is split: what a language policy scores tokens with."""

    def __init__(self, model: LanguageModel, mesh: DeviceMesh) -> None:
        self.model, self.group = model, mesh.get_group()
        self.rows = rows_of(model.network.get_output_embeddings().weight, mesh)
        self.width = -(-model.network.get_output_embeddings().weight.shape[0] // mesh.size())

    def logits(self, hidden_AH: Tensor) -> Tensor:
        """Next-token logits ``[A, v]`` of this rank's rows, at least in float32."""
        head = self.model.network.get_output_embeddings()
        return self.model.scaled(functional.linear(common(hidden_AH, self.group), local(head.weight)))

    def scores(self, logits_Av: Tensor, target_A: Tensor, entropy: bool) -> tuple[Tensor, ...]:
        """Log-probs ``[A]`` of targets and entropies ``[A]`` under the softmax over the rows of all ranks."""
        highest_A = logits_Av.detach().amax(-1)
        distributed.all_reduce(highest_A, distributed.ReduceOp.MAX, self.group)
        total_A = summed((logits_Av - highest_A[:, None]).exp().sum(-1), self.group)
        logsumexp_A = highest_A + total_A.log()
        row_A, here_A = self.rows.local(target_A)
        own_A = logits_Av.gather(-1, row_A[:, None]).squeeze(-1)
        logp_A = summed(torch.where(here_A, own_A, 0), self.group) - logsumexp_A
        if not entropy:
            return (logp_A,)
        return logp_A, summed(entropy_of(logits_Av - common(logsumexp_A, self.group)[:, None]), self.group)


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a distributed tensor; its gradient goes back to the whole."""
    assert isinstance(tensor, DTensor)
    return tensor.to_local()


def rows_of(weight: Tensor, mesh: DeviceMesh) -> Rows:
    """The rows of a matrix over a vocabulary that this rank of ``mesh`` holds."""
    return Rows.of(weight.shape[0], mesh.get_local_rank(), mesh.size())


def split_rows(weight: Tensor, mesh: DeviceMesh) -> nn.Parameter:
    """A whole parameter cut by rows; each rank keeps its part of what it has."""
    return nn.Parameter(distribute_tensor(weight.detach(), mesh, [Shard(0)], src_data_rank=None), weight.requires_grad)


def split_vocabulary(model: LanguageModel, mesh: DeviceMesh) -> SplitHead | None:
    """Split a filled model's embeddings, its critic's, and the head of a language model; tied ones stay tied.

    Gives what scores tokens with the head, where there is one.

    Raises:
        ModelError: embeddings or a head of a kind that is not known to split.
    """
    head: Any = model.network.get_output_embeddings()
    trunks: list[Any] = [trunk for trunk in (model.network.base_model, model.critic_trunk) if trunk is not None]
    for trunk in trunks:
        whole = trunk.get_input_embeddings()
        if type(whole) is not nn.Embedding:
            raise ModelError(f"strategy.tensor_parallel={mesh.size()} cannot split embeddings of type {type(whole).__name__}")
        tied = head is not None and head.weight is whole.weight
        made = SplitEmbedding(whole, mesh)
        trunk.set_input_embeddings(made)
        if tied:
            head.weight = made.weight
    if head is None:
        return None
    if getattr(head, "bias", None) is not None:
        raise ModelError(f"strategy.tensor_parallel={mesh.size()} cannot split an output head with a bias; set 1")
    if not isinstance(head.weight, DTensor):
        head.weight = split_rows(head.weight, mesh)
    return SplitHead(model, mesh)

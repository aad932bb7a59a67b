"""Encoder-decoder models of the T5 shape behind the face of a language model.

A sample's tokens stay prompt ++ answer. The encoder reads the prompt (everything before the first action); the decoder reads
its start token ++ answer. The hidden state that stands for a token of the sample, from the last of the prompt on, is the
decoder's after it has read that token (after its start token, for the last of the prompt); so the hidden state before an
action predicts it, as in a decoder, and losses, critics and score heads need no case of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from penstock.core.errors import ModelError, TrainingError
from penstock.models.architecture import Slot, require_equal
from penstock.models.attention import IndexArray, Runs, Segments, eager_attention
from penstock.models.language_model import Head, LanguageModel
from penstock.models.packing import TokenBatch
from penstock.models.relative_attention import RelativeBias
from penstock.models.text import Text

MODEL_TYPES = ("t5", "mt5", "umt5")
"""Types of transformers whose layers are those of T5 (Raffel et al. 2020, arXiv:1910.10683)."""

CONTEXT = 2048
"""Tokens of a sample where the configuration sets no ``n_positions``: relative positions know no end, caches need one."""


class StackAttention(Protocol):
    """How one forward pass of the encoder or the decoder attends to its own tokens, and the decoder to the encoder's."""

    def bias(self, relative: RelativeBias) -> Any:
        """What is added to the scores of its own tokens, in a form of its own; made once for layers that share a bias."""
        ...

    def own_attention(self, layer: int, query_MHD: Tensor, key_MHD: Tensor, value_MHD: Tensor, bias: Any) -> Tensor:
        """Attention ``[M, H, D]`` to the stack's own tokens."""
        ...

    def cross_attention(self, layer: int, query_MHD: Tensor, module: Any) -> Tensor:
        """Attention ``[M, H, D]`` to the encoder's tokens, for which ``module`` makes keys and values."""
        ...


class EncoderDecoderPlan:
    """How the packed tokens of a batch are read by encoder and decoder.

    Rows whose prompts are at the same packed tokens share one encoding. All their answers together are one segment of
    cross-attention, because there neither order nor position matters.

    Args:
        gather_BT: packed index of each cell, as in :class:`~penstock.models.packing.TokenBatch`.
        length_B, prompt_B: tokens of each row, and how many of them the encoder reads (at least 1, at most all).
        count: packed tokens of the batch, N.
    """

    def __init__(
        self, gather_BT: IndexArray, length_B: IndexArray, prompt_B: IndexArray, count: int, device: torch.device | str = "cpu"
    ) -> None:
        known: dict[bytes, int] = {}
        sources: list[IndexArray] = []
        source_B = np.zeros(len(length_B), np.int64)
        for row, prompt in enumerate(prompt_B):
            tokens = np.ascontiguousarray(gather_BT[row, :prompt])
            source_B[row] = known.setdefault(tokens.tobytes(), len(sources))
            if source_B[row] == len(sources):
                sources.append(tokens)
        order = np.argsort(source_B, kind="stable")
        token_M = np.concatenate([gather_BT[row, prompt_B[row] - 1 : length_B[row]] for row in order])
        runs = Runs.of((length_B - prompt_B + 1)[order])
        place_N = np.zeros(count, np.int64)
        place_N[token_M] = np.arange(len(token_M))  # a prompt's last token may stand for several rows: all are equal there
        start_M = np.zeros(len(token_M), bool)
        start_M[runs.index_RT[:, 0]] = True

        def tensor(array: Any) -> Tensor:
            return torch.from_numpy(np.asarray(array)).to(device)

        self.read_S = tensor(np.concatenate(sources).astype(np.int64))
        """Packed index of each token the encoder reads."""
        self.token_M, self.start_M = tensor(token_M.astype(np.int64)), tensor(start_M)
        """Packed index of the token that each decoder position stands for; where the start token is read in its place."""
        self.place_N = tensor(place_N)
        """Decoder position of each packed token; 0 for those that only the encoder reads."""
        read = Runs.of(np.array([len(tokens) for tokens in sources]))
        answers_of_source = np.bincount(source_B[order], runs.length_R).astype(np.int64)
        self.encoder = Segments(read, read, causal=False, device=device)
        self.decoder = Segments(runs, runs, causal=True, device=device)
        self.crossing = Segments(Runs.of(answers_of_source), read, causal=False, device=device)


class Uncached:
    """Attention of whole segments, without a cache; ``crossing`` of a decoder to the encoder's hidden states."""

    def __init__(self, own: Segments, dtype: torch.dtype, crossing: tuple[Segments, Tensor] | None = None) -> None:
        self.own, self.dtype, self.crossing = own, dtype, crossing

    def bias(self, relative: RelativeBias) -> list[Tensor]:
        return relative.masks(self.own, self.dtype)

    def own_attention(self, layer: int, query_MHD: Tensor, key_MHD: Tensor, value_MHD: Tensor, bias: list[Tensor]) -> Tensor:
        return self.own.attend(query_MHD, key_MHD, value_MHD, bias)

    def cross_attention(self, layer: int, query_MHD: Tensor, module: Any) -> Tensor:
        assert self.crossing is not None
        segments, encoded_SW = self.crossing
        return segments.attend(query_MHD, *cross_keys(module, encoded_SW))


class EncoderDecoderModel(LanguageModel):
    """A T5-shaped model with its tokenizer: the interface of :class:`LanguageModel` over encoder and decoder.

    Value and score heads read the decoder's hidden states. With ``head="score"`` the language-model head stays, so that the
    folder loads with transformers as what it was.

    Raises:
        ModelError: the layers are not T5's.
    """

    def __init__(self, network: Any, text: Text, head: Head = "lm") -> None:
        kind = network.config.model_type
        if kind not in MODEL_TYPES:
            raise ModelError(f"{kind}: encoder-decoders other than {', '.join(MODEL_TYPES)} are not supported")
        super().__init__(network, text, head)
        if head == "score":
            width = self.config.d_model
            self.score_head = nn.Linear(width, 1, bias=False)
            noise = torch.randn(1, width, generator=torch.Generator().manual_seed(0))  # the same every time
            self.score_head.weight.data = noise * width**-0.5

    @property
    def context(self) -> int:
        """Longest sequence in tokens, prompt and answer together: ``n_positions`` of the configuration, or :data:`CONTEXT`."""
        return int(getattr(self.config, "n_positions", None) or CONTEXT)

    @property
    def slots(self) -> tuple[Slot, ...]:  # type: ignore[override]
        """One a decoder layer, of the same shape for its own tokens and for the encoder's."""
        return (Slot(self.config.num_heads, self.config.d_kv, self.config.d_kv, None),) * self.config.num_decoder_layers

    @property
    def start(self) -> int:
        """The token that the decoder reads before the answer."""
        start = self.config.decoder_start_token_id
        return self.text.pad if start is None else int(start)

    def plan(self, batch: TokenBatch) -> EncoderDecoderPlan:
        """How a packed batch is read. A row without actions (a text to be scored) is read whole by the encoder.

        Raises:
            TrainingError: a row has tokens after its first action that are no actions; neither encoder nor decoder could
                read an observation there.
        """
        actions_B = np.bincount(batch.row_A, minlength=len(batch.length_B))
        prompt_B = np.array(batch.length_B, np.int64)
        np.minimum.at(prompt_B, batch.row_A, batch.position_N[batch.source_A] + 1)
        several = np.flatnonzero((actions_B > 0) & (actions_B != batch.length_B - prompt_B))
        if len(several):
            row = int(several[0])
            raise TrainingError(
                f"row {batch.row_ids[row] if batch.row_ids else row}: an encoder-decoder answers once, but there are "
                f"tokens after the first action that are no actions; use a decoder for several turns"
            )
        return EncoderDecoderPlan(batch.gather_BT, batch.length_B, prompt_B, len(batch.tokens_N), self.device)

    def hidden(self, tokens_BN: Tensor, position_BN: Tensor | None, plan: Any, trunk: nn.Module | None = None) -> Tensor:
        """The decoder's hidden states: of a packed batch, or of one decode step.

        Args:
            tokens_BN: ``[1, N]`` packed tokens with an :class:`EncoderDecoderPlan`, or ``[B, 1]``, the last token of each
                row, with a plan that has the encoder's keys and the rows' own (:class:`DecoderAttention`).

        Returns:
            ``[1, N, W]``, each where the token is that was read last; those of prompt tokens before the last are
            meaningless, because no action is predicted from them. Or ``[B, 1, W]``.
        """
        network: Any = trunk if trunk is not None else self.network
        if not isinstance(plan, EncoderDecoderPlan):
            return self.decode(tokens_BN[:, 0], plan, network)[:, None]
        tokens_N = tokens_BN[0]
        encoded_SW = self.encode(tokens_N.index_select(0, plan.read_S), plan.encoder, network)
        tokens_M = tokens_N.index_select(0, plan.token_M).masked_fill(plan.start_M, self.start)
        attention = Uncached(plan.decoder, encoded_SW.dtype, (plan.crossing, encoded_SW))
        return self.decode(tokens_M, attention, network).index_select(0, plan.place_N)[None]

    def encode(self, tokens_S: Tensor, segments: Segments, network: Any = None) -> Tensor:
        """The encoder's hidden states ``[S, W]`` of packed tokens."""
        network = network if network is not None else self.network
        hidden_SW = network.get_input_embeddings()(tokens_S)
        return _through(network.encoder, hidden_SW, Uncached(segments, hidden_SW.dtype))

    def decode(self, tokens_M: Tensor, attention: StackAttention, network: Any = None) -> Tensor:
        """The decoder's hidden states ``[M, W]`` of its input tokens, which attend as ``attention`` says."""
        network = network if network is not None else self.network
        return _through(network.decoder, network.get_input_embeddings()(tokens_M), attention)

    def logits(self, hidden_AH: Tensor) -> Tensor:
        """Next-token logits ``[A, V]`` in float32; scaled by ``d_model**-0.5`` where T5 shares head and embeddings."""
        if self.config.model_type != "mt5" and getattr(self.config, "scale_decoder_outputs", True):
            hidden_AH = hidden_AH * self.config.d_model**-0.5
        return functional.linear(hidden_AH, self.network.get_output_embeddings().weight).float()

    @torch.no_grad()
    def check(self) -> None:
        """Compare two ragged rows through our layers with the network's own forward; refuses silent differences.

        Raises:
            ModelError: the logits differ.
        """
        rng = np.random.default_rng(0)
        prompt_B, length_B = np.array([5, 2]), np.array([8, 7])
        tokens_BT = torch.from_numpy(rng.integers(0, self.config.vocab_size, (2, 8))).to(self.device)
        gather_BT = np.arange(16, dtype=np.int32).reshape(2, 8)
        plan = EncoderDecoderPlan(gather_BT, length_B, prompt_B, 16, self.device)
        ours_NV = self.logits(self.hidden(tokens_BT.view(1, -1), None, plan)[0])
        start = torch.full((1, 1), self.start, device=self.device)
        for row, (prompt, length) in enumerate(zip(prompt_B, length_B, strict=True)):
            read, answer = tokens_BT[row : row + 1, :prompt], tokens_BT[row : row + 1, prompt:length]
            with eager_attention(self.network):
                out = self.network(input_ids=read, decoder_input_ids=torch.cat([start, answer], 1), use_cache=False)
            require_equal(self, ours_NV[row * 8 + prompt - 1 : row * 8 + length], out.logits[0], "packed rows")


def faced(network: Any, text: Text, head: Head = "lm") -> LanguageModel:
    """A network behind the face of its kind."""
    kind = EncoderDecoderModel if network.config.is_encoder_decoder else LanguageModel
    return kind(network, text, head)


def cross_keys(module: Any, encoded_SW: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values ``[S, H, D]`` that a cross-attention makes of the encoder's hidden states."""
    return _heads(module, module.k(encoded_SW)), _heads(module, module.v(encoded_SW))


def cross_attentions(network: Any) -> Iterator[Any]:
    """The cross-attention of each decoder layer."""
    return (block.layer[1].EncDecAttention for block in network.decoder.block)


def _through(stack: Any, hidden_NW: Tensor, attention: StackAttention) -> Tensor:
    """Embedded tokens after all layers of the encoder or the decoder.

    Each layer is computed a second time in the backward pass where its block asks for gradient checkpointing.
    """
    bias = None
    for layer, block in enumerate(stack.block):
        module = block.layer[0].SelfAttention
        if module.has_relative_attention_bias:
            table_XH, longest = module.relative_attention_bias.weight, module.relative_attention_max_distance
            bias = attention.bias(RelativeBias(table_XH, longest, bidirectional=not stack.is_decoder))
        run = partial(_layer, layer, block, attention, bias)
        again = getattr(block, "gradient_checkpointing", False) and block.training
        hidden_NW = checkpoint(run, hidden_NW, use_reentrant=False) if again else run(hidden_NW)
    return stack.final_layer_norm(hidden_NW)


def _layer(layer: int, block: Any, attention: StackAttention, bias: Any, hidden_NW: Tensor) -> Tensor:
    """One layer: attention to its own tokens, in a decoder to the encoder's, feed-forward."""
    own, *crossing, forward = block.layer
    module, normed_NW = own.SelfAttention, own.layer_norm(hidden_NW)
    query, key, value = (_heads(module, projection(normed_NW)) for projection in (module.q, module.k, module.v))
    hidden_NW = hidden_NW + module.o(attention.own_attention(layer, query, key, value, bias).flatten(-2))
    for cross in crossing:
        module = cross.EncDecAttention
        query_NHD = _heads(module, module.q(cross.layer_norm(hidden_NW)))
        hidden_NW = hidden_NW + module.o(attention.cross_attention(layer, query_NHD, module).flatten(-2))
    return hidden_NW + forward.DenseReluDense(forward.layer_norm(hidden_NW))


def _heads(module: Any, projected_NW: Tensor) -> Tensor:
    return projected_NW.unflatten(-1, (module.n_heads, module.key_value_proj_dim))

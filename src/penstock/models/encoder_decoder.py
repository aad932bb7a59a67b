"""Encoder-decoder models of the T5 shape behind the face of a language model.

A sample's tokens stay prompt ++ answer. The encoder reads the prompt (everything before the first action); the decoder reads
its start token ++ answer. The hidden state that stands for a token of the sample, from the last of the prompt on, is the
decoder's after it has read that token (after its start token, for the last of the prompt); so the hidden state before an
action predicts it, as in a decoder, and losses, critics and score heads need no case of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from penstock.core.errors import ModelError, TrainingError
from penstock.models.attention import NAME, IndexArray, quiet_transformers
from penstock.models.language_model import Head, LanguageModel
from penstock.models.packing import TokenBatch
from penstock.models.relative_attention import RelativeBias, Segments, Spans
from penstock.models.text import Text

MODEL_TYPES = ("t5", "mt5", "umt5")
"""Types of transformers whose layers are those of T5 (Raffel et al. 2020, arXiv:1910.10683)."""

CONTEXT = 2048
"""Tokens of a sample where the configuration sets no ``n_positions``: relative positions know no end, caches need one."""


class DecoderAttention(Protocol):
    """How the decoder of one forward pass attends to its own tokens and to the encoder's."""

    def bias(self, relative: RelativeBias) -> Any:
        """What is added to the scores of its own tokens, in a form of its own; made once for layers that share a bias."""
        ...

    def own_attention(self, layer: int, query_MHD: Tensor, key_MHD: Tensor, value_MHD: Tensor, bias: Any) -> Tensor:
        """Attention ``[M, H, D]`` to the decoder's own tokens."""
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
            read = np.ascontiguousarray(gather_BT[row, :prompt])
            source_B[row] = known.setdefault(read.tobytes(), len(sources))
            if source_B[row] == len(sources):
                sources.append(read)
        order = np.argsort(source_B, kind="stable")
        token_M = np.concatenate([gather_BT[row, prompt_B[row] - 1 : length_B[row]] for row in order])
        row_spans = Spans.of((length_B - prompt_B + 1)[order])
        place_N = np.zeros(count, np.int64)
        place_N[token_M] = np.arange(len(token_M))  # a prompt's last token may stand for several rows: all are equal there
        start_M = np.zeros(len(token_M), bool)
        start_M[row_spans.start_R] = True

        def tensor(array: Any) -> Tensor:
            return torch.from_numpy(np.asarray(array)).to(device)

        self.read_S = tensor(np.concatenate(sources).astype(np.int64))
        """Packed index of each token the encoder reads."""
        self.token_M, self.start_M = tensor(token_M.astype(np.int64)), tensor(start_M)
        """Packed index of the token that each decoder position stands for; where the start token is read in its place."""
        self.place_N = tensor(place_N)
        """Decoder position of each packed token; 0 for those that only the encoder reads."""
        source_spans = Spans.of(np.array([len(read) for read in sources]))
        answers_of_source = np.bincount(source_B[order], row_spans.length_R).astype(np.int64)
        self.encoder = Segments(source_spans, source_spans, causal=False, device=device)
        self.decoder = Segments(row_spans, row_spans, causal=True, device=device)
        self.crossing = Segments(Spans.of(answers_of_source), source_spans, causal=False, device=device)


class _WholeRows:
    """Decoder attention of whole rows, without a cache."""

    def __init__(self, plan: EncoderDecoderPlan, encoded_SW: Tensor) -> None:
        self.plan, self.encoded_SW = plan, encoded_SW
        self.masks = plan.crossing.masks(None, encoded_SW.dtype)

    def bias(self, relative: RelativeBias) -> list[Tensor | None]:
        return self.plan.decoder.masks(relative, self.encoded_SW.dtype)

    def own_attention(
        self, layer: int, query_MHD: Tensor, key_MHD: Tensor, value_MHD: Tensor, bias: list[Tensor | None]
    ) -> Tensor:
        return self.plan.decoder.attend(query_MHD, key_MHD, value_MHD, bias)

    def cross_attention(self, layer: int, query_MHD: Tensor, module: Any) -> Tensor:
        key_SHD, value_SHD = cross_keys(module, self.encoded_SW)
        return self.plan.crossing.attend(query_MHD, key_SHD, value_SHD, self.masks)


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
        self.score_head: nn.Linear | None = None
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
        decoded_MW = self.decode(tokens_M, _WholeRows(plan, encoded_SW), network)
        return decoded_MW.index_select(0, plan.place_N)[None]

    def encode(self, tokens_S: Tensor, segments: Segments, network: Any = None) -> Tensor:
        """The encoder's hidden states ``[S, W]`` of packed tokens."""
        network = network if network is not None else self.network
        stack = network.encoder
        hidden_SW, masks = network.get_input_embeddings()(tokens_S), None
        for block in stack.block:
            module = block.layer[0].SelfAttention
            if module.has_relative_attention_bias:
                masks = segments.masks(_relative(module, bidirectional=True), hidden_SW.dtype)

            def run(hidden_SW: Tensor, block: Any = block, masks: Any = masks) -> Tensor:
                def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
                    return segments.attend(query, key, value, masks)

                return _feed_forward(block, _attend_to_self(block, hidden_SW, attend))

            hidden_SW = _checkpointed(block, run, hidden_SW)
        return stack.final_layer_norm(hidden_SW)

    def decode(self, tokens_M: Tensor, attention: DecoderAttention, network: Any = None) -> Tensor:
        """The decoder's hidden states ``[M, W]`` of its input tokens, which attend as ``attention`` says."""
        network = network if network is not None else self.network
        stack = network.decoder
        hidden_MW, bias = network.get_input_embeddings()(tokens_M), None
        for layer, block in enumerate(stack.block):
            module = block.layer[0].SelfAttention
            if module.has_relative_attention_bias:
                bias = attention.bias(_relative(module, bidirectional=False))

            def run(hidden_MW: Tensor, layer: int = layer, block: Any = block, bias: Any = bias) -> Tensor:
                def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
                    return attention.own_attention(layer, query, key, value, bias)

                hidden_MW = _attend_to_self(block, hidden_MW, attend)
                cross = block.layer[1].EncDecAttention
                query_MHD = _heads(cross, cross.q(block.layer[1].layer_norm(hidden_MW)))
                hidden_MW = hidden_MW + cross.o(attention.cross_attention(layer, query_MHD, cross).flatten(-2))
                return _feed_forward(block, hidden_MW)

            hidden_MW = _checkpointed(block, run, hidden_MW)
        return stack.final_layer_norm(hidden_MW)

    def logits(self, hidden_AH: Tensor) -> Tensor:
        """Next-token logits ``[A, V]`` in float32; scaled by ``d_model**-0.5`` where T5 shares head and embeddings."""
        if self.config.model_type != "mt5" and getattr(self.config, "scale_decoder_outputs", True):
            hidden_AH = hidden_AH * self.config.d_model**-0.5
        return functional.linear(hidden_AH, self.network.get_output_embeddings().weight).float()

    def scores(self, hidden_BH: Tensor) -> Tensor:
        """Reward-model score ``[B]`` in float32 of sequences given the hidden state of their last token."""
        if self.score_head is None:
            raise ModelError("this model has a language-model head, not a score head; train a reward model first")
        return self.score_head(hidden_BH.to(self.score_head.weight.dtype)).squeeze(-1).float()


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


def _relative(module: Any, bidirectional: bool) -> RelativeBias:
    return RelativeBias(module.relative_attention_bias.weight, module.relative_attention_max_distance, bidirectional)


def _heads(module: Any, projected_NW: Tensor) -> Tensor:
    return projected_NW.unflatten(-1, (module.n_heads, module.key_value_proj_dim))


def _attend_to_self(block: Any, hidden_NW: Tensor, attend: Callable[..., Tensor]) -> Tensor:
    layer = block.layer[0]
    module, normed_NW = layer.SelfAttention, layer.layer_norm(hidden_NW)
    projected = (_heads(module, projection(normed_NW)) for projection in (module.q, module.k, module.v))
    return hidden_NW + module.o(attend(*projected).flatten(-2))


def _feed_forward(block: Any, hidden_NW: Tensor) -> Tensor:
    layer = block.layer[-1]
    return hidden_NW + layer.DenseReluDense(layer.layer_norm(hidden_NW))


def _checkpointed(block: Any, run: Callable[[Tensor], Tensor], hidden_NW: Tensor) -> Tensor:
    """One layer; it is computed a second time in the backward pass where the block asks for gradient checkpointing."""
    if getattr(block, "gradient_checkpointing", False) and block.training:
        return checkpoint(run, hidden_NW, use_reentrant=False)
    return run(hidden_NW)


@torch.no_grad()
def check_encoder_decoder(model: EncoderDecoderModel) -> None:
    """Compare two ragged rows through our layers with the network's own forward; refuses silent differences.

    Raises:
        ModelError: the logits differ.
    """
    network, rng = model.network, np.random.default_rng(0)
    prompt_B, length_B = np.array([5, 2]), np.array([8, 7])
    tokens_BT = torch.from_numpy(rng.integers(0, model.config.vocab_size, (2, 8))).to(model.device)
    gather_BT = np.arange(16, dtype=np.int32).reshape(2, 8)
    plan = EncoderDecoderPlan(gather_BT, length_B, prompt_B, 16, model.device)
    ours_NV = model.logits(model.hidden(tokens_BT.view(1, -1), None, plan)[0])
    gap = largest = 0.0
    try:
        with quiet_transformers():
            network.set_attn_implementation("eager")
        for row, (prompt, length) in enumerate(zip(prompt_B, length_B, strict=True)):
            start = torch.full((1, 1), model.start, device=model.device)
            read, answer = tokens_BT[row : row + 1, :prompt], tokens_BT[row : row + 1, prompt:length]
            out = network(input_ids=read, decoder_input_ids=torch.cat([start, answer], 1), use_cache=False)
            mine_TV = ours_NV[row * 8 + prompt - 1 : row * 8 + length]
            gap = max(gap, float((mine_TV - out.logits[0].float()).abs().max()))
            largest = max(largest, float(out.logits.abs().max()))
    finally:
        with quiet_transformers():
            network.set_attn_implementation(NAME)
    allowed = 1e-3 * max(1.0, largest) * (1 if model.dtype == torch.float32 else 100)
    if not gap <= allowed:
        raise ModelError(
            f"{type(network).__name__} gives other logits through Penstock's layers (gap {gap:.2g}); "
            f"this architecture is not supported"
        )

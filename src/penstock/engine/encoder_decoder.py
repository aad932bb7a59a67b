"""The embedded generator for encoder-decoders: a prompt is encoded once, its samples read the encoder's keys.

What the prefix cache of a decoder holds of the prompt, it holds here of the encoder's output: keys and values of every
cross-attention. A row's own cache begins with the decoder's start token. All else (admission, places, draws, stops, weight
updates) is the embedded generator's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from penstock.core.errors import GenerationError
from penstock.core.types import IntArray
from penstock.engine.cache import CachePool
from penstock.engine.denoising import DenoisingGenerator
from penstock.engine.generator import EmbeddedGenerator
from penstock.engine.media import MediaGenerator
from penstock.engine.sequences import Prefix, Sequence
from penstock.models.attention import Runs, Segments
from penstock.models.diffusion.model import DenoisingModel
from penstock.models.encoder_decoder import EncoderDecoderModel, EncoderDecoderPlan, Uncached, cross_attentions, cross_keys
from penstock.models.media_model import MediaModel


def embedded_generator(model: Any, **options: Any) -> Any:
    """The embedded generator for a model's kind; ``options`` are those of :class:`EmbeddedGenerator`. One of denoisers keeps
    nothing of what it reads and has use for ``max_running`` and ``version`` alone."""
    if isinstance(model, DenoisingModel):
        return DenoisingGenerator(
            model.sampler, **{name: options[name] for name in ("max_running", "version") if name in options}
        )
    if isinstance(model, MediaModel):
        return MediaGenerator(model, **options)
    kind = EncoderDecoderGenerator if isinstance(model, EncoderDecoderModel) else EmbeddedGenerator
    return kind(model, **options)


class EncoderDecoderGenerator(EmbeddedGenerator):
    """Implements the ``Generator`` contract for models of the T5 shape.

    A prompt is encoded whole, because every token of it reads every other: ``chunk`` bounds the prompt tokens that are
    encoded between two decode steps, but one prompt always goes.
    """

    model: EncoderDecoderModel

    def _hidden_before(self, tokens: Tensor, prompt: int | None) -> Tensor:
        """The encoder reads the prompt, so its tokens have no log-probs.

        Raises:
            GenerationError: ``prompt`` is not said: without it nobody knows which tokens the encoder reads.
        """
        length, device = len(tokens), self.model.device
        if prompt is None or not 1 <= prompt <= length:
            raise GenerationError(
                f"an encoder-decoder scores an answer to a prompt, and prompt={prompt} of {length} tokens; give "
                f"the number of tokens that are the prompt, at least 1"
            )
        plan = EncoderDecoderPlan(np.arange(length)[None], np.array([length]), np.array([prompt]), length, device)
        return self.model.hidden(tokens[None], None, plan)[0, prompt - 1 : length - 1]

    def _tokens_before(self, sequence: Sequence) -> IntArray:
        """The prompt alone: what was generated before an interruption is the decoder's to read."""
        return sequence.request.tokens_T

    def _keep(self, row: int) -> None:
        """Nothing: the encoder reads a prompt that has grown from its first token on."""

    def _prefill(self) -> None:
        """Encode prompts of up to ``chunk`` tokens, oldest first, and note their keys and values for every decoder layer."""
        if all(p.done for p in self.prefixes):
            return
        self._make_room()
        parts: list[Prefix] = []
        for prefix in self.prefixes:
            if not prefix.done:
                if parts and sum(len(p.tokens) for p in (*parts, prefix)) > self.chunk:
                    break
                parts.append(prefix)
        if not parts:
            return
        device = self.model.device
        spans = Runs.of(np.array([len(p.tokens) for p in parts]))
        tokens_S = torch.from_numpy(np.concatenate([p.tokens for p in parts]).astype(np.int64)).to(device)
        row_S, position_S = _places([p.row for p in parts], spans, device)
        encoded_SW = self.model.encode(tokens_S, Segments(spans, spans, causal=False, device=device))
        for layer, module in enumerate(cross_attentions(self.model.network)):
            for pool, made_SHD in zip(
                (self.prefix_cache.keys, self.prefix_cache.values), cross_keys(module, encoded_SW), strict=True
            ):
                pool[layer][row_S, :, position_S] = made_SHD.to(pool[layer].dtype)
        for prefix in parts:
            prefix.done, prefix.version = len(prefix.tokens), self.version
        self.prefilled_tokens += len(tokens_S)

    def _own_tokens(self, sequence: Sequence) -> int:
        """The start token, and what was generated before an interruption."""
        return 1 + len(sequence.tokens)

    def _start_rows(self, rows: list[int], sources: list[Prefix]) -> None:
        """Set rows up to read their last token: the start token, or the last one generated before an interruption. The next
        decode step draws what follows it.
        """
        new, device = [self.running[row] for row in rows], self.model.device
        index = self._set_up(rows, new, sources, max(s.limit for s in new))
        self.state.own_length[index] = torch.tensor([len(s.tokens) for s in new], device=device)
        self.state.token[index] = torch.tensor([s.tokens[-1] if s.tokens else self.model.start for s in new], device=device)
        resumed = [(row, sequence) for row, sequence in zip(rows, new, strict=True) if sequence.tokens]
        if resumed:
            self._restore(resumed)

    def _restore(self, resumed: list[tuple[int, Sequence]]) -> None:
        """Read again what resumed rows have generated, but for the last token, into their own cache."""
        device = self.model.device
        read = [[self.model.start, *sequence.tokens[:-1]] for _, sequence in resumed]
        tokens_M = torch.tensor([token for tokens in read for token in tokens], device=device)
        prefixes = [sequence.prefix for _, sequence in resumed if sequence.prefix is not None]
        spans = Runs.of(np.array([len(tokens) for tokens in read]))
        places = _places([row for row, _ in resumed], spans, device)
        self.model.decode(tokens_M, _Restored(self.prefix_cache, self.own_cache, prefixes, spans, places))
        self.prefilled_tokens += len(tokens_M)


def _places(rows: list[int], spans: Runs, device: torch.device) -> tuple[Tensor, Tensor]:
    """The cache row and the position in it of every packed token of segments."""
    row = np.repeat(rows, spans.length_R)
    position = np.concatenate([np.arange(length) for length in spans.length_R])
    return torch.from_numpy(row).to(device), torch.from_numpy(position).to(device)


class _Restored(Uncached):
    """Decoder attention of rows whose own cache is written anew, several tokens each; they read the encoder's keys."""

    def __init__(
        self, prefix_cache: CachePool, own_cache: CachePool, prefixes: list[Prefix], spans: Runs, places: tuple[Tensor, Tensor]
    ) -> None:
        self.prefix_cache, self.own_cache, self.places = prefix_cache, own_cache, places
        device = own_cache.device
        super().__init__(Segments(spans, spans, causal=True, device=device), own_cache.dtype)
        self.prefix_R = torch.tensor([p.row for p in prefixes], device=device)
        length_R = torch.tensor([len(p.tokens) for p in prefixes], device=device)
        self.longest = max(len(p.tokens) for p in prefixes)
        self.allowed = (torch.arange(self.longest, device=device) < length_R[:, None])[:, None, None]
        self.segment_M = torch.from_numpy(np.repeat(np.arange(len(prefixes)), spans.length_R)).to(device)
        self.shape = (len(prefixes), int(spans.length_R.max()))

    def own_attention(self, layer: int, query_MHD: Tensor, key_MHD: Tensor, value_MHD: Tensor, bias: list[Tensor]) -> Tensor:
        row_M, position_M = self.places
        for pool, made_MHD in ((self.own_cache.keys, key_MHD), (self.own_cache.values, value_MHD)):
            pool[layer][row_M, :, position_M] = made_MHD.to(pool[layer].dtype)
        return super().own_attention(layer, query_MHD, key_MHD, value_MHD, bias)

    def cross_attention(self, layer: int, query_MHD: Tensor, module: Any) -> Tensor:
        _, heads, width = query_MHD.shape
        query = query_MHD.new_zeros(*self.shape, heads, width)
        query[self.segment_M, self.places[1]] = query_MHD
        pools = (self.prefix_cache.keys, self.prefix_cache.values)
        key, value = (pool[layer][self.prefix_R, :, : self.longest] for pool in pools)
        out = functional.scaled_dot_product_attention(query.transpose(1, 2), key, value, attn_mask=self.allowed, scale=1.0)
        return out.transpose(1, 2)[self.segment_M, self.places[1]]

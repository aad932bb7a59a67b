"""Tiny models of each architecture with random weights, peaked enough that a wrong mask or position shows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPTNeoXConfig, LlamaConfig, Qwen2Config, Qwen3Config

from penstock.core.types import FloatArray, PromptKey, Request, Row, SampleKey, Sampling
from penstock.models.language_model import LanguageModel
from penstock.models.text import Text

CORPUS = ["3 + 4 = 7", "12 - 5 = 7", "the quick brown fox jumps over the lazy dog", "what is the sum of all numbers"] * 20
CONTEXT = 128
ARCHITECTURES = ("qwen2", "qwen3", "llama", "gpt_neox", "gpt2")

_LLAMA_LIKE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
}


def config_of(architecture: str, vocabulary: int, **changes: Any) -> Any:
    """The configuration of a tiny model: two layers, width 32."""
    marks = {"vocab_size": vocabulary, "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}
    if architecture == "gpt2":
        shape: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT}
        return GPT2Config(**(shape | marks | changes))
    if architecture == "gpt_neox":
        shape = {name: value for name, value in _LLAMA_LIKE.items() if name != "num_key_value_heads"}
        return GPTNeoXConfig(**(shape | marks | changes))
    kinds: dict[str, Any] = {
        "qwen2": (Qwen2Config, {"tie_word_embeddings": True}),
        "qwen3": (Qwen3Config, {"head_dim": 16}),  # heads wider than the width divided by their number
        "llama": (LlamaConfig, {"tie_word_embeddings": False}),
    }
    kind, more = kinds[architecture]
    return kind(**(_LLAMA_LIKE | marks | more | changes))


@torch.no_grad()
def randomise(network: torch.nn.Module, seed: int = 0, scale: float = 1.0) -> None:
    """Weights large enough that attention and next-token distributions are far from uniform; biases and norms included."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(network.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
        if parameter.ndim < 2:
            centre = 1.0 if "norm" in name or "ln_" in name else 0.0
            centre = 0.0 if name.endswith("bias") else centre
            parameter.copy_(centre + 0.2 * noise)
        else:
            parameter.copy_(noise * scale * (0.4 if max(parameter.shape) >= CONTEXT else 1.5 * parameter.shape[-1] ** -0.5))


def build(architecture: str, text: Text, **changes: Any) -> LanguageModel:
    """A peaked random model of an architecture."""
    with torch.random.fork_rng(devices=[]):
        network = AutoModelForCausalLM.from_config(config_of(architecture, len(text), **changes), dtype=torch.float32)
    randomise(network)
    return LanguageModel(network.eval(), text)


def tokens(rng: np.random.Generator, length: int, vocabulary: int = 300) -> np.ndarray:
    """Random plain tokens: neither marks nor the end."""
    return rng.integers(10, vocabulary - 10, length).astype(np.int32)


def key(ordinal: int = 0, sample: int = 0) -> SampleKey:
    return SampleKey(PromptKey("test", 0, ordinal), sample)


def request(prompt: np.ndarray, ordinal: int = 0, sample: int = 0, **sampling: Any) -> Request:
    """A request with a short answer unless ``max_new_tokens`` says otherwise."""
    return Request(key(ordinal, sample), np.asarray(prompt, np.int32), Sampling(**({"max_new_tokens": 12} | sampling)))


def row(prompt: np.ndarray, answer: np.ndarray, **fields: float | FloatArray) -> Row:
    """A labelled row whose actions are ``answer``."""
    tokens_T = np.concatenate([prompt, answer]).astype(np.int32)
    return Row({"tokens_T": tokens_T}, np.arange(len(tokens_T)) >= len(prompt), fields)


def bytes_held(modules):
    """Bytes of the parameters of modules; a tensor that several of them share counts once."""
    return sum({id(p): p.nbytes for module in modules for p in module.parameters()}.values())

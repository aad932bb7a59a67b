"""The generator's part of ``gpu.py``: prefill without whole scores (P1), few graphs in one pool (P3), only where a recording
holds (P4), a cache under its budget (P6). On a processor it runs through and says nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from penstock.core.types import PromptKey, Request, SampleKey, Sampling
from penstock.engine.cache import CachePool, PrefillPlan
from penstock.engine.generator import EmbeddedGenerator
from penstock.models import attention
from penstock.models.language_model import LanguageModel
from penstock.models.text import train_tokenizer


def synchronised(device: torch.device, work: Callable[[], Any]) -> tuple[float, float, Any]:
    """Seconds, gigabytes at the peak above what was held before (nan on a processor), and what came of it."""
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
    started = time.perf_counter()
    found = work()
    if cuda:
        torch.cuda.synchronize()
    peak = (torch.cuda.max_memory_allocated() - held) / 1e9 if cuda else float("nan")
    return time.perf_counter() - started, peak, found


def ragged(count: int, samples: int, prompt: int, new: int, vocabulary: int) -> list[Request]:
    """Prompts of 1/4 of ``prompt`` tokens up to it, and answers whose ends are geometric with a mean of ``new`` / 4."""
    random = np.random.default_rng(1)
    asked = []
    for p in range(count):
        tokens = random.integers(100, vocabulary, int(random.integers(prompt // 4, prompt + 1))).astype(np.int32)
        for s in range(samples):
            sampling = Sampling(max_new_tokens=min(new, int(random.geometric(4 / new))), seed=1)
            asked.append(Request(SampleKey(PromptKey("ragged", 0, p), s), tokens, sampling))
    return asked


def generated(generator: EmbeddedGenerator, asked: list[Request]) -> tuple[list[Any], int]:
    """The samples, and the most bytes that the cache held."""
    most, step = 0, generator.step

    def watched() -> None:
        nonlocal most
        step()
        most = max(most, generator.memory.bytes)

    async def everything() -> list[Any]:
        return list(await asyncio.gather(*(generator.generate(request) for request in asked)))

    generator.step = watched  # type: ignore[method-assign]
    try:
        return asyncio.run(everything()), most
    finally:
        del generator.step


def same(found: list[Any], expected: list[Any]) -> float:
    """The share of samples with the same tokens: rounding moves a few in bfloat16."""
    return float(np.mean([np.array_equal(a.tokens_T, b.tokens_T) for a, b in zip(found, expected, strict=True)]))


def measure_memory_and_graphs(model: LanguageModel, asked: list[Request]) -> dict[str, float]:
    """P3 and P6 on ragged answers: graphs and pools, what they gain, and half of the cache that they would like."""
    device, rows = model.device, len(asked)
    free = EmbeddedGenerator(model, max_running=rows)
    expected, needed = generated(free, asked)
    seconds, _, _ = synchronised(device, lambda: generated(free, asked))
    graphs = free.decode.graphs
    free.release()
    plain = EmbeddedGenerator(model, max_running=rows)
    plain.decode.graphs = None
    generated(plain, asked)
    slow, _, _ = synchronised(device, lambda: generated(plain, asked))
    plain.release()
    tokens = sum(int(sample.action_T.sum()) for sample in expected)
    alone = max(free.memory.needed(len(r.tokens_T) + r.sampling.max_new_tokens) for r in asked)
    bounded = EmbeddedGenerator(model, max_running=rows, cache_gb=max(alone, needed / 2) / 1e9)
    generated(bounded, asked)
    short, _, (samples, most) = synchronised(device, lambda: generated(bounded, asked))
    bounded.release()
    return {
        "ragged answers, tokens/s": tokens / seconds,
        "the same without graphs (P3)": tokens / slow,
        "graphs captured, kept (P3)": float("nan") if graphs is None else graphs.captures,
        "pools of graph memory (P3)": float("nan") if graphs is None else graphs.pools,
        "tokens/s with half of the cache (P6)": tokens / short,
        "preempted samples (P6)": bounded.preemptions,
        "cache, share of its budget (P6)": most / bounded.memory.budget,
        "same samples as with the whole cache (P6)": same(samples, expected),
    }


@contextmanager
def whole_scores() -> Iterator[None]:
    """Attention with a mask and grouped heads, whose scores the math kernel materialises."""
    kernel_of, same_heads = attention.kernel_of, attention.same_heads
    attention.kernel_of = lambda *shape: None  # type: ignore[assignment]
    attention.same_heads = lambda query, *states: states
    try:
        yield
    finally:
        attention.kernel_of, attention.same_heads = kernel_of, same_heads


@torch.no_grad()
def measure_prefill(model: LanguageModel, tokens: int) -> dict[str, float]:
    """P1: the second half of a prompt of ``tokens``, read after the first, with and without whole scores."""
    device, half, config = model.device, tokens // 2, model.config
    pool = CachePool(model.slots, model.dtype, device)
    pool.resize((1, tokens))
    asked = torch.arange(half, device=device)[None] % 1000

    def read(start: int) -> Tensor:
        return model.hidden(asked, asked + start, PrefillPlan(pool, [0], [start], [half]))

    read(0)
    heads = config.num_attention_heads, config.num_key_value_heads
    kernel = attention.kernel_of(device, model.dtype, *heads, model.slots[0].key_width)
    found = {"a kernel for packed runs was found (P1)": float(kernel is not None)}
    for name, within in (("P1", nullcontext()), ("P1, whole scores", whole_scores())):
        with within:
            read(half)
            seconds, peak, _ = synchronised(device, lambda: read(half))
        found |= {f"prefill of {half} after {half}, s ({name})": seconds, f"its peak memory, GB ({name})": peak}
    return found


def measure_engine(model: LanguageModel, work: tuple[int, int, int, int]) -> dict[str, float]:
    """All of them; ``work`` is prompts, samples of each, tokens of a prompt and of an answer."""
    found = measure_memory_and_graphs(model, ragged(*work, model.config.vocab_size))
    found |= measure_prefill(model, min(4096 if model.device.type == "cuda" else 256, model.context))
    return found | measure_unrecorded(model.device, model.dtype)


def measure_unrecorded(device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """P4: a mixture of experts, whose path depends on the data, runs without graphs."""
    text = train_tokenizer(["benchmark"], 300)
    config = AutoConfig.for_model(
        "qwen3_moe", vocab_size=1024, hidden_size=128, intermediate_size=128, moe_intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, num_experts=8, num_experts_per_tok=2,
        max_position_embeddings=512, eos_token_id=text.end,
    )  # fmt: skip
    torch.manual_seed(0)
    network = AutoModelForCausalLM.from_config(config, dtype=dtype).to(device)
    generator = EmbeddedGenerator(LanguageModel(network.eval(), text), max_running=16)
    samples, _ = generated(generator, ragged(8, 2, 64, 64, 1024))
    gaps = []
    for sample in samples:
        scored = asyncio.run(generator.score(sample.tokens_T))
        gaps.append(float(np.abs(scored - sample.logp_T)[sample.action_T].max()))
    captured = 0 if generator.decode.graphs is None else generator.decode.graphs.captures
    return {"graphs of a mixture of experts (P4)": captured, "its largest gap to score, nats (P4)": max(gaps)}

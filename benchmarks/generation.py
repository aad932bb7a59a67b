"""Decode throughput of the embedded generator: ``python benchmarks/generation.py --model FOLDER``.

Requests of distinct GSM8K questions, sampled at temperature 1 for exactly 128 new tokens, 1, 16 and 128 at once, and 16
questions × 8 samples, which share their prompts' cache; transformers' ``generate`` on the same prompts beside it, in the
same run. Prints generated tokens/s.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from pathlib import Path

import numpy as np
import torch

from penstock.core.types import PromptKey, Request, SampleKey, Sampling
from penstock.engine.generator import EmbeddedGenerator
from penstock.models.attention import NAME
from penstock.models.files import load_model

DATA = Path(__file__).resolve().parents[2] / "shared/data/gsm8k/train.jsonl"
NEW = 128


def ours(model, prompts: list[np.ndarray], samples: int, rounds: int) -> float:
    """Best tokens/s of a few rounds."""
    sampling = Sampling(max_new_tokens=NEW, seed=1)
    asked = [Request(SampleKey(PromptKey("q", 0, p), s), t, sampling) for p, t in enumerate(prompts) for s in range(samples)]
    generator = EmbeddedGenerator(model, max_running=len(asked))

    async def everything():
        return await asyncio.gather(*(generator.generate(request) for request in asked))

    best = 0.0
    for _ in range(rounds):
        started = time.perf_counter()
        asyncio.run(everything())
        best = max(best, len(asked) * NEW / (time.perf_counter() - started))
    return best


def transformers_generate(model, prompts: list[np.ndarray], pad: int) -> float:
    """Tokens/s of ``generate`` on the same prompts, left-padded."""
    width = max(map(len, prompts))
    tokens = torch.tensor([[pad] * (width - len(p)) + list(p) for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    model.network.set_attn_implementation("sdpa")
    started = time.perf_counter()
    model.network.generate(
        tokens, attention_mask=mask, do_sample=True, top_k=0, max_new_tokens=NEW, min_new_tokens=NEW, pad_token_id=pad
    )
    seconds = time.perf_counter() - started
    model.network.set_attn_implementation(NAME)
    return len(prompts) * NEW / seconds


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--model", default="runs/bench-model")
    options.add_argument("--rounds", type=int, default=3)
    chosen = options.parse_args()
    torch.set_num_threads(os.cpu_count() or 1)
    model = load_model(chosen.model)
    pad = model.text.pad
    model.text.ends = frozenset()  # every sample runs to its full length, so that all arms draw the same number of tokens
    rows = [json.loads(line)["question"] for line in DATA.read_text(encoding="utf-8").splitlines()[:128]]
    prompts = [np.asarray(model.text.encode(row)[:96], np.int32) for row in rows]
    for count in (1, 16, 128):
        rival = transformers_generate(model, prompts[:count], pad)
        rate = ours(model, prompts[:count], 1, chosen.rounds)
        print(
            f"{count:>4} requests at once: {rate:,.0f} tokens/s; transformers generate {rival:,.0f}; ratio {rate / rival:.1f} x"
        )
    print(f"16 questions × 8 samples: {ours(model, prompts[:16], 8, chosen.rounds):,.0f} tokens/s")


if __name__ == "__main__":
    main()

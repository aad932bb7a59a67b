"""Engines side by side: ``python benchmarks/engines.py --model FOLDER [--vllm-python .venv-vllm/bin/python]``.

GSM8K questions, sampled at temperature 1 for exactly ``--new`` tokens, or with ``--ragged`` for as many as the question's own
answer has (at most 256, the same for every engine), 1, 16 and 128 at once: generated tokens/s and seconds to the first token
(mean and largest). Every arm runs in a process of its own, one after the other, with the same number of
threads: our embedded engine, vLLM as a run uses it (our draws, log-probs, versions), vLLM with its own sampler, transformers'
continuous batching and its ``generate``. The first round of each size warms up and does not count; of the others the best does.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parents[2] / "shared/data/gsm8k/train.jsonl"
COUNTS = (1, 16, 128)
PATIENCE = 300
"""Seconds without a word from transformers' continuous batching."""
Round = Callable[[int], tuple[float, list[float]]]
"""So many requests → (seconds of all, seconds to each one's first token)."""


def questions(text: Any, options: argparse.Namespace) -> list[tuple[list[int], int]]:
    """Questions as tokens, cut to 96, each with the number of tokens to generate."""
    rows = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()[: max(COUNTS)]]
    new = [min(256, len(text.encode(row["answer"]))) if options.ragged else options.new for row in rows]
    return [(text.encode(row["question"])[:96], length) for row, length in zip(rows, new, strict=True)]


def requests(prompts: list[tuple[list[int], int]], turn: int) -> list[Any]:
    import numpy as np

    from penstock.core.types import PromptKey, Request, SampleKey, Sampling

    return [
        Request(SampleKey(PromptKey("q", 0, p), 0), np.asarray(tokens, np.int32), Sampling(max_new_tokens=new, seed=turn))
        for p, (tokens, new) in enumerate(prompts)
    ]


async def drive(generator: Any, asked: list[Any]) -> tuple[float, list[float]]:
    """All requests at once through a ``Generator``."""
    began, firsts = time.perf_counter(), {}

    async def one(request: Any) -> None:
        await generator.generate(request, lambda *_: firsts.setdefault(request.key, time.perf_counter() - began))

    await asyncio.gather(*(one(request) for request in asked))
    return time.perf_counter() - began, list(firsts.values())


def report(measure: Round, prompts: list[tuple[list[int], int]], rounds: int) -> dict[str, dict[str, float]]:
    """Tokens/s and seconds to the first token at every size."""
    found = {}
    for count in COUNTS:
        measure(count)
        seconds, firsts = min(measure(count) for _ in range(rounds))
        generated = sum(new for _, new in prompts[:count])
        found[str(count)] = {"rate": generated / seconds, "first": sum(firsts) / len(firsts), "last_first": max(firsts)}
    return found


def embedded(options: argparse.Namespace) -> dict[str, Any]:
    from penstock.engine.generator import EmbeddedGenerator
    from penstock.models.files import load_model

    model = load_model(options.model)
    model.text.ends = frozenset()  # every sample runs to its full length
    prompts, turn = questions(model.text, options), iter(range(10**6))

    @functools.cache
    def engine(rows: int) -> EmbeddedGenerator:
        """Kept for all rounds, as the other engines are: it records its step once."""
        return EmbeddedGenerator(model, max_running=rows)

    def measure(count: int) -> tuple[float, list[float]]:
        return asyncio.run(drive(engine(count), requests(prompts[:count], next(turn))))

    return report(measure, prompts, options.rounds)


def over_vllm(options: argparse.Namespace, own_sampler: bool) -> dict[str, Any]:
    from penstock.config.engines import VLLM
    from penstock.runtime.engines import EngineStart, opened

    async def measured(found: Any, prompts: list[tuple[list[int], int]], count: int, turn: int) -> tuple[float, list[float]]:
        asked = requests(prompts[:count], turn)
        return await (drive_alone(found.engine, asked) if own_sampler else drive(found.engine, asked))

    async def everything() -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            spec = VLLM(options={"enable_prefix_caching": False})
            async with opened(spec, EngineStart(Path(options.model), None, max(COUNTS), Path(folder) / "shared")) as found:
                found.text.ends = frozenset()
                prompts, loop, turn = questions(found.text, options), asyncio.get_running_loop(), iter(range(10**6))

                def measure(count: int) -> tuple[float, list[float]]:
                    return asyncio.run_coroutine_threadsafe(measured(found, prompts, count, next(turn)), loop).result()

                return await asyncio.to_thread(report, measure, prompts, options.rounds)

    return asyncio.run(everything())


async def drive_alone(generator: Any, asked: list[Any]) -> tuple[float, list[float]]:
    """vLLM's own sampler, tokens streamed, no log-probs."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    began, firsts = time.perf_counter(), []

    async def one(request: Any) -> None:
        new = request.sampling.max_new_tokens
        parameters = SamplingParams(
            temperature=1.0, max_tokens=new, ignore_eos=True, detokenize=False, output_kind=RequestOutputKind.DELTA
        )
        prompt, seen = {"prompt_token_ids": [int(token) for token in request.tokens_T]}, False
        async for _ in generator.engine.generate(prompt, parameters, f"{request.key}/{request.sampling.seed}/alone"):
            if not seen:
                firsts.append(time.perf_counter() - began)
            seen = True

    await asyncio.gather(*(one(request) for request in asked))
    return time.perf_counter() - began, firsts


def over_transformers(options: argparse.Namespace, batching: bool) -> dict[str, Any]:
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig, StoppingCriteria, StoppingCriteriaList

    from penstock.models.files import load_text

    torch.set_num_threads(options.threads)
    text = load_text(options.model)
    network = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32).eval()
    network.generation_config.eos_token_id = None
    prompts = questions(text, options)

    class Lengths(StoppingCriteria):
        """Ends each row at its own length, and notes when the first token of all is there."""

        def __init__(self, width: int, new_B: list[int]) -> None:
            self.at, self.end_B = 0.0, torch.tensor(new_B) + width

        def __call__(self, tokens: Any, scores: Any, **more: Any) -> Any:
            self.at = self.at or time.perf_counter()
            return self.end_B <= tokens.shape[1]

    def generate(count: int) -> tuple[float, list[float]]:
        asked, new_B = [tokens for tokens, _ in prompts[:count]], [new for _, new in prompts[:count]]
        width, pad = max(map(len, asked)), text.pad
        tokens = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in asked])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in asked])
        ends = Lengths(width, new_B)
        began = time.perf_counter()
        network.generate(
            tokens, attention_mask=mask, do_sample=True, top_k=0, max_new_tokens=max(new_B),
            pad_token_id=pad, stopping_criteria=StoppingCriteriaList([ends]),
        )  # fmt: skip
        return time.perf_counter() - began, [ends.at - began] * count

    config = GenerationConfig(
        do_sample=True, temperature=1.0, top_k=0, max_new_tokens=256, eos_token_id=-1, pad_token_id=text.pad
    )
    serial = iter(range(10**6))

    def batched(count: int) -> tuple[float, list[float]]:
        began, stamps, ended = time.perf_counter(), {}, 0
        for prompt, new in prompts[:count]:
            manager.add_request(prompt, request_id=str(next(serial)), max_new_tokens=new, streaming=True)
        while ended < count:
            result = manager.get_result(timeout=PATIENCE)
            assert result is not None, f"continuous batching gave nothing for {PATIENCE} s"
            assert not result.error, result.error
            stamps.setdefault(result.request_id, time.perf_counter() - began)
            ended += result.is_finished()
        return time.perf_counter() - began, list(stamps.values())

    if not batching:
        return report(generate, prompts, options.rounds)
    manager = network.init_continuous_batching(generation_config=config)
    manager.start()  # it sets its cache up with the first request: half a minute, which the round that warms up takes in
    try:
        return report(batched, prompts, options.rounds)
    finally:
        manager.stop(block=True)


ARMS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "embedded engine": embedded,
    "vLLM, as a run uses it": lambda options: over_vllm(options, own_sampler=False),
    "vLLM, its own sampler": lambda options: over_vllm(options, own_sampler=True),
    "transformers, continuous batching": lambda options: over_transformers(options, batching=True),
    "transformers, generate": lambda options: over_transformers(options, batching=False),
}


def measured_apart(arm: str, options: argparse.Namespace) -> dict[str, Any] | str:
    """An arm in a process of its own, or why it gave nothing."""
    python = options.vllm_python if arm.startswith("vLLM") else sys.executable
    with tempfile.NamedTemporaryFile() as out:
        words = ["--model", options.model, "--rounds", options.rounds, "--new", options.new, "--threads", options.threads]
        command = [python, __file__, *map(str, words), "--arm", arm, "--out", out.name, *["--ragged"][: options.ragged]]
        environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads), "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        said = Path(out.name).read_text()
    return json.loads(said) if said else (done.stdout.strip().splitlines() or ["no word"])[-1]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--model", default="runs/bench-model")
    options.add_argument("--vllm-python", default=".venv-vllm/bin/python")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--new", type=int, default=128)
    options.add_argument("--ragged", action="store_true", help="as many tokens as the questions' own answers have")
    options.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options.add_argument("--arm", default="", help="measure this one here, for the process that compares")
    options.add_argument("--out", default="")
    chosen = options.parse_args()
    if chosen.arm:
        import torch

        torch.set_num_threads(chosen.threads)
        Path(chosen.out).write_text(json.dumps(ARMS[chosen.arm](chosen)))
        return
    heads = " | ".join(f"{count} at once: tokens/s | first token, mean (last), s" for count in COUNTS)
    print(f"| engine | {heads} |\n| --- |{' --- |' * 2 * len(COUNTS)}")
    for arm in ARMS:
        found = measured_apart(arm, chosen)
        if isinstance(found, str):
            print(f"| {arm} | not measured: {found} |", flush=True)
            continue
        cells = [f"{f['rate']:,.0f} | {f['first']:.3f} ({f['last_first']:.3f})" for f in found.values()]
        print(f"| {arm} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()

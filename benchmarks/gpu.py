"""What one GPU gives: ``python benchmarks/gpu.py [--append docs/gpu.md] [--shapes 0.5b,1.5b]``.

For a 0.5B- and a 1.5B-shape model (Qwen2, random weights, bfloat16): the log-prob gap between generator and learner, decode
tokens/s beside transformers' ``generate`` in the same run and as a fraction of the bandwidth floor, the training step's
share of the measured matmul peak, peak memory, and how long a weight update holds the generator up; of the generator besides
prefill, graphs and a bounded cache (``gpu_engine.py``). Appends a dated table.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import datetime
import statistics
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from gpu_engine import measure_engine
from transformers import AutoModelForCausalLM, Qwen2Config

from penstock.algos.grpo import GRPO
from penstock.config.run import LearnerSpec
from penstock.core.contracts import Denominator
from penstock.core.types import PromptKey, Request, Row, SampleKey, Sampling, WeightUpdate
from penstock.engine.generator import EmbeddedGenerator
from penstock.models.language_model import LanguageModel
from penstock.models.language_policy import LanguagePolicy
from penstock.models.packing import lay_out
from penstock.models.text import train_tokenizer
from penstock.train.learner import DeviceLearner, LearnerPlan, Scoring

COLUMNS = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
LEAST_NEW = 24
"""New tokens with which both kinds of update come."""
SHAPES = {"0.5b": (896, 4864, 24, 14, 2), "1.5b": (1536, 8960, 28, 12, 2), "tiny": (64, 128, 2, 4, 2)}


@dataclass
class Workload:
    """How much is generated: ``groups`` prompts of ``prompt`` tokens, ``samples`` each, ``new`` tokens each."""

    groups: int = 16
    samples: int = 8
    prompt: int = 256
    new: int = 256

    @property
    def rows(self) -> int:
        return self.groups * self.samples


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def timed(device: torch.device, work, repeat: int = 10) -> float:
    """Median seconds of ``work()`` after three warm-ups."""
    for _ in range(3):
        work()
    seconds = []
    for _ in range(repeat):
        synchronise(device)
        started = time.perf_counter()
        work()
        synchronise(device)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def limits(device: torch.device, dtype: torch.dtype) -> tuple[float, float]:
    """Measured matmul peak in FLOP/s and copy bandwidth in bytes/s (read plus write)."""
    n = 8192 if device.type == "cuda" else 1024
    a, b = torch.randn(n, n, device=device, dtype=dtype), torch.randn(n, n, device=device, dtype=dtype)
    peak = 2 * n**3 / timed(device, lambda: a @ b)
    source = torch.empty(1 << (31 if device.type == "cuda" else 26), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    bandwidth = 2 * source.numel() / timed(device, lambda: target.copy_(source))
    return peak, bandwidth


def build(shape: str, device: torch.device, dtype: torch.dtype) -> LanguageModel:
    """A model of a shape with random weights; its tokenizer is only there to be there."""
    text = train_tokenizer(["benchmark"], 300)
    sizes = dict(zip(COLUMNS, SHAPES[shape], strict=True))
    config = Qwen2Config(
        vocab_size=151936, max_position_embeddings=4096, tie_word_embeddings=True, eos_token_id=text.end, **sizes
    )
    torch.manual_seed(0)
    with torch.device(device):
        network = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return LanguageModel(network.eval(), text)


def requests(work: Workload, vocabulary: int) -> list[Request]:
    random = np.random.default_rng(0)
    prompts = random.integers(1000, vocabulary, (work.groups, work.prompt)).astype(np.int32)
    sampling = Sampling(max_new_tokens=work.new, seed=1)
    return [
        Request(SampleKey(PromptKey("bench", 0, p), s), prompts[p], sampling)
        for p in range(work.groups)
        for s in range(work.samples)
    ]


async def generate(generator: EmbeddedGenerator, asked: list[Request], updates: list | None = None):
    """All requests at once; with ``updates`` also a weight update every tenth step, whose seconds are noted."""
    tasks = [asyncio.create_task(generator.generate(request)) for request in asked]
    turn = 0
    while updates is not None and not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        turn += 1
        if turn % 10 == 0:
            weights = None if turn % 20 else [(name, tensor.clone()) for name, tensor in generator.model.policy_weights()]
            synchronise(generator.model.device)
            started = time.perf_counter()
            await generator.load(WeightUpdate(generator.version + 1, weights))
            synchronise(generator.model.device)
            updates.append(("alias" if weights is None else "copy", time.perf_counter() - started))
    return await asyncio.gather(*tasks)


def measure_generation(model: LanguageModel, work: Workload, bandwidth: float) -> tuple[dict[str, float], list]:
    device = model.device
    generator = EmbeddedGenerator(model, max_running=work.rows, chunk=8192)
    asked = requests(work, model.config.vocab_size)
    asyncio.run(generate(generator, asked))  # captures graphs, grows the pool
    synchronise(device)
    started = time.perf_counter()
    samples = asyncio.run(generate(generator, asked))
    synchronise(device)
    seconds = time.perf_counter() - started
    drawn = sum(int(sample.action_T.sum()) for sample in samples)
    weight_bytes = sum(t.numel() * t.element_size() for _, t in model.policy_weights())
    per_token = generator.own_cache.cell
    cache_bytes = (work.groups * work.prompt + work.rows * work.new / 2) * per_token  # a prompt is read once for its samples
    floor = work.new * (weight_bytes + cache_bytes) / (bandwidth)
    updates: list = []
    asyncio.run(generate(generator, asked, updates))
    stalls = {kind: sorted(s for k, s in updates if k == kind) for kind in ("alias", "copy")}
    found = {
        "decode tokens/s": drawn / seconds,
        "share of the bandwidth floor": floor / seconds,
        "seconds": seconds,
        "update stall p95, alias (ms)": 1e3 * stalls["alias"][int(0.95 * len(stalls["alias"]))],
        "update stall p95, copied in (ms)": 1e3 * stalls["copy"][int(0.95 * len(stalls["copy"]))],
    }
    return found, samples


def measure_transformers(model: LanguageModel, work: Workload) -> float:
    """Tokens/s of transformers' generate on the same prompts, sampling, batch and length."""
    network = model.network
    network.set_attn_implementation("sdpa")
    tokens = torch.tensor(np.stack([request.tokens_T for request in requests(work, model.config.vocab_size)])).to(model.device)

    def run(new: int) -> float:
        synchronise(model.device)
        started = time.perf_counter()
        network.generate(
            tokens.long(), attention_mask=torch.ones_like(tokens), do_sample=True, temperature=1.0, top_k=0,
            max_new_tokens=new, min_new_tokens=new, pad_token_id=0,
        )  # fmt: skip
        synchronise(model.device)
        return time.perf_counter() - started

    run(8)
    seconds = run(work.new)
    network.set_attn_implementation("penstock")
    return work.rows * work.new / seconds


def waits(work) -> float:
    """How often ``work()`` waits for the device."""
    if not torch.cuda.is_available():
        return float("nan")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return float(sum("synchronizing CUDA operation" in str(one.message) for one in found))


def measure_learner(learner: DeviceLearner, step, seconds: float, units: list) -> dict[str, float]:
    """What frozen models gain by the learner's type, and a step by the last block in part; drops gradients gathered so far."""
    learner.masters.drop()
    learner.noted.clear()
    needs, device = frozenset({"logp"}), learner.policy.device
    exact = Scoring(LanguagePolicy(copy.deepcopy(learner.policy.module).float()), learner.budget)
    slow = timed(device, lambda: exact.score(units, needs), repeat=3)
    fast = timed(device, lambda: learner.score(units, needs), repeat=3)
    learner.policy.narrow = False
    whole = timed(device, step, repeat=3)
    learner.policy.narrow = True
    return {"scoring, float32 / bfloat16": slow / fast, "training step, whole last block / in part": whole / seconds}


def measure_training(model: LanguageModel, samples: list, work: Workload, peak: float) -> dict[str, float]:
    """One GRPO step over the samples: gap of log-probs, FLOP utilisation, peak memory."""
    device = model.device
    spec = LearnerSpec(learning_rate=1e-6, token_budget=16384, dtype="bfloat16")
    learner = DeviceLearner(LanguagePolicy(model), spec, LearnerPlan(total_steps=10))
    rows = [Row(s.columns, s.action_T) for s in samples]
    scores = learner.score([(row,) for row in rows], frozenset({"logp"}))
    gaps = np.concatenate([abs(scored - s.logp_T[s.action_T]) for scored, s in zip(scores["logp"], samples, strict=True)])
    algorithm = GRPO()
    random = np.random.default_rng(0)
    units = []
    for p in range(work.groups):
        unit = []
        for s in samples[p * work.samples : (p + 1) * work.samples]:
            actions = int(s.action_T.sum())
            fields = {
                "advantage": np.full(actions, random.normal(), np.float32),
                "old_logp": s.logp_T[s.action_T],
                "weight": np.ones(actions, np.float32),
                "reward": 0.0,
            }
            unit.append(Row(s.columns, s.action_T, fields))
        units.append(tuple(unit))

    loss, denominator = algorithm.loss(), Denominator.of(units)
    batches = lay_out(units, spec.token_budget, spec.share_prefix, coupled=algorithm.coupled)

    def accumulate() -> None:
        for batch in batches:
            learner.accumulate(batch, loss, denominator)

    def step() -> None:
        accumulate()
        learner.step()

    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds = timed(device, step, repeat=3)
    packed = sum(len(batch.tokens_N) for batch in batches)
    shape = model.config
    body = sum(t.numel() for name, t in model.policy_weights() if "embed" not in name)
    actions = sum(int(s.action_T.sum()) for s in samples)
    attention = 12 * shape.num_hidden_layers * shape.hidden_size * sum(len(s.tokens_T) ** 2 for s in samples) / 2
    flops = 6 * body * packed + 6 * shape.vocab_size * shape.hidden_size * actions + attention
    memory = torch.cuda.max_memory_allocated() / 1e9 if device.type == "cuda" else float("nan")
    return {
        "log-prob gap, mean (nats)": float(gaps.mean()),
        "log-prob gap, p99.9 (nats)": float(np.quantile(gaps, 0.999)),
        "training step (s)": seconds,
        "waits for the device in micro-batches": waits(accumulate),
        **measure_learner(learner, step, seconds, [(row,) for row in rows]),
        "trained tokens/s (prompt and answer)": sum(len(s.tokens_T) for s in samples) / seconds,
        "share of the matmul peak, training": flops / seconds / peak,
        "peak memory, training (GB)": memory,
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--append", type=Path, default=None)
    options.add_argument("--shapes", default="0.5b,1.5b")
    options.add_argument("--device", default="cuda")
    options.add_argument("--groups", type=int, default=16)
    options.add_argument("--new", type=int, default=256)
    chosen = options.parse_args()
    if chosen.new < LEAST_NEW:
        options.error(f"--new {chosen.new}: an update comes every tenth step, so take {LEAST_NEW} tokens or more")
    device = torch.device(chosen.device)
    dtype = torch.bfloat16
    work = Workload(groups=chosen.groups, new=chosen.new)
    peak, bandwidth = limits(device, dtype)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    columns: dict[str, dict[str, float]] = {}
    for shape in chosen.shapes.split(","):
        model = build(shape, device, dtype)
        found, samples = measure_generation(model, work, bandwidth)
        found |= measure_engine(model, (work.groups, work.samples, work.prompt, work.new))
        rival = measure_transformers(model, work)
        found |= {"transformers generate, tokens/s": rival, "decode, ratio to generate": found["decode tokens/s"] / rival}
        found |= measure_training(model, samples, work, peak)
        columns[shape] = found
        print(shape, {k: round(v, 5) for k, v in found.items()}, flush=True)
        del model, samples
        if device.type == "cuda":
            torch.cuda.empty_cache()
    table = render(columns, name, work, peak, bandwidth)
    print(table)
    if chosen.append:
        with open(chosen.append, "a", encoding="utf-8") as out:
            out.write("\n" + table)


def render(columns: dict[str, dict[str, float]], name: str, work: Workload, peak: float, bandwidth: float) -> str:
    """The dated table in Markdown."""
    lines = [
        f"## {datetime.date.today()}, {name}, torch {torch.__version__}, bfloat16",
        "",
        f"{work.groups} prompts of {work.prompt} tokens × {work.samples} samples × {work.new} new tokens; measured peak "
        f"{peak / 1e12:.0f} TFLOP/s (matmul), {bandwidth / 1e12:.2f} TB/s (copy).",
        "",
        "| | " + " | ".join(columns) + " |",
        "|---|" + "---:|" * len(columns),
    ]
    for row in next(iter(columns.values())):
        lines.append(f"| {row} | " + " | ".join(f"{column[row]:,.4g}" for column in columns.values()) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()

"""GRPO beside TRL on the same work, one after the other in one run: ``python benchmarks/vs_trl.py --peer-python PYTHON``.

Work: 16 prompts × 8 samples, at most 256 new tokens with natural ragged ends, one optimizer step a batch, float32, on the
bench model (3.2M parameters). The peer's script and the model's maker are in ``../shared/bench``; the peer needs an
environment with ``torch==2.13.0 transformers trl==1.16 datasets``. Without ``--peer-python`` only our side is measured.
Ends with ``generation R x`` and ``end to end R x``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SHARED = Path(__file__).resolve().parents[2] / "shared"


def reward(sample, columns) -> float:
    """The reward of the peer's script."""
    return float(columns["answer"].split("#### ")[1] in sample.text) + 0.001 * len(set(sample.text))


def questions() -> list[dict[str, str]]:
    """The peer's prompts: the first 512 questions of at most 96 tokens."""
    from penstock.models.files import load_text

    text = load_text(os.environ["BENCH_MODEL"])
    lines = (SHARED / "data/gsm8k/train.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return [row for row in rows if len(text.encode(row["question"])) <= 96][:512]


def ours(model: str, steps: int, dtype: str) -> dict[str, float]:
    """Our side: the real loops on the local runtime."""
    os.environ["BENCH_MODEL"] = model
    from penstock.algos.grpo import GRPO
    from penstock.config.run import DataSpec, LearnerSpec, ModelSpec, Online, RewardSpec, Run
    from penstock.core.types import Sampling
    from penstock.runtime.build import Models
    from penstock.runtime.local import alongside
    from penstock.runtime.stages import prepare
    from penstock.train.device import set_up

    here = f"{Path(__file__).resolve()}"
    stage = Online(
        name="grpo",
        model=ModelSpec(path=model),
        data=DataSpec(source=f"{here}:questions", prompt="{{ question }}\n"),
        rewards=(RewardSpec(function=f"{here}:reward"),),
        algorithm=GRPO(aggregate="sequence"),
        learner=LearnerSpec(learning_rate=1e-5, dtype=dtype),  # type: ignore[arg-type]
        sampling=Sampling(max_new_tokens=256),
        steps=steps,
    )
    run = Run(name="bench", stages=(stage,))
    ready = prepare(stage, run, Models(Path, set_up("cpu", 0), 0), Path.cwd())
    rows: list[dict[str, float]] = []
    clock = time.perf_counter()

    def note(step) -> None:
        nonlocal clock
        now, m = time.perf_counter(), step.metrics
        rows.append(
            {"seconds": now - clock, "generated": m["tokens/generated"], "generation": m["generation/tokens_per_second"]}
        )
        print(
            f"step {now - clock:.2f}s gen {m['seconds/generated']:.2f}s train {m['seconds/trained']:.2f}s tokens "
            f"{m['tokens/generated']:.0f} gen {rows[-1]['generation']:.0f} tok/s end-to-end "
            f"{m['tokens/generated'] / (now - clock):.0f} tok/s",
            flush=True,
        )
        clock = now

    async def main() -> None:
        async with alongside(*ready.background()):
            async for step in ready.steps(0):
                note(step)

    asyncio.run(main())
    warm = rows[1:] or rows
    return {
        "generation": statistics.median(row["generation"] for row in warm),
        "end to end": statistics.median(row["generated"] / row["seconds"] for row in warm),
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "flops": flops(warm, ready.model),
    }


def flops(rows: list[dict[str, float]], model) -> float:
    """Useful FLOP/s: 2 a parameter and generated token to draw it, 6 to train on it (prompts and attention left out)."""
    parameters = sum(p.numel() for p in model.network.parameters())
    return statistics.median(8 * parameters * row["generated"] / row["seconds"] for row in rows)


def matmul_peak() -> float:
    """Measured float32 FLOP/s of a large matrix product."""
    import torch

    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    best = float("inf")
    for _ in range(12):
        started = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - started)
    return 2 * 2048**3 / best


def theirs(python: str, model: str, steps: int) -> dict[str, float]:
    """The peer's side, in its own environment and process."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [python, str(SHARED / "bench/trl_grpo.py"), model, str(steps)], cwd=folder, capture_output=True, text=True
        )
    if done.returncode:
        sys.exit(f"the peer failed: {done.stderr.strip().splitlines()[-1]}")
    print(done.stdout.strip(), flush=True)
    found = re.findall(r"gen (\d+) tok/s end-to-end (\d+) tok/s", done.stdout)
    warm = found[1:] or found
    return {
        "generation": statistics.median(float(generation) for generation, _ in warm),
        "end to end": statistics.median(float(total) for _, total in warm),
        "memory": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6,
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--model", default="runs/bench-model")
    options.add_argument("--steps", type=int, default=6)
    options.add_argument("--peer-python", default="")
    options.add_argument("--dtype", default="float32", choices=["float32", "mixed", "bfloat16"])
    options.add_argument("--side", default="both", choices=["both", "ours"])
    chosen = options.parse_args()
    if chosen.side == "ours":
        print(json.dumps(ours(chosen.model, chosen.steps, chosen.dtype)))
        return
    if not Path(chosen.model).exists():
        subprocess.run([sys.executable, str(SHARED / "bench/make_model.py"), chosen.model], check=True)
    model = str(Path(chosen.model).resolve())
    peer = theirs(chosen.peer_python, model, chosen.steps) if chosen.peer_python else None
    command = [sys.executable, __file__, "--side", "ours", "--model", model, "--steps", str(chosen.steps)]
    printed = subprocess.run([*command, "--dtype", chosen.dtype], check=True, capture_output=True, text=True).stdout
    *lines, last = printed.strip().splitlines()
    print("\n".join(lines))
    own = json.loads(last)
    peak = matmul_peak()
    print(f"ours: {own['generation']:.0f} generated tokens/s, {own['end to end']:.0f} end to end, {own['memory']:.2f} GB peak")
    print(f"measured float32 matmul peak {peak / 1e9:.0f} GFLOP/s; useful work end to end is {own['flops'] / peak:.0%} of it")
    if peer:
        rates = f"{peer['generation']:.0f} generated tokens/s, {peer['end to end']:.0f} end to end"
        print(f"TRL:  {rates}, {peer['memory']:.2f} GB peak")
        print(f"memory {own['memory'] / peer['memory']:.2f} of the peer's")
        print(f"generation {own['generation'] / peer['generation']:.1f} x")
        print(f"end to end {own['end to end'] / peer['end to end']:.1f} x")


if __name__ == "__main__":
    main()

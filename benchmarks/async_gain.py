"""What asynchrony gains: four arms on the same two cores, under five conditions, over several seeds.

    python benchmarks/async_gain.py                                     # everything; see --help for less
    python benchmarks/async_gain.py --conditions lognormal --seeds 0    # one condition, one seed
    python benchmarks/async_gain.py --table                             # only the table, from the runs that are there

Arms: *separated*, learner and generator are processes with a core each and take turns (``max_lag=0``); *colocated*, one
process with both cores generates and trains in turn; *one step off*, processes, ``max_lag=1`` and updates at batch borders
(``kv="drain"``); *in flight*, processes, ``max_lag=3`` and updates between decode steps (``kv="keep"``). Every process of the
runtime ``procs`` computes on one thread. Two threads need not help a small model, and where others compute beside it they
harm it; so under lognormal lengths there is a colocated arm on one core too, and both must be beaten. Under lognormal lengths
there is a second in-flight arm, with ``max_lag=4``: the longest answers take about three batches' time. Run it on an idle
machine.

All arms train on the same number of samples of the same prompts, begin with the same imitated model and have the same
learner and loss: GRPO's advantages, each token weighed by its truncated importance weight ``min(ratio, 5)``, the ratio being
that to the weights that drew it (PipelineRL, arXiv 2509.19128), which needs no other correction off policy. Lengths of answers
are imposed: a function of a sample's key, alike in all arms. Times come from each run's own event log and spans.
They begin with the first decode step, so that neither imports nor imitation count; rates leave the first batches out, while
pipes fill. The reward that is timed is that of the batches trained on; behind a lag it is the reward of older weights, at the
expense of the arms that are off policy. The reward reached is that of the last weights on held-out prompts.

Balance: the batch is such that the separated arm generates about as long as it trains where lengths are constant. The table
has both times.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import async_gain_roles
import numpy as np
from async_gain_task import LONGEST, Conditions, drawn, share_named

from penstock.algos.grpo import GRPO
from penstock.algos.objectives import CISPO
from penstock.algos.sft import SFT
from penstock.config.run import DataSpec, LearnerSpec, ModelSpec, Offline, Online, RewardSpec, Run
from penstock.config.spec import plain
from penstock.core.events import read_events
from penstock.core.types import CachePolicy, PromptKey, Request, SampleKey, Sampling
from penstock.engine.encoder_decoder import embedded_generator
from penstock.envs.spec import EnvironmentSpec
from penstock.models.files import load_model
from penstock.observe.lanes import read_lanes
from penstock.observe.timeline import account
from penstock.runtime import launch

TASK = Path(__file__).with_name("async_gain_task.py").resolve()
TEXT: dict[str, Any] = {"prompt": "{{ letters }}:", "completion": "{{ completion }}"}
PROMPTS, SAMPLES = 8, 8
TARGET = 0.6
"""Mean reward of :data:`WINDOW` batches in a row that a run is timed to."""
WINDOW = 5
FILLING = 4
"""Batches at the start that rates leave out."""
HELD_OUT, ANSWER = 256, 16
"""Prompts, and tokens of an answer at most, by which the weights that a run ended with are measured."""
DEADLINE = 600
"""Seconds that one run may take."""


@dataclass(frozen=True)
class Arm:
    name: str
    processes: bool
    threads: int = 1
    """Of each process."""
    max_lag: int = 0
    kv: CachePolicy = "keep"
    only: str = ""
    """The one condition under which it runs; empty: all."""


ARMS = (
    Arm("separated", True),
    Arm("colocated", False, threads=2),
    Arm("colocated on one core", False, only="lognormal"),
    Arm("one step off", True, max_lag=1, kv="drain"),
    Arm("in flight", True, max_lag=3, kv="keep"),
    Arm("in flight, lag 4", True, max_lag=4, kv="keep", only="lognormal"),
)


@dataclass(frozen=True)
class Condition:
    """What is imposed, and training batches of a run."""

    name: str
    imposed: Conditions
    steps: int


CONDITIONS = (
    Condition("constant", Conditions("constant"), 48),
    Condition("uniform", Conditions("uniform"), 48),
    Condition("lognormal", Conditions("lognormal"), 48),
    Condition("decode latency", Conditions("lognormal", floor=0.005), 36),
    Condition("environment latency", Conditions("lognormal", mean=6, longest=32, wait=0.25), 32),
)

REQUIRED = (
    ("lognormal", "in flight", "separated", 1.8),
    ("lognormal", "in flight, lag 4", "separated", 1.8),
    ("lognormal", "in flight", "colocated", 1.2),
    ("lognormal", "in flight", "colocated on one core", 1.2),
    ("environment latency", "in flight", "colocated", 2.5),
    ("decode latency", "in flight", "one step off", 1.8),
)
"""By how much an in-flight arm must beat another under a condition, in samples per second."""


def arms_under(condition: str) -> list[Arm]:
    return [arm for arm in ARMS if arm.only in ("", condition)]


def imitation(seed: int, steps: int) -> Run:
    """What all arms of a seed begin with."""
    options = {"size": 4000, "seed": 10**6 + seed, "answer": 32}
    stage = Offline(
        name="sft",
        model=ModelSpec(preset="1m", layers=2, vocabulary=259, context=192),  # bytes and marks alone: a letter is a token
        data=DataSpec(source=f"{TASK}:drawn", options=options, **TEXT),
        algorithm=SFT(),
        learner=LearnerSpec(learning_rate=2e-3, warmup=20, token_budget=16384),
        steps=steps,
    )
    return Run(name="imitation", seed=seed, threads=1, stages=(stage,))


def reinforcement(arm: Arm, condition: Condition, seed: int, model: Path) -> Run:
    """One arm under one condition."""
    waits = {"wait": condition.imposed.wait, "seed": seed}
    stage = Online(
        name="grpo",
        model=ModelSpec(path=str(model)),
        data=DataSpec(source=f"{TASK}:drawn", options={"size": 4000, "seed": seed}, **TEXT),
        rewards=(RewardSpec(function=f"{TASK}:share_named"),),
        environment=EnvironmentSpec(function=f"{TASK}:tool", turns=2, options=waits) if condition.imposed.wait else None,
        algorithm=GRPO(objective=CISPO(), clip=(1.0, 4.0)),
        learner=LearnerSpec(learning_rate=4e-4, warmup=4, token_budget=8192),
        sampling=Sampling(max_new_tokens=LONGEST),
        samples=SAMPLES,
        batch=PROMPTS,
        steps=condition.steps,
        max_lag=arm.max_lag,
        kv=arm.kv,
        max_running=PROMPTS * SAMPLES * (arm.max_lag + 1),
    )
    if arm.processes:
        return Run(name="arm", seed=seed, device="cpu", runtime="procs", threads=arm.threads, stages=(stage,))
    return Run(name="arm", seed=seed, device="cpu", threads=arm.threads, stages=(stage,))


@contextlib.contextmanager
def server() -> Iterator[str]:
    """Whoever forks the processes; gives its address."""
    with tempfile.TemporaryDirectory(prefix="async-gain") as folder:
        where = str(Path(folder) / "socket")
        words = [sys.executable, async_gain_roles.__file__, "serve", where]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdout.readline()
            yield where
        finally:
            process.stdin.close()
            process.wait(timeout=30)


def carry_out(run: Run, folder: Path, where: str, imposed: Conditions) -> None:
    """One run from its first process to its last."""
    command = (*async_gain_roles.COMMAND, where, json.dumps(asdict(imposed)))
    if run.runtime == "procs":
        signal.alarm(DEADLINE)
        launch(run, folder, command=(*command, "role"))
        signal.alarm(0)
        return
    words = [*command, "run", json.dumps(plain(run)), str(folder)]
    code = subprocess.run(words, timeout=DEADLINE, check=False).returncode
    if code:
        raise SystemExit(f"{folder}: ended with code {code}")


def measured(folder: Path) -> dict[str, Any]:
    """What a finished run shows."""
    lanes = read_lanes(folder / "spans")
    generating = [span for lane in lanes if lane.role.startswith("generator") for span in lane.spans if span.name == "generate"]
    began = min(span.start for span in generating)
    steps = [event for event in read_events(folder / "events.jsonl") if "reward/mean" in event.get("values", {})]
    at = [event["time"] - began for event in steps]
    rewards = [event["values"]["reward/mean"] for event in steps]
    reached = [
        time
        for place, time in enumerate(at)
        if place + 1 >= WINDOW and statistics.mean(rewards[place + 1 - WINDOW : place + 1]) >= TARGET
    ]
    learning = next(role for role in account(lanes).roles if role.role == "learner").seconds
    found, batches = account(lanes), len(steps)
    counted = (batches - FILLING) * PROMPTS * SAMPLES
    return {
        "samples_per_second": counted / (at[-1] - at[FILLING - 1]),
        "seconds": at[-1],
        "seconds_to_target": reached[0] if reached else math.inf,
        "reward": asyncio.run(held_out_reward(folder / "model")),
        "seconds_generating": sum(span.busy for span in generating) / batches,
        "seconds_training": (learning.get("train", 0.0) + learning.get("label", 0.0)) / batches,
        "mean_lag": found.mean_lag,
        "stall_p95": found.stall(0.95),
        "rewards": [round(reward, 4) for reward in rewards],
        "times": [round(time, 3) for time in at],
    }


async def held_out_reward(model: Path) -> float:
    """Mean reward of the weights that a run ended with, on prompts that no arm has seen: free of any lag."""
    generator = embedded_generator(load_model(str(model)), max_running=HELD_OUT)
    encode, sampling = generator.text.encode, Sampling(max_new_tokens=ANSWER)
    requests = [
        Request(SampleKey(PromptKey("held-out", 0, place), 0), np.asarray(encode(f"{row['letters']}:"), np.int32), sampling)
        for place, row in enumerate(drawn(HELD_OUT, 10**6))
    ]
    samples = await asyncio.gather(*(generator.generate(request) for request in requests))
    return statistics.mean(share_named(sample, {}) for sample in samples)


def spread(values: Sequence[float], digits: int) -> str:
    """Median and range."""
    low, middle, high = (f"{value:.{digits}f}" for value in (min(values), statistics.median(values), max(values)))
    return f"{middle} ({low} to {high})".replace("inf", "never")


Results = Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]
"""By condition and arm: what was measured, a run for each seed."""


def ratio(results: Results, condition: str, other: str, ours: str = "in flight") -> list[float]:
    """Samples per second of the in-flight arm over those of another, seed by seed."""
    rates = [[run["samples_per_second"] for run in results[condition, arm]] for arm in (ours, other)]
    return [our / their for our, their in zip(*rates, strict=True)]


def table(results: Results) -> list[str]:
    """The table, and what was required."""
    lines = [
        f"| condition | arm | samples/s | s to reward {TARGET} | held-out reward | generate, s | train, s | mean lag | gain |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (condition, arm), runs in results.items():
        cells = [
            spread([run[name] for run in runs], digits)
            for name, digits in (("samples_per_second", 0), ("seconds_to_target", 1), ("reward", 3))
        ]
        cells += [
            f"{statistics.median(run[name] for run in runs):.2f}"
            for name in ("seconds_generating", "seconds_training", "mean_lag")
        ]
        gain = spread(ratio(results, condition, arm), 2) if (condition, "in flight") in results else ""
        lines.append(f"| {condition} | {arm} | {' | '.join(cells)} | {gain} |")
    lines += ["", "| condition | arm | over | at least | found | |", "| --- | --- | --- | --- | --- | --- |"]
    for condition, ours, arm, least in REQUIRED:
        if {(condition, arm), (condition, ours)} <= results.keys():
            found = statistics.median(ratio(results, condition, arm, ours))
            met = "met" if found >= least else "MISSED"
            lines.append(f"| {condition} | {ours} | {arm} | {least} | {found:.2f} | {met} |")
    gains = {
        (condition, arm): statistics.median(ratio(results, condition, arm))
        for condition, arm in results
        if not arm.startswith("in flight") and (condition, "in flight") in results
    }
    losses = [f"{condition} against {arm} ({gain:.2f})" for (condition, arm), gain in gains.items() if gain < 1]
    return [*lines, "", f"Where in flight is slower: {', '.join(losses) or 'nowhere'}."]


def gathered(home: Path, seeds: Sequence[int]) -> Results:
    """The results of all finished runs."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for condition in CONDITIONS:
        for arm in ARMS:
            files = [place(home, condition, arm, seed) / "measured.json" for seed in seeds]
            if all(file.exists() for file in files):
                found[condition.name, arm.name] = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    return found


def place(home: Path, condition: Condition, arm: Arm, seed: int) -> Path:
    return home / f"{condition.name}-{arm.name}-{seed}".replace(" ", "-")


def measure(home: Path, conditions: Sequence[Condition], arms: Sequence[Arm], seeds: Sequence[int], imitated: int) -> None:
    """Carry out what has not been measured yet, seed after seed, so that what changes over time meets all arms alike."""
    with server() as where:
        for seed in seeds:
            teacher = home / f"imitation-{seed}"
            if not (teacher / "model").exists():
                carry_out(imitation(seed, imitated), teacher, where, Conditions())
            for condition in conditions:
                for arm in (arm for arm in arms if arm in arms_under(condition.name)):
                    folder = place(home, condition, arm, seed)
                    if (folder / "measured.json").exists():
                        continue
                    shutil.rmtree(folder, ignore_errors=True)  # one that was stopped half-way
                    began = time.perf_counter()
                    run = reinforcement(arm, condition, seed, (teacher / "model").resolve())
                    carry_out(run, folder, where, replace(condition.imposed, seed=seed))
                    found = measured(folder)
                    (folder / "measured.json").write_text(json.dumps(found), encoding="utf-8")
                    print(
                        f"{folder.name}: {found['samples_per_second']:.0f} samples/s, target after "
                        f"{found['seconds_to_target']:.1f} s, reward {found['reward']:.3f}, "
                        f"{time.perf_counter() - began:.0f} s in all",
                        flush=True,
                    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    conditions, arms = {c.name: c for c in CONDITIONS}, {a.name: a for a in ARMS}
    options.add_argument("--conditions", nargs="+", default=list(conditions), choices=list(conditions))
    options.add_argument("--arms", nargs="+", default=list(arms), choices=list(arms))
    options.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    options.add_argument("--steps", type=int, default=0, help="training batches of each run (0: each condition's own)")
    options.add_argument("--imitate", type=int, default=200, help="steps of imitation that every seed begins with")
    options.add_argument("--runs", type=Path, default=Path("runs/async-gain"))
    options.add_argument("--table", action="store_true", help="run nothing")
    given = options.parse_args()
    chosen = [replace(conditions[name], steps=given.steps or conditions[name].steps) for name in given.conditions]
    given.runs.mkdir(parents=True, exist_ok=True)
    if not given.table:
        measure(given.runs, chosen, [arms[name] for name in given.arms], given.seeds, given.imitate)
    results = gathered(given.runs, given.seeds)
    kept = [{"condition": condition, "arm": arm, "runs": runs} for (condition, arm), runs in results.items()]
    (given.runs / "results.json").write_text(json.dumps(kept, indent=1), encoding="utf-8")
    print("\n".join(table(results)))


if __name__ == "__main__":
    main()

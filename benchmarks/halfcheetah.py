"""HalfCheetah end to end next to EnvPool's stepping alone, and return after so many seconds next to Stable-Baselines3.

    python benchmarks/halfcheetah.py --seeds 5 --seconds 60 --peer /path/to/python

In one process: EnvPool alone with random actions, training, EnvPool alone again. ``--peer`` is a Python with stable-baselines3
and mujoco (``benchmarks/peers/sb3_halfcheetah.py``).
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from control import measured

HERE = Path(__file__).resolve()
PEER = HERE.parent / "peers" / "sb3_halfcheetah.py"


def alone(name: str, count: int, options: dict[str, Any], seconds: float = 4.0) -> tuple[float, float]:
    """Steps a second of EnvPool with random actions, and CPU seconds of a step."""
    from penstock.control.pool import pool

    made, generator = pool(name, list(range(count)), options), np.random.default_rng(0)
    made.reset()
    actions = generator.uniform(-1, 1, (64, count, *made.single_action_space.shape))
    began, used, steps = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - began < seconds:
        made.step(actions[steps % 64])
        steps += 1
    steps *= count
    return steps / (time.perf_counter() - began), (time.process_time() - used) / steps


def ours(seed: int, seconds: float, steps: int) -> dict[str, Any]:
    """One run of the recipe in this process, ended after so many seconds of training; ``steps`` lays out its schedule."""
    for late in ("session", "stages.control"):
        importlib.import_module(f"penstock.runtime.{late}")
    from penstock.recipes.halfcheetah import halfcheetah
    from penstock.runtime import launch

    run = halfcheetah(seed=seed, steps=steps)
    environments = run.stages[0].environments
    given = environments.id, environments.count, dict(environments.options)
    before = alone(*given)
    with tempfile.TemporaryDirectory() as folder:
        began, used = time.perf_counter(), time.process_time()
        clock: list[float] = []

        def listen(event: dict[str, Any]) -> None:
            if "steps_per_second" in event.get("values", {}):
                clock.append(time.process_time())

        result = launch(run, Path(folder) / "run", [listen])
        taken, used = time.perf_counter() - began, time.process_time() - used
        batches = [event["values"] for event in result.metrics if "steps_per_second" in event["values"]]
    after = alone(*given)
    spent = sum(one["seconds/acted"] + one["seconds/trained"] for one in batches)
    acted = sum(one["seconds/acted"] for one in batches)
    total, found = 0.0, batches[-1]
    for one in batches:  # what it had reached after so many seconds of acting and training
        total += one["seconds/acted"] + one["seconds/trained"]
        if total > seconds:
            break
        found = one
    rate, both = batches[-1]["environment/steps"] / spent, (before[0] + after[0]) / 2
    own = (clock[-1] - clock[0]) / (batches[-1]["environment/steps"] - batches[0]["environment/steps"])
    return {
        "seconds": taken,
        "loop_seconds": spent,
        "cpu_seconds": used,
        "steps": int(batches[-1]["environment/steps"]),
        "loop": rate,
        "alone": both,
        "share": rate / both,
        "cpu_us": 1e6 * own,
        "cpu_us_alone": 5e5 * (before[1] + after[1]),
        "acting_share": acted / spent,
        "return": found["episode/return"],
        "evaluation": result.summary["stages"]["control"]["last"]["evaluation/reward"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--peer", default="")
    parser.add_argument("--one", type=int, default=-1, help="run ours with this seed in this process, and print it")
    given = parser.parse_args()
    if given.one >= 0:
        print(json.dumps(ours(given.one, given.seconds, given.steps)))
        return
    shared = ["--seconds", str(given.seconds)]
    commands = {"ours": [sys.executable, str(HERE), *shared, "--steps", str(given.steps), "--one"]}
    if given.peer:
        commands |= {f"SB3, {name}": [given.peer, str(PEER), *shared, "--settings", name, "--seed"] for name in ("zoo", "same")}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in commands}
    for seed in range(given.seeds):
        for name, command in commands.items():
            found[name].append(measured([*command, str(seed)]))
            print(f"seed {seed}  {name:<10} {json.dumps(found[name][-1])}", flush=True)
    for name, runs in found.items():
        middle = {key: statistics.median(one[key] for one in runs) for key in runs[0]}
        print(f"{name:<10}", "  ".join(f"{key} {value:,.2f}" for key, value in middle.items()))


if __name__ == "__main__":
    main()

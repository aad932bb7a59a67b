"""Control next to Stable-Baselines3 and PufferLib: CartPole until the mean return of 100 episodes is 475, seed by seed in turn.

    python benchmarks/control.py --seeds 5 --peer /path/to/python --puffer /path/to/python

``--peer`` is a Python that has stable-baselines3 (``benchmarks/peers/sb3_cartpole.py``), ``--puffer`` one that has PufferLib
(``benchmarks/peers/pufferlib_cartpole.py``); without them only ours runs. ``ours, wide`` are 8 batches of PufferLib's size:
4,096 environments, 64 steps, 128 units, one pass in 8 minibatches. Every run is a process of its own with one thread; seconds
begin after its imports and include environments, training, and for ours the event log, two evaluations and the saved model.
CPU seconds say more where others use the machine.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
PEER = HERE.parent / "peers" / "sb3_cartpole.py"
PUFFER = HERE.parent / "peers" / "pufferlib_cartpole.py"


def ours(seed: int, algorithm: str) -> dict[str, Any]:
    """One run of the recipe in this process."""
    for late in ("session", "stages.control"):  # launch imports these when it is called, and imports are not measured
        importlib.import_module(f"penstock.runtime.{late}")
    from penstock.recipes.cartpole import cartpole
    from penstock.runtime import launch

    run = cartpole(seed=seed, algorithm="ppo" if algorithm == "wide" else algorithm)
    if algorithm == "wide":
        stage: Any = run.stages[0]
        environments, model = replace(stage.environments, count=4096), replace(stage.model, hidden=(128,))
        wide = replace(stage, environments=environments, model=model, fragment=64, epochs=1, minibatches=8, steps=8)
        run = replace(run, stages=(wide,))
    with tempfile.TemporaryDirectory() as folder:
        began, used = time.perf_counter(), time.process_time()
        result = launch(run, Path(folder) / "run")
        seconds, used = time.perf_counter() - began, time.process_time() - used
        batches = [event["values"] for event in result.metrics if "steps_per_second" in event["values"]]
    last = batches[-1]
    return {
        "solved": last.get("episode/return", 0.0) >= 475,
        "seconds": seconds,
        "cpu_seconds": used,
        "steps": int(last["environment/steps"]),
        "loop": statistics.median(batch["steps_per_second"] for batch in batches),
        "evaluation": result.summary["stages"]["control"]["last"]["evaluation/reward"],
    }


def measured(command: list[str]) -> dict[str, Any]:
    """What a process prints on its last line."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def printed(name: str, found: list[dict[str, Any]]) -> None:
    """One line of the table."""
    rates = [one["steps"] / one["seconds"] for one in found]
    columns = [f"{sum(one['solved'] for one in found)}/{len(found)} solved"]
    columns += [f"{what} {statistics.median(one[key] for one in found):.2f} s" for what, key in TIMES]
    columns += [f"all {sorted(round(one['seconds'], 2) for one in found)}"]
    columns += [f"steps {statistics.median(one['steps'] for one in found):,.0f}", f"{statistics.median(rates):,.0f} steps/s"]
    if "loop" in found[0]:
        columns.append(f"{statistics.median(one['loop'] for one in found):,.0f} steps/s within the loop")
    print(f"{name:<18}", "  ".join(columns), flush=True)


TIMES = (("median", "seconds"), ("CPU", "cpu_seconds"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--peer", default="")
    parser.add_argument("--puffer", default="")
    parser.add_argument("--one", type=int, default=-1, help="run ours with this seed in this process, and print it")
    parser.add_argument("--most", type=int, default=20_000_000, help="PufferLib's steps at most")
    parser.add_argument("--algorithm", default="ppo", choices=("ppo", "impala", "wide"))
    given = parser.parse_args()
    if given.one >= 0:
        print(json.dumps(ours(given.one, given.algorithm)))
        return
    commands = {
        f"ours, {name}": [sys.executable, str(HERE), "--algorithm", name, "--one"] for name in ("ppo", "impala", "wide")
    }
    if given.puffer:
        puffer = [given.puffer, str(PUFFER), "--most", str(given.most), "--settings"]
        commands |= {f"PufferLib, {name}": [*puffer, name, "--seed"] for name in ("theirs", "plain")}
    if given.peer:
        commands |= {f"SB3, {name}": [given.peer, str(PEER), "--settings", name, "--seed"] for name in ("zoo", "same")}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in commands}
    for seed in range(given.seeds):
        for name, command in commands.items():
            found[name].append(measured([*command, str(seed)]))
            print(f"seed {seed}  {name:<16} {json.dumps(found[name][-1])}", flush=True)
    for name, runs in found.items():
        printed(name, runs)
    if given.peer:
        first = found["ours, ppo"]
        for name in ("SB3, zoo", "SB3, same"):
            for what, key in TIMES:
                ratio = statistics.median(one[key] for one in found[name]) / statistics.median(one[key] for one in first)
                print(f"{name} takes {ratio:.1f} times our {what} seconds to its end")


if __name__ == "__main__":
    main()

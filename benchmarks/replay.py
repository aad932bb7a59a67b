"""DQN next to Stable-Baselines3's with the same settings, and with Rainbow's parts: returns over equal environment steps.

    python benchmarks/replay.py --seeds 3 --peer /path/to/python

``plain`` has one step, one network's maximum and an exploring share of decisions, as the peer; ``rainbow`` has double targets,
dueling heads, three steps, priorities and noisy layers, which alone explore, and half the updates. ``--peer`` is a Python with
stable-baselines3 (``benchmarks/peers/sb3_dqn.py``).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from control import measured

HERE = Path(__file__).resolve()
PEER = HERE.parent / "peers" / "sb3_dqn.py"
BATCH = 16
"""Environment steps between updates: four of each of four environments."""


def ours(id: str, seed: int, steps: int, kind: str) -> dict[str, Any]:
    """One run in this process: returns of the latest 100 episodes eight times, and greedily at the end."""
    from penstock.algos.off_policy import DQN
    from penstock.config.learner import LearnerSpec
    from penstock.config.run import Run
    from penstock.control.stage import Control, EnvironmentsSpec, Episodes, PolicyNetwork
    from penstock.runtime import launch

    batches, own = steps // BATCH, {"double": False, "dueling": False, "explore_last": 0.1}
    own["explore_batches"] = max(1, batches * 12 // 100)
    if kind == "rainbow":
        own = {"n_steps": 3, "priority": 0.5, "noisy": 0.5, "explore_first": 0.0, "explore_last": 0.0}
    stage = Control(
        name="control",
        environments=EnvironmentsSpec(id=id, count=4),
        model=PolicyNetwork(hidden=(64, 64) if kind == "rainbow" else (256, 256), activation="relu"),
        algorithm=DQN(batch=128, capacity=50_000, warmup=1_000, target_rate=1.0, target_every=250, **own),  # type: ignore[arg-type]
        learner=LearnerSpec(learning_rate=6.3e-4, clip_norm=10.0, token_budget=65536),
        fragment=BATCH // 4,
        minibatches=BATCH // 2 if kind == "rainbow" else BATCH,
        epochs=1,
        steps=batches,
        evaluation=Episodes(episodes=32, longest=500),
    )
    used = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        result = launch(Run(name="replay", seed=seed, stages=(stage,), device="cpu", threads=1), Path(folder) / "run")
        returns = [event["values"]["episode/return"] for event in result.metrics if "episode/return" in event["values"]]
        greedy = result.summary["stages"]["control"]["last"]["evaluation/reward"]
    curve = [round(returns[len(returns) * part // 8 - 1], 1) for part in range(1, 9)]
    return {"curve": curve, "greedy": round(greedy, 1), "cpu_seconds": time.process_time() - used}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--id", default="Acrobot-v1", help="with the peer's settings for that task, so that others say little")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=51_200)
    parser.add_argument("--peer", default="")
    parser.add_argument("--kind", choices=("plain", "rainbow"), default="plain")
    parser.add_argument("--one", type=int, default=-1, help="run ours with this seed in this process, and print it")
    given = parser.parse_args()
    if given.one >= 0:
        print(json.dumps(ours(given.id, given.one, given.steps, given.kind)))
        return
    shared = ["--id", given.id, "--steps", str(given.steps)]
    commands = {kind: [sys.executable, str(HERE), *shared, "--kind", kind, "--one"] for kind in ("plain", "rainbow")}
    if given.peer:
        commands["SB3"] = [given.peer, str(PEER), *shared, "--seed"]
    for seed in range(given.seeds):
        for name, command in commands.items():
            print(f"seed {seed}  {name:<8} {json.dumps(measured([*command, str(seed)]))}", flush=True)


if __name__ == "__main__":
    main()

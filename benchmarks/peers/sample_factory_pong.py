"""Sample Factory's side of ``benchmarks/pong.py``: its Atari settings over EnvPool, asynchronous, on this machine's cores.

Two EnvPools of 16 games in two workers, since it wants several for overlap, and four minibatches of 256 steps in four epochs, its
own. Run by a Python that has sample-factory and envpool; prints one line of JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time

from sample_factory.algo.runners.runner import AlgoObserver, Runner
from sample_factory.train import make_runner
from sf_examples.envpool.atari.train_envpool_atari import parse_atari_args, register_atari_components


class Clock(AlgoObserver):
    """Notes agent steps after each training step."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.noted = seconds, [(0.0, 0.0)]
        self.began = time.perf_counter()

    def on_training_step(self, runner: Runner, training_iteration_since_resume: int) -> None:
        taken = time.perf_counter() - self.began
        if taken <= self.seconds:
            self.noted.append((taken, sum(runner.env_steps.values()) / runner.cfg.env_frameskip))

    def rate(self) -> dict[str, float]:
        first = next(pair for pair in self.noted if pair[0] >= self.seconds / 10)
        last = self.noted[-1]
        return {"steps": last[1], "seconds": last[0], "rate": (last[1] - first[1]) / (last[0] - first[0])}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    given = parser.parse_args()
    register_atari_components()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        options = {
            "algo": "APPO", "env": "atari_pong", "device": "cpu", "experiment": "pong", "train_dir": folder,
            "num_workers": 2, "env_agents": 16, "train_for_seconds": int(given.seconds),
        }  # fmt: skip
        settings = parse_atari_args([f"--{name}={value}" for name, value in options.items()])
        settings, runner = make_runner(settings)
        clock = Clock(given.seconds)
        runner.register_observer(clock)
        runner.init()
        runner.run()
    print(json.dumps(clock.rate()), flush=True)
    os._exit(0)  # its workers may take long to end


if __name__ == "__main__":
    main()

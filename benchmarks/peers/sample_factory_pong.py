"""Sample Factory's side of ``benchmarks/pong.py``: its Atari settings over EnvPool, asynchronous, on this machine's cores.

Two EnvPools of 16 games in two workers, since it wants several for overlap, and four minibatches of 256 steps in four epochs,
its own. Run by a Python that has sample-factory 2.1 and envpool 0.8; prints one line of JSON. Its workers outlive it: end its
process group.
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

    def __init__(self, seconds: float, out: int) -> None:
        self.seconds, self.out, self.noted = seconds, out, [(0.0, 0.0)]
        self.began = time.perf_counter()

    def on_training_step(self, runner: Runner, training_iteration_since_resume: int) -> None:
        taken = time.perf_counter() - self.began
        self.noted.append((taken, sum(runner.env_steps.values()) / runner.cfg.env_frameskip))
        if taken > self.seconds:
            os.write(self.out, json.dumps(self.rate()).encode() + b"\n")
            os._exit(0)

    def rate(self) -> dict[str, float]:
        first = next(pair for pair in self.noted if pair[0] >= self.seconds / 10)
        last = self.noted[-1]
        return {"steps": last[1], "seconds": last[0], "rate": (last[1] - first[1]) / (last[0] - first[0])}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    given = parser.parse_args()
    register_atari_components()
    out = os.dup(1)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        options = {
            "algo": "APPO", "env": "atari_pong", "device": "cpu", "experiment": "pong", "train_dir": folder,
            "num_workers": 2, "env_agents": 16,
        }  # fmt: skip
        settings = parse_atari_args([f"--{name}={value}" for name, value in options.items()])
        settings, runner = make_runner(settings)
        clock = Clock(given.seconds, out)
        runner.register_observer(clock)
        runner.init()
        runner.run()


if __name__ == "__main__":
    main()

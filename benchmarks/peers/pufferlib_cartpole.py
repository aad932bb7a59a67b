"""PufferLib's side of ``benchmarks/control.py``; run by a Python that has ``pufferlib`` 3.0 with its trainer and CartPole.

Its trainer on its CartPole in C, whose episodes end after 200 steps, until episodes are 195 long. ``theirs`` are the settings
that it comes with for this task (4,096 environments, an LSTM), in one process as ours; ``plain`` the same without the LSTM,
which is the faster and ours has none. Prints one line of JSON.

No wheel of 3.0 exists. From its source: ``NO_OCEAN=1 pip install --no-build-isolation .`` without nvcc on the path, and
``gcc -O2 -flto -shared -fPIC`` of ``pufferlib/ocean/cartpole/binding.c`` (drawing needs raylib's header); heavyball below 2.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
import time
import warnings
from typing import Any

SOLVED = 195.0


def settings(name: str, seed: int, most: int, folder: str) -> dict[str, Any]:
    """Its own file of settings for this task, with what one process on a processor needs."""
    from pufferlib import pufferl

    sys.argv = ["puffer", "--train.device", "cpu"]
    found: dict[str, Any] = pufferl.load_config("puffer_cartpole")
    found["vec"] = {"backend": "Serial", "num_envs": 1}
    found["train"] |= {"seed": seed, "total_timesteps": most, "data_dir": folder, "env": "puffer_cartpole"}
    if name == "plain":
        found["rnn_name"], found["train"]["use_rnn"] = None, False
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--settings", choices=("theirs", "plain"), default="theirs")
    parser.add_argument("--most", type=int, default=20_000_000)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    import torch
    from pufferlib import pufferl

    warnings.simplefilter("ignore")  # it makes warnings errors, and torch warns of CUDA's absence
    torch.set_num_threads(1)
    torch.manual_seed(given.seed)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        chosen = settings(given.settings, given.seed, given.most, folder)
        began, used = time.perf_counter(), time.process_time()
        environments = pufferl.load_env("puffer_cartpole", chosen)
        trainer = pufferl.PuffeRL(chosen["train"], environments, pufferl.load_policy(chosen, environments))
        length, reached = 0.0, 0
        while trainer.global_step < given.most and length < SOLVED:
            trainer.evaluate()
            seen = trainer.stats.get("episode_length")
            length = float(seen[-1] if isinstance(seen, list) else seen) if seen is not None else length
            trainer.train()
            reached = trainer.global_step
        seconds, used = time.perf_counter() - began, time.process_time() - used
        trainer.utilization.stop()
    found = {"solved": length >= SOLVED, "seconds": seconds, "cpu_seconds": used, "steps": reached, "length": length}
    print(json.dumps(found))


if __name__ == "__main__":
    main()

"""Stable-Baselines3's side of ``benchmarks/control.py``; run by a Python that has ``stable-baselines3``.

PPO on CartPole-v1 until the mean return of the latest 100 episodes is 475. ``zoo`` are the settings that its authors publish
for this task, ``same`` those of our recipe. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

SOLVED, EPISODES = 475.0, 100


class UntilSolved(BaseCallback):
    """Ends training as our stage does, looked at after each batch of steps."""

    def __init__(self) -> None:
        super().__init__()
        self.solved = False

    def _on_step(self) -> bool:
        return not self.solved

    def _on_rollout_end(self) -> None:
        returns = [episode["r"] for episode in self.model.ep_info_buffer]
        self.solved = len(returns) == EPISODES and sum(returns) / EPISODES >= SOLVED


def settings(name: str) -> tuple[int, dict[str, Any]]:
    """Environments, and PPO's arguments."""
    if name == "zoo":
        falls = {"learning_rate": lambda left: 1e-3 * left, "clip_range": lambda left: 0.2 * left}
        return 8, {"n_steps": 32, "batch_size": 256, "n_epochs": 20, "gae_lambda": 0.8, "gamma": 0.98} | falls
    network = {"activation_fn": torch.nn.ReLU, "net_arch": [64, 64]}
    own = {"n_steps": 32, "batch_size": 2048, "n_epochs": 4, "gae_lambda": 0.95, "gamma": 0.98, "vf_coef": 0.05}
    return 128, own | {"learning_rate": 6e-3, "policy_kwargs": network}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--settings", choices=("zoo", "same"), default="zoo")
    parser.add_argument("--most", type=int, default=600_000)
    given = parser.parse_args()
    torch.set_num_threads(1)
    count, options = settings(given.settings)
    began, used = time.perf_counter(), time.process_time()
    model = PPO("MlpPolicy", make_vec_env("CartPole-v1", count, seed=given.seed), seed=given.seed, device="cpu", **options)
    watch = UntilSolved()
    # Schedules are laid out for as many steps as the task is given there.
    model.learn(100_000 if given.settings == "zoo" else given.most, callback=watch)
    seconds, used = time.perf_counter() - began, time.process_time() - used
    print(json.dumps({"solved": watch.solved, "seconds": seconds, "cpu_seconds": used, "steps": model.num_timesteps}))


if __name__ == "__main__":
    main()

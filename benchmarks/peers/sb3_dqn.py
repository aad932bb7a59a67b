"""Stable-Baselines3's side of ``benchmarks/replay.py``; run by a Python that has ``stable-baselines3``.

DQN with the settings that its authors publish for Acrobot. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import time

import gymnasium
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor


class Curve(BaseCallback):
    """Notes the mean return of the latest 100 episodes eight times."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.every, self.curve = steps // 8, list[float]()

    def _on_step(self) -> bool:
        if self.num_timesteps % self.every == 0:
            returns = [episode["r"] for episode in self.model.ep_info_buffer]
            self.curve.append(sum(returns) / max(1, len(returns)))
        return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--id", default="Acrobot-v1")
    parser.add_argument("--steps", type=int, default=51_200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    own = {"learning_rate": 6.3e-4, "batch_size": 128, "buffer_size": 50_000, "learning_starts": 0, "gamma": 0.99}
    own |= {"target_update_interval": 250, "train_freq": 4, "gradient_steps": -1, "exploration_fraction": 0.12}
    own |= {"exploration_final_eps": 0.1, "policy_kwargs": {"net_arch": [256, 256]}}
    model, curve = DQN("MlpPolicy", Monitor(gymnasium.make(given.id)), seed=given.seed, **own), Curve(given.steps)
    used = time.process_time()
    model.learn(given.steps, callback=curve)
    print(json.dumps({"curve": [round(one, 1) for one in curve.curve], "cpu_seconds": time.process_time() - used}))


if __name__ == "__main__":
    main()

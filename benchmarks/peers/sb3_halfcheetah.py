"""Stable-Baselines3's side of ``benchmarks/halfcheetah.py``; run by a Python that has ``stable-baselines3`` and ``mujoco``.

PPO on HalfCheetah for so many seconds. ``zoo`` are the settings that its authors publish for this task, ``same`` those of our
recipe, and ``pool`` those in EnvPool's environments. Prints one line of JSON.
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
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import SubprocVecEnv, VecNormalize


class UntilTime(BaseCallback):
    """Ends training after so many seconds; remembers the mean return of the latest 100 episodes."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.ends = time.perf_counter() + seconds

    def _on_step(self) -> bool:
        return time.perf_counter() < self.ends


def settings(name: str) -> tuple[int, dict[str, Any]]:
    """Environments, and PPO's arguments."""
    if name == "zoo":
        network = {"log_std_init": -2, "ortho_init": False, "activation_fn": torch.nn.ReLU, "net_arch": [256, 256]}
        own = {"n_steps": 512, "batch_size": 64, "n_epochs": 20, "gamma": 0.98, "gae_lambda": 0.92, "clip_range": 0.1}
        more = {"ent_coef": 0.000401762, "vf_coef": 0.58096, "max_grad_norm": 0.8, "learning_rate": 2.0633e-05}
        return 1, own | more | {"policy_kwargs": network}
    network = {"log_std_init": -0.693, "activation_fn": torch.nn.ReLU, "net_arch": {"pi": [64, 64], "vf": [64, 64]}}
    own = {"n_steps": 32, "batch_size": 512, "n_epochs": 4, "gamma": 0.99, "gae_lambda": 0.95, "vf_coef": 0.5}
    return 64, own | {"max_grad_norm": 0.5, "learning_rate": 1e-3, "policy_kwargs": network}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--settings", choices=("zoo", "same"), default="zoo")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--id", default="HalfCheetah-v4")
    parser.add_argument("--processes", type=int, default=0, help="environments in processes of their own instead of this one")
    given = parser.parse_args()
    torch.set_num_threads(1)
    count, options = settings(given.settings)
    kind = {"vec_env_cls": SubprocVecEnv} if given.processes else {}
    environments = VecNormalize(make_vec_env(given.id, given.processes or count, seed=given.seed, **kind))
    model = PPO("MlpPolicy", environments, seed=given.seed, device="cpu", **options)
    began, used = time.perf_counter(), time.process_time()
    model.learn(1_000_000_000, callback=UntilTime(given.seconds))
    seconds, used = time.perf_counter() - began, time.process_time() - used
    environments.training = environments.norm_reward = False
    score, _ = evaluate_policy(model, environments, n_eval_episodes=16, deterministic=True)
    recent = [episode["r"] for episode in model.ep_info_buffer]
    mean = sum(recent) / len(recent) if recent else 0.0
    found = {"seconds": seconds, "cpu_seconds": used, "steps": model.num_timesteps, "return": mean, "evaluation": float(score)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()

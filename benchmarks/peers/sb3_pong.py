"""Stable-Baselines3's side of ``benchmarks/pong.py``; run by a Python that has ``stable-baselines3`` and ``envpool``.

PPO on Pong from pixels for so many seconds, in EnvPool's environments as ours are. ``zoo`` are the settings that its authors
publish for Atari (8 games, batches of 256, four passes), ``same`` those of our recipe. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import envpool
import numpy as np
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv, VecMonitor


class Pool(VecEnv):
    """EnvPool's games as Stable-Baselines3 steps them: what ended is reset within the same step."""

    def __init__(self, count: int, seed: int, threads: int) -> None:
        seeds = [int(word) for word in np.random.SeedSequence(seed).generate_state(count) >> 1]
        own: dict[str, Any] = {"num_threads": threads} if threads else {}
        self.pool = envpool.make_gymnasium("Pong-v5", num_envs=count, seed=seeds, reward_clip=True, **own)
        super().__init__(count, self.pool.observation_space, self.pool.action_space)

    def reset(self) -> Any:
        return self.pool.reset()[0]

    def step_async(self, actions: Any) -> None:
        self.actions = actions

    def step_wait(self) -> Any:
        seen, reward, terminated, truncated, _ = self.pool.step(self.actions)
        done = terminated | truncated
        infos: list[dict[str, Any]] = [{} for _ in done]
        if done.any():
            ended = np.flatnonzero(done)
            seen = seen.copy()
            for index in ended:
                infos[index] = {"terminal_observation": seen[index].copy(), "TimeLimit.truncated": bool(truncated[index])}
            seen[ended] = self.pool.reset(ended.astype(np.int32))[0]
        return seen, reward, done, infos

    def close(self) -> None:
        self.pool.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [None] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise AttributeError(f"EnvPool's games are no objects of Python, so {attr_name} cannot be set")

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **named: Any) -> list[Any]:
        raise AttributeError(f"EnvPool's games are no objects of Python, so they have no {method_name}")

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs


class Clock(BaseCallback):
    """Notes steps and the mean return of the latest 100 episodes after each batch; ends after so many seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds, self.began, self.noted = seconds, time.perf_counter(), list[tuple[float, float, float | None]]()

    def _on_step(self) -> bool:
        return time.perf_counter() - self.began < self.seconds

    def _on_rollout_end(self) -> None:
        recent = [episode["r"] for episode in self.model.ep_info_buffer]
        mean = float(np.mean(recent)) if recent else None
        self.noted.append((time.perf_counter() - self.began, self.model.num_timesteps, mean))


def settings(name: str) -> tuple[int, dict[str, Any]]:
    """Games, and PPO's arguments."""
    shared = {"gamma": 0.99, "gae_lambda": 0.95, "vf_coef": 0.5, "max_grad_norm": 0.5, "ent_coef": 0.01, "clip_range": 0.1}
    if name == "zoo":
        return 8, shared | {"n_steps": 128, "batch_size": 256, "n_epochs": 4, "learning_rate": 2.5e-4}
    return 64, shared | {"n_steps": 32, "batch_size": 256, "n_epochs": 3, "learning_rate": 1e-3}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--settings", choices=("zoo", "same"), default="zoo")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=0, help="of EnvPool; 0: one for each core")
    given = parser.parse_args()
    count, options = settings(given.settings)
    games = VecMonitor(Pool(count, given.seed, given.threads))
    model = PPO("CnnPolicy", games, seed=given.seed, device=given.device, **options)
    clock = Clock(given.seconds)
    model.learn(1_000_000_000, callback=clock)
    print(json.dumps({"clock": clock.noted}))


if __name__ == "__main__":
    main()

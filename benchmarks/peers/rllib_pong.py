"""RLlib's side of ``benchmarks/pong.py``: its APPO with Atari's usual wrappers, on this machine's cores.

One process of environments beside the learner's, 16 games in it, and a batch of 1,024 steps as ours. Run by a Python that has
ray[rllib] and gymnasium[atari]; prints one line of JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time

import ale_py
import gymnasium
import ray
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.wrappers.atari_wrappers import wrap_atari_for_new_api_stack
from ray.tune.registry import register_env


def make(_: object) -> gymnasium.Env:
    gymnasium.register_envs(ale_py)
    return wrap_atari_for_new_api_stack(gymnasium.make("ale_py:ALE/Pong-v5", frameskip=1), dim=84, framestack=4)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    given = parser.parse_args()
    with contextlib.redirect_stdout(sys.stderr):
        ray.init("local", num_cpus=3, include_dashboard=False, log_to_driver=False)
        register_env("pong", make)
        layers = [[32, 8, 4], [64, 4, 2], [64, 3, 1]]
        settings = (
            APPOConfig()
            .environment("pong")
            .env_runners(num_env_runners=1, num_envs_per_env_runner=16, rollout_fragment_length=64)
            .learners(num_learners=0)
            .training(train_batch_size_per_learner=1024, lr=5e-4, grad_clip=0.5, entropy_coeff=0.01)
            .rl_module(model_config=DefaultModelConfig(conv_filters=layers, conv_activation="relu", head_fcnet_hiddens=[512]))
        )
        trainer = settings.build_algo()
        began, noted = time.perf_counter(), [(0.0, 0.0)]
        while noted[-1][0] < given.seconds:
            result = trainer.train()
            steps = result["learners"].get("__all_modules__", {}).get("num_env_steps_trained_lifetime", 0)
            noted.append((time.perf_counter() - began, float(steps)))
        trainer.stop()
        ray.shutdown()
    first, last = next(pair for pair in noted if pair[0] >= given.seconds / 10), noted[-1]
    rate = (last[1] - first[1]) / (last[0] - first[0])
    print(json.dumps({"steps": last[1], "seconds": last[0], "rate": rate}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()

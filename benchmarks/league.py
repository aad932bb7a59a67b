"""Leagues: hide-and-seek with its cross-play over versions and a film, and games of PettingZoo.

``python benchmarks/league.py hide SEED STEPS FOLDER``, ``python benchmarks/league.py film FOLDER PICTURE`` and
``python benchmarks/league.py game mpe2.simple_spread_v3 SEED STEPS FOLDER``. Each prints lines of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from penstock.algos.ppo import PPO
from penstock.config.learner import LearnerSpec
from penstock.config.run import Run
from penstock.control.environments import Environments
from penstock.control.league import League
from penstock.control.stage import EnvironmentsSpec, Episodes, PolicyNetwork
from penstock.control.teams import played_by
from penstock.models.control import load_policy
from penstock.recipes.hide_and_seek import hide_and_seek
from penstock.runtime import launch

TEAM_L = ["hiders", "hiders", "seekers", "seekers"]


def versions_of(folder: Path, team: str) -> dict[int, Any]:
    """Saved versions of a team, by number."""
    found = [path for path in folder.glob(f"**/model/{team}-*") if path.is_dir()]
    return {int(path.name.rsplit("-", 1)[1]): load_policy(path) for path in sorted(found)}


def cross_play(folder: Path, games: int = 256) -> dict[str, Any]:
    """The hiders' mean return of every version of them (rows) against every version of the seekers (columns)."""
    spec = hide_and_seek().stages[0].environments
    environments = Environments(spec, 0, count=games)
    hiders, seekers = versions_of(folder, "hiders"), versions_of(folder, "seekers")
    numbers = sorted(hiders)
    rows = [
        [played_by(environments, {"hiders": hiders[a], "seekers": seekers[b]}, TEAM_L, 40, 7)["hiders"] for b in numbers]
        for a in numbers
    ]
    return {"versions": numbers, "hiders": np.round(rows, 1).tolist()}


def film(folder: Path, picture: Path) -> None:
    """One game of the final policies as an animated GIF, and a strip of some of its steps as a PNG."""
    environments = Environments(hide_and_seek().stages[0].environments, 5, count=64)
    vector, frames = environments.blocks[0].vector, []
    policies = {team: load_policy(next(iter(folder.glob(f"**/model/{team}")))) for team in ("hiders", "seekers")}
    team_N = np.array(TEAM_L * 64)
    state_NS, generator = policies["hiders"].first_state(256), torch.Generator().manual_seed(0)
    with torch.inference_mode():
        for _ in range(40):
            frames.append(vector.picture(0))
            decision_ND = np.zeros((256, 1), np.int64)
            noise_NW = policies["hiders"].decisions.noise(1, 256, generator)[0]
            for team, policy in policies.items():
                rows = np.flatnonzero(team_N == team)
                seen = torch.from_numpy(environments.observation_NF[rows])
                _, decision, state_NS[rows] = policy.step(seen, state_NS[rows], noise_NW[rows])
                decision_ND[rows] = decision.numpy()
            environments.step(decision_ND)
    images = [Image.fromarray(frame) for frame in frames]
    images[0].save(picture.with_suffix(".gif"), save_all=True, append_images=images[1:], duration=200, loop=0)
    gap = np.full((frames[0].shape[0], 8, 3), 255, np.uint8)
    strip = [part for at in (0, 8, 15, 24, 32, 39) for part in (frames[at], gap)]
    Image.fromarray(np.concatenate(strip[:-1], 1)).save(picture.with_suffix(".png"))


def game_run(module: str, seed: int, steps: int) -> Run:
    """A game of PettingZoo in which agent 0 and the others are two teams, each with a learner of its own."""
    stage = League(
        name="league",
        environments=EnvironmentsSpec(
            id=f"{module}:parallel_env", count=32, vectorization="parallel", options={"max_cycles": 25}
        ),
        teams={"agent_0": "first", ".*": "others"},
        model=PolicyNetwork(hidden=(64, 64), normalize=True),
        algorithm=PPO(discount=0.95, lam=0.95, value_clip=0.0, value_coefficient=0.01),
        learner=LearnerSpec(learning_rate=2e-3, clip_norm=0.5, schedule="linear", token_budget=65536),
        fragment=51,
        steps=steps,
        epochs=4,
        evaluation=Episodes(episodes=100, longest=25),
    )
    return Run(name="game", seed=seed, device="cpu", threads=1, stages=(stage,))


def main() -> None:
    """See the module."""
    what, *rest = sys.argv[1:]
    if what == "film":
        print(json.dumps(cross_play(Path(rest[0]))))
        return film(Path(rest[0]), Path(rest[1]))
    *name, seed, steps, folder = rest
    run = hide_and_seek(int(seed), int(steps)) if what == "hide" else game_run(name[0], int(seed), int(steps))
    began, cpu = time.perf_counter(), time.process_time()
    stage = launch(run, Path(folder)).summary["stages"]["league"]
    spent = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cpu}
    print(json.dumps({"seed": int(seed), "first": stage["first"], "last": stage["last"], "metrics": stage["metrics"]} | spent))


if __name__ == "__main__":
    main()

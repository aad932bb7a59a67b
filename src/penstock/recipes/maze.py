"""A text game of several turns, from scratch: the policy walks a maze that it is not shown, one letter a turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from penstock.algos.grpo import GRPO
from penstock.algos.sft import SFT
from penstock.config.run import DataSpec, EvaluationSpec, LearnerSpec, ModelSpec, Offline, Online, RewardSpec, Run
from penstock.core.types import Sampling
from penstock.envs.env import Env, Said, Turn
from penstock.envs.spec import EnvironmentSpec

WALLS = {(1, 1), (1, 2), (3, 1)}
MOVES = {"u": (0, -1), "d": (0, 1), "l": (-1, 0), "r": (1, 0)}
CELLS = [(x, y) for x in range(4) for y in range(4) if (x, y) not in WALLS]
TURNS = 6

Cell = tuple[int, int]


def moved(at: Cell, move: str) -> Cell:
    """Where a move leads to: nowhere, if that is a wall, beyond the edge or no move."""
    dx, dy = MOVES.get(move, (0, 0))
    return there if (there := (at[0] + dx, at[1] + dy)) in CELLS else at


def text_of(at: Cell, goal: Cell) -> str:
    return f"{'abcd'[at[0]]}{at[1] + 1}>{'abcd'[goal[0]]}{goal[1] + 1}:"


def distances(goal: Cell) -> dict[Cell, int]:
    """Moves from each cell to the goal."""
    found, edge = {goal: 0}, [goal]
    for at in edge:
        for near in CELLS:
            if near not in found and any(moved(near, move) == at for move in MOVES):
                found[near] = found[at] + 1
                edge.append(near)
    return found


def walks(size: int = 0, seed: int = 0) -> list[dict[str, Any]]:
    """Every start and goal that are at most six moves apart; or ``size`` texts of random walks with a random ``move`` next."""
    pairs = [(at, goal) for goal in CELLS for at, far in distances(goal).items() if 0 < far <= TURNS]
    if not size:
        return [{"at": at, "goal": goal, "text": text_of(at, goal)} for at, goal in pairs]
    random, rows = np.random.Generator(np.random.Philox(seed)), []
    for _ in range(size):
        at, goal = pairs[random.integers(len(pairs))]
        text = text_of(at, goal)
        for move in random.choice(list(MOVES), random.integers(TURNS)):
            at = moved(at, move)
            text += move + text_of(at, goal)
        rows.append({"text": text, "move": str(random.choice(list(MOVES)))})
    return rows


class Maze(Env):
    """Says where the policy is after each move; 1 for reaching the goal."""

    def __init__(self, columns: Mapping[str, Any]) -> None:
        super().__init__(columns)
        self.at, self.goal = tuple(columns["at"]), tuple(columns["goal"])

    async def step(self, said: Said) -> Turn:
        before, self.at = self.at, moved(self.at, said.text)
        there = self.at == self.goal
        return Turn(text_of(self.at, self.goal), float(there), terminated=there, metrics={"bumps": float(self.at == before)})


def maze(seed: int = 0, steps: int = 100) -> Run:
    """A maze that is not shown is walked one letter a turn: SFT on random walks, then GRPO; minutes on a CPU.

    Args:
        seed: seed of weights, data and sampling.
        steps: GRPO steps.
    """
    data = DataSpec(source="penstock.recipes.maze:walks", prompt="{{ text }}", completion="{{ move }}")
    learner = LearnerSpec(learning_rate=1e-3, warmup=5, token_budget=16384)
    return Run(
        name="maze",
        seed=seed,
        stages=(
            Offline(
                name="sft",
                model=ModelSpec(preset="1m", vocabulary=280, context=64),
                data=DataSpec(**{**vars(data), "name": "walks", "options": {"size": 4000, "seed": seed}}),
                algorithm=SFT(),
                learner=learner,
                batch=64,
                steps=40,
            ),
            Online(
                name="grpo",
                model=ModelSpec(path="@sft"),
                data=data,
                environment=EnvironmentSpec(function="penstock.recipes.maze:Maze", turns=TURNS),
                rewards=(RewardSpec(function="environment"),),
                algorithm=GRPO(clip=(0.2, 0.28)),
                learner=learner,
                sampling=Sampling(max_new_tokens=1),
                samples=16,
                batch=16,
                max_running=256,
                steps=steps,
                evaluation=EvaluationSpec(data=data, every=25, temperature=1.0),
            ),
        ),
        headline="goals reached {first[evaluation/reward]:.1%} → {last[evaluation/reward]:.1%} in {seconds:.0f} s",
    )

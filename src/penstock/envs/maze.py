"""A text game of several turns: a maze is walked one letter a turn, without being shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from penstock.envs.env import Env, Said, Turn

WALLS = {(1, 1), (1, 2), (3, 1)}
MOVES = {"u": (0, -1), "d": (0, 1), "l": (-1, 0), "r": (1, 0)}
CELLS = [(x, y) for x in range(4) for y in range(4) if (x, y) not in WALLS]
TURNS = 6
"""Moves that an episode may take."""

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
        near = [cell for cell in CELLS if cell not in found and any(moved(cell, move) == at for move in MOVES)]
        found |= dict.fromkeys(near, found[at] + 1)
        edge += near
    return found


def walks(size: int = 0, seed: int = 0) -> list[dict[str, Any]]:
    """Every start and goal that are at most six moves apart; or ``size`` texts of random walks with a random ``move`` next."""
    pairs = [(at, goal) for goal in CELLS for at, far in distances(goal).items() if 0 < far <= TURNS]
    random = np.random.Generator(np.random.Philox(seed))
    rows: list[dict[str, Any]] = [] if size else [{"at": a, "goal": g, "text": text_of(a, g)} for a, g in pairs]
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

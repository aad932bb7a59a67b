"""Hide-and-seek on a grid: two teams, boxes that are pushed and locked, walls and a door; all games in one array step.

The idea is that of Baker et al. 2020 (arXiv 1909.07528), without its physics. Arrays: G games, A agents, B boxes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv

from penstock.core.types import BoolArray, IntArray, Metrics

SIDE, ROOM, BOXES, TEAM = 11, 5, 2, 2
"""Cells of a side of the grid; the room in its corner has ROOM × ROOM cells within walls, with one door."""
MOVES = np.array([[0, 0], [-1, 0], [1, 0], [0, -1], [0, 1]])
LOCK = len(MOVES)
"""The decision to lock a box next to the agent, or to unlock one that its own team locked."""
HIDER, SEEKER, NOBODY = 0, 1, -1
TEAM_A = np.repeat([HIDER, SEEKER], TEAM)


class HideAndSeek(VectorEnv[Any, Any, Any]):
    """Hiders get 1 in a step in which no seeker sees any of them, else -1; seekers the opposite; nothing while the hiders
    prepare and the seekers cannot move. Row ``g * A + a`` is agent a of game g."""

    learners = tuple(f"{name}_{number}" for name in ("hider", "seeker") for number in range(TEAM))

    def __init__(self, num_envs: int, horizon: int = 40, preparation: int = 16) -> None:
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.games, self.horizon, self.preparation = num_envs, horizon, preparation
        self.num_envs = num_envs * len(TEAM_A)
        self.random = np.random.default_rng(0)
        self.single_action_space = Discrete(LOCK + 1)
        self._begin()
        self.single_observation_space = Box(-np.inf, np.inf, self._shown().shape[1:], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """New games in all places."""
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self.counted: list[tuple[float, float]] = []
        self._begin()
        return self._shown(), {"action_mask": self.mask()}

    def _begin(self) -> None:
        """Hiders and boxes within the room, seekers outside; the door is anywhere in the two inner walls."""
        games = np.arange(self.games)
        self.wall_GXY = np.zeros((self.games, SIDE, SIDE), bool)
        self.wall_GXY[:, ROOM, : ROOM + 1] = self.wall_GXY[:, : ROOM + 1, ROOM] = True
        door_G, across_G = self.random.integers(1, ROOM - 1, self.games), self.random.random(self.games) < 0.5
        self.wall_GXY[games, np.where(across_G, ROOM, door_G), np.where(across_G, door_G, ROOM)] = False
        inner, rim = (
            _cells(1, ROOM - 1),
            np.array([cell for cell in _cells(0, ROOM) if not (min(cell) > 0 and max(cell) < ROOM - 1)]),
        )
        outer = np.array([cell for cell in _cells(0, SIDE) if max(cell) > ROOM + 1])
        self.box_GBX = self._placed(inner, BOXES)
        self.agent_GAX = np.concatenate((self._placed(rim, TEAM), self._placed(outer, TEAM)), 1)
        self.lock_GB = np.full((self.games, BOXES), NOBODY)
        self.time, self.locked, self.seen = 0, 0.0, 0.0
        self.seen_G: Any = np.zeros(self.games, bool)

    def _placed(self, cells: IntArray, count: int) -> IntArray:
        """Different cells in every game: ``[G, count, 2]``."""
        order = self.random.random((self.games, len(cells))).argsort(1)[:, :count]
        found: IntArray = cells[order]
        return found

    def step(self, actions: Any) -> Any:
        """Move agents in turn, those of even steps in order and of odd ones in the opposite one; then see, and reward."""
        action_GA = np.asarray(actions).reshape(self.games, -1).copy()
        preparing = self.time < self.preparation
        if preparing:
            action_GA[:, TEAM_A == SEEKER] = 0
        order = range(len(TEAM_A))
        for agent in order if self.time % 2 == 0 else reversed(order):
            self.act(agent, action_GA[:, agent])
        self.time += 1
        self.seen_G = self.sight_GAA()[:, TEAM_A == HIDER][:, :, TEAM_A == SEEKER].any((1, 2))
        if self.time == self.preparation:
            self.locked = float((self.lock_GB == HIDER).sum(1).mean())
        reward_G = np.zeros(self.games) if preparing else np.where(self.seen_G, -1.0, 1.0)
        self.seen += 0.0 if preparing else float(self.seen_G.mean()) / (self.horizon - self.preparation)
        reward_N = (reward_G[:, None] * np.where(TEAM_A == HIDER, 1.0, -1.0)).ravel().astype(np.float32)
        over, infos = self.time == self.horizon, {}
        if over:
            infos["final_obs"] = self._shown()
            self.counted.append((self.locked, self.seen))
            self._begin()
        infos["action_mask"] = self.mask()
        done_N, never_N = np.full(self.num_envs, over), np.zeros(self.num_envs, bool)
        return self._shown(), reward_N, done_N, never_N, infos

    def act(self, agent: int, action_G: IntArray) -> None:
        """One agent's decision in every game. It pushes a box that nobody locked, if the cell behind that is free."""
        move_GX = np.where((action_G < LOCK)[:, None], MOVES[action_G % LOCK], 0)
        target_GX = self.agent_GAX[:, agent] + move_GX
        hit_GB = (self.box_GBX == target_GX[:, None]).all(2)
        behind_GX = target_GX + move_GX
        pushes_G = hit_GB.any(1) & ~(hit_GB & (self.lock_GB != NOBODY)).any(1) & self.free(behind_GX)
        moves_G = move_GX.any(1) & (self.free(target_GX) | pushes_G)
        self.box_GBX = np.where((hit_GB & (pushes_G & moves_G)[:, None])[:, :, None], behind_GX[:, None], self.box_GBX)
        self.agent_GAX[:, agent] = np.where(moves_G[:, None], target_GX, self.agent_GAX[:, agent])
        own, near_GB = TEAM_A[agent], self.near_GAB()[:, agent]
        can_GB = near_GB & ((self.lock_GB == NOBODY) | (self.lock_GB == own))
        first_GB = can_GB & (can_GB.cumsum(1) == 1) & (action_G == LOCK)[:, None]
        self.lock_GB = np.where(first_GB, np.where(self.lock_GB == own, NOBODY, own), self.lock_GB)

    def free(self, cell_GX: IntArray) -> BoolArray:
        """Whether a cell of each game is on the grid, without wall, box and agent: ``[G]``."""
        on_G = ((cell_GX >= 0) & (cell_GX < SIDE)).all(1)
        taken_G = self.solid(cell_GX[:, None])[:, 0] | (self.agent_GAX == cell_GX[:, None]).all(2).any(1)
        found: BoolArray = on_G & ~taken_G
        return found

    def solid(self, cell_GKX: IntArray) -> BoolArray:
        """Whether cells of each game are wall or box, which nobody sees through; beyond it the nearest: ``[G, K]``."""
        inside_GKX = cell_GKX.clip(0, SIDE - 1)
        wall_GK = self.wall_GXY[np.arange(self.games)[:, None], inside_GKX[..., 0], inside_GKX[..., 1]]
        found: BoolArray = wall_GK | (self.box_GBX[:, None] == inside_GKX[:, :, None]).all(3).any(2)
        return found

    def near_GAB(self) -> BoolArray:
        """Boxes in the eight cells around each agent."""
        found: BoolArray = np.abs(self.agent_GAX[:, :, None] - self.box_GBX[:, None]).max(3) <= 1
        return found

    def sight_GAA(self) -> BoolArray:
        """Which pairs of agents see one another: no solid cell on the straight line between them, walked one cell at a time
        along its longer axis from the first agent to the later one."""
        count = len(TEAM_A)
        first_P, second_P = np.triu_indices(count, 1)
        start_GPX, way_GPX = self.agent_GAX[:, first_P], self.agent_GAX[:, second_P] - self.agent_GAX[:, first_P]
        length_GP = np.abs(way_GPX).max(2)
        clear_GP = np.ones(length_GP.shape, bool)
        for walked in range(1, int(length_GP.max(initial=0))):
            part_GPX = way_GPX * walked / np.maximum(length_GP, 1)[:, :, None]
            cell_GPX = start_GPX + np.floor(part_GPX + 0.5).astype(np.int64)
            clear_GP &= ~self.solid(cell_GPX) | (walked >= length_GP)
        found = np.ones((self.games, count, count), bool)
        found[:, first_P, second_P] = found[:, second_P, first_P] = clear_GP
        return found

    def mask(self) -> BoolArray:
        """Decisions that are allowed, ``[N, 6]``: a lock needs a box nearby, seekers wait while hiders prepare."""
        found = np.ones((self.games, len(TEAM_A), LOCK + 1), bool)
        found[:, :, LOCK] = self.near_GAB().any(2)
        if self.time < self.preparation:
            found[:, TEAM_A == SEEKER, 1:] = False
        return found.reshape(self.num_envs, -1)

    def _shown(self) -> Any:
        """What each agent observes, ``[N, F]``: place, time, other agents in sight (its own team always), boxes, their
        locks, and what is solid in the 5 × 5 cells around it."""
        games, count = self.games, len(TEAM_A)
        sight_GAA = self.sight_GAA() | (TEAM_A[:, None] == TEAM_A[None])
        parts = [self.agent_GAX / SIDE, np.full((games, count, 1), self.time / self.horizon)]
        parts += [np.full((games, count, 1), float(self.time < self.preparation))]
        far_GAAX = (self.agent_GAX[:, None] - self.agent_GAX[:, :, None]) / SIDE * sight_GAA[..., None]
        others = np.array([[(a + 1) % 2 + a // 2 * 2, *((2, 3) if a < 2 else (0, 1))] for a in range(count)])
        at_A = np.arange(count)[:, None]
        parts += [far_GAAX[:, at_A, others].reshape(games, count, -1), sight_GAA[:, at_A, others].reshape(games, count, -1)]
        parts += [((self.box_GBX[:, None] - self.agent_GAX[:, :, None]) / SIDE).reshape(games, count, -1)]
        own_GAB = self.lock_GB[:, None] == TEAM_A[None, :, None]
        parts += [own_GAB, (self.lock_GB[:, None] != NOBODY) & ~own_GAB]
        around_GKX = (self.agent_GAX[:, :, None] + _cells(-2, 3)).reshape(games, -1, 2)
        off_GK = ((around_GKX < 0) | (around_GKX >= SIDE)).any(2)
        parts += [(self.solid(around_GKX) | off_GK).reshape(games, count, -1)]
        return np.concatenate([np.asarray(part, np.float32) for part in parts], 2).reshape(self.num_envs, -1)

    def facts(self) -> Metrics:
        """Of the games since the last reset that are over: boxes that hiders had locked as the preparation ended, and the share
        of the steps after it in which a hider was seen."""
        if not self.counted:
            return {}
        locked, seen = np.mean(self.counted, 0)
        return {"locked_boxes": float(locked), "seen": float(seen)}

    def picture(self, game: int = 0, cell: int = 12) -> Any:
        """A game as bytes ``[H, W, 3]``: walls black, boxes yellow or in the colour of their lock, hiders blue, seekers red."""
        colours = np.array([[40, 90, 220], [210, 50, 50], [235, 190, 60]], np.uint8)
        found = np.full((SIDE, SIDE, 3), 240, np.uint8)
        found[self.wall_GXY[game]] = 30
        found[tuple(self.box_GBX[game].T)] = np.where(
            (self.lock_GB[game] >= 0)[:, None], colours[self.lock_GB[game]] // 2 + 60, colours[2]
        )
        found[tuple(self.agent_GAX[game].T)] = colours[TEAM_A]
        return found.repeat(cell, 0).repeat(cell, 1)


def _cells(first: int, after: int) -> IntArray:
    """All cells of a square: ``[K, 2]``."""
    found: IntArray = np.argwhere(np.ones((after - first,) * 2, bool)).astype(np.int32) + np.int32(first)
    return found


def hide_and_seek(num_envs: int, horizon: int = 40, preparation: int = 16) -> HideAndSeek:
    """``num_envs`` games as one vector environment, of ``horizon`` steps, ``preparation`` of them before anybody seeks."""
    return HideAndSeek(num_envs, horizon, preparation)

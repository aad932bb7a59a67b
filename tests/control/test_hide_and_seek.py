"""Hide-and-seek on small maps written by place: pushing, locking, seeing, rewards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("gymnasium")

from penstock.control.hide_and_seek import HIDER, LOCK, NOBODY, SEEKER, HideAndSeek

UP, DOWN, LEFT, RIGHT = 1, 2, 3, 4
FAR = [[10, 8], [10, 9], [10, 10]]


def a_game(first: list[int], boxes: list[list[int]], walls: list[list[int]] | None = None, **options: Any) -> HideAndSeek:
    """One game without a room: hider 0 at ``first``, everybody else in the corner."""
    game = HideAndSeek(1, **options)
    game.reset(seed=0)
    game.wall_GXY[:] = False
    for x, y in walls or []:
        game.wall_GXY[0, x, y] = True
    game.agent_GAX[0], game.box_GBX[0] = [first, *FAR], boxes
    return game


def do(game: HideAndSeek, agent: int, decision: int) -> None:
    game.act(agent, np.array([decision]))


def test_a_box_is_pushed_into_a_free_cell() -> None:
    game = a_game([2, 2], [[2, 3], [8, 0]])
    do(game, 0, RIGHT)
    assert game.agent_GAX[0, 0].tolist() == [2, 3]
    assert game.box_GBX[0].tolist() == [[2, 4], [8, 0]]


@pytest.mark.parametrize(
    ("boxes", "walls"), [([[2, 3], [2, 4]], []), ([[2, 3], [8, 0]], [[2, 4]])], ids=["another box", "a wall"]
)
def test_a_box_is_not_pushed_into_what_is_solid(boxes: list[list[int]], walls: list[list[int]]) -> None:
    game = a_game([2, 2], boxes, walls)
    do(game, 0, RIGHT)
    assert game.agent_GAX[0, 0].tolist() == [2, 2]
    assert game.box_GBX[0].tolist() == boxes


def test_a_box_is_not_pushed_off_the_grid_or_onto_an_agent() -> None:
    game = a_game([2, 1], [[2, 0], [10, 7]])
    do(game, 0, LEFT)
    assert game.box_GBX[0, 0].tolist() == [2, 0]
    game.agent_GAX[0, 0] = [10, 6]
    do(game, 0, RIGHT)
    assert game.box_GBX[0, 1].tolist() == [10, 7]
    assert game.agent_GAX[0, 0].tolist() == [10, 6]


def test_a_locked_box_does_not_move_and_only_its_team_unlocks_it() -> None:
    game = a_game([2, 2], [[2, 3], [8, 0]])
    do(game, 0, LOCK)
    assert game.lock_GB[0].tolist() == [HIDER, NOBODY]
    do(game, 0, RIGHT)
    assert game.agent_GAX[0, 0].tolist() == [2, 2]
    game.agent_GAX[0, 2] = [3, 3]
    do(game, 2, LOCK)
    assert game.lock_GB[0].tolist() == [HIDER, NOBODY]
    do(game, 0, LOCK)
    do(game, 2, LOCK)
    assert game.lock_GB[0].tolist() == [SEEKER, NOBODY]


@pytest.mark.parametrize(("walls", "sees"), [([], True), ([[2, 5]], False), ([[3, 5]], True)])
def test_a_wall_on_the_line_hides(walls: list[list[int]], sees: bool) -> None:
    game = a_game([2, 2], [[8, 0], [8, 2]], walls)
    game.agent_GAX[0, 2] = [2, 8]
    assert game.sight_GAA()[0, 0, 2] == game.sight_GAA()[0, 2, 0] == sees


def test_a_slanted_line_is_walked_along_its_longer_axis() -> None:
    """From (2, 2) to (4, 6): the cells between are (3, 3), (3, 4), (4, 5), with halves rounded up."""
    for cell in ([3, 3], [3, 4], [4, 5]):
        game = a_game([2, 2], [cell, [8, 2]])
        game.agent_GAX[0, 2] = [4, 6]
        assert not game.sight_GAA()[0, 0, 2]
    game.box_GBX[0, 0] = [2, 3]
    assert game.sight_GAA()[0, 0, 2]


def test_seekers_wait_and_nothing_is_rewarded_while_hiders_prepare() -> None:
    game = a_game([2, 2], [[8, 0], [8, 2]], horizon=4, preparation=1)
    game.agent_GAX[0, 2] = [2, 8]
    assert game.mask().tolist()[2] == [True, *[False] * 5]
    _, reward_N, *_ = game.step(np.array([0, 0, LEFT, 0]))
    assert game.agent_GAX[0, 2].tolist() == [2, 8]
    assert reward_N.tolist() == [0, 0, 0, 0]
    _, reward_N, *_ = game.step(np.array([0, 0, LEFT, 0]))
    assert game.agent_GAX[0, 2].tolist() == [2, 7]
    assert reward_N.tolist() == [-1, -1, 1, 1]


def test_hiders_behind_a_wall_are_rewarded_and_the_facts_count_what_was_seen() -> None:
    """The second hider is next to the seekers, and is put behind the wall too."""
    wall = [[5, y] for y in range(11)]
    game = a_game([2, 2], [[8, 0], [8, 2]], wall, horizon=3, preparation=1)
    game.agent_GAX[0, 1] = [2, 3]
    rewards = [game.step(np.zeros(4, int))[1].tolist() for _ in range(3)]
    assert rewards == [[0, 0, 0, 0], [1, 1, -1, -1], [1, 1, -1, -1]]
    assert game.facts() == {"locked_boxes": 0.0, "seen": 0.0}


def test_a_new_game_puts_hiders_and_boxes_into_the_room_and_a_door_into_its_wall() -> None:
    game = HideAndSeek(64)
    game.reset(seed=3)
    assert (game.agent_GAX[:, :2] < 5).all()
    assert (game.agent_GAX[:, 2:].max(2) > 5).all()
    assert ((game.box_GBX >= 1) & (game.box_GBX <= 3)).all()
    assert (game.wall_GXY.sum((1, 2)) == 10).all()

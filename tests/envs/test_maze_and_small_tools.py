"""The game and the tools that come along: rules by heart, and a table that cannot be harmed."""

import asyncio
import sqlite3

import pytest
from env_examples import after

from penstock.envs.maze import CELLS, MOVES, TURNS, Maze, distances, moved, walks
from penstock.envs.small_tools import calculate, query, table


@pytest.mark.parametrize(
    ("at", "move", "expected"),
    [((0, 0), "r", (1, 0)), ((0, 0), "u", (0, 0)), ((0, 1), "r", (0, 1)), ((2, 1), "r", (2, 1)), ((0, 0), "x", (0, 0))],
)
def test_walls_edges_and_other_letters_lead_nowhere(at, move, expected):
    assert moved(at, move) == expected


def test_every_pair_of_cells_that_is_near_enough_is_a_row():
    far = [distances(goal)[at] for goal in CELLS for at in CELLS if at != goal]
    assert len(walks()) == sum(one <= TURNS for one in far)


def test_texts_of_walks_have_a_random_move_next():
    rows = walks(50, seed=1)
    assert {row["move"] for row in rows} == set(MOVES)
    assert all(len(row["text"]) % 7 == 6 for row in rows)


def test_the_goal_is_worth_one_and_ends_the_episode():
    async def steps():
        env = Maze({"at": [0, 0], "goal": [2, 0]})
        return [await env.step(said) for said in (Letter("r"), Letter("d"), Letter("r"))]

    first, bump, last = asyncio.run(steps())
    assert (first.observation, first.reward, first.terminated) == ("b1>c1:", 0.0, False)
    assert (bump.observation, bump.metrics["bumps"]) == ("b1>c1:", 1.0)
    assert (last.reward, last.terminated) == (1.0, True)


class Letter:
    def __init__(self, text):
        self.text, self.sample = text, after([1], text)


@pytest.mark.parametrize(("asked", "expected"), [("12*7", "84"), ("7-12", "-5"), ("999999+1", "1000000")])
def test_the_calculator_calculates(asked, expected):
    assert calculate(asked) == expected


@pytest.mark.parametrize("asked", ["", "1+", "2**9", "__import__('os')", "1234567*1"])
def test_the_calculator_reads_two_numbers_and_a_sign_and_nothing_else(asked):
    with pytest.raises(ValueError, match="write two numbers"):
        calculate(asked)


def test_a_table_of_an_episode_is_asked_twice_and_closed_by_it():
    state = {}
    first = asyncio.run(query("SELECT price FROM stock WHERE item = 'egg'", state))
    assert asyncio.run(query("SELECT item FROM stock WHERE price = " + first, state)).split("\n").count("egg") == 1
    assert asyncio.run(query("SELECT price FROM stock WHERE item = 'gold'", state)) == "no rows"
    state["connection"].close()


@pytest.mark.parametrize(
    "sql",
    [
        "DROP TABLE stock",
        "DELETE FROM stock",
        "INSERT INTO stock VALUES ('gold', 1, 1, 1)",
        "ATTACH 'other.db' AS other",
        "PRAGMA writable_schema = 1",
        "SELECT load_extension('x')",
        "SELECT count(*) FROM stock a, stock b, stock c, stock d, stock e",
    ],
)
def test_a_table_can_only_be_read_and_not_for_long(sql):
    with pytest.raises(sqlite3.Error):
        table().execute(sql).fetchall()

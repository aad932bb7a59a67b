"""Two tools that need nothing: a calculator, and a table that is asked in SQL."""

from __future__ import annotations

import re
import sqlite3
from typing import Any

import numpy as np

COLUMNS = ("price", "amount", "shelf")
ITEMS = ("apple", "bread", "cheese", "dill", "egg", "fig", "grape", "honey", "jam", "lemon", "milk", "oil", "rice", "tea")
_READING = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ)
_STEPS = 100_000


def calculate(expression: str) -> str:
    """The value of a sum, a difference or a product of two whole numbers.

    Args:
        expression: such as 12*7
    """
    if (found := re.fullmatch(r"(\d{1,6})([-+*])(\d{1,6})", expression)) is None:
        raise ValueError("write two numbers with +, - or * between them, such as 12*7")
    one, sign, other = int(found[1]), found[2], int(found[3])
    return str({"+": one + other, "-": one - other, "*": one * other}[sign])


def table() -> sqlite3.Connection:
    """A new table ``stock`` in memory, which can only be read, by queries of so many steps of SQLite's machine at most."""
    made = sqlite3.connect(":memory:", check_same_thread=False)
    made.execute(f"CREATE TABLE stock (item TEXT, {', '.join(f'{name} INTEGER' for name in COLUMNS)})")
    numbers = np.random.Generator(np.random.Philox(5)).integers(10, 99, (len(ITEMS), len(COLUMNS))).tolist()
    made.executemany("INSERT INTO stock VALUES (?, ?, ?, ?)", [[item, *row] for item, row in zip(ITEMS, numbers, strict=True)])
    made.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in _READING else sqlite3.SQLITE_DENY)
    made.set_progress_handler(lambda: 1, _STEPS)
    return made


async def query(sql: str, state: dict[str, Any]) -> str:
    """Rows of the table stock (item, price, amount, shelf), twenty at most.

    Args:
        sql: a SELECT
    """
    connection = state["connection"] = state.get("connection") or table()
    return "\n".join(", ".join(map(str, row)) for row in connection.execute(sql).fetchmany(20)) or "no rows"

"""The loop of one's own in ``examples/`` is short, runs, and learns."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from penstock.data.resolve import resolve

FILE = Path(__file__).parents[2] / "examples" / "loop.py"


def test_a_loop_of_ones_own_learns() -> None:
    train: Any = resolve(f"{FILE}:train")
    rewards = asyncio.run(train(20))
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.2


def test_it_is_short() -> None:
    assert len(FILE.read_text(encoding="utf-8").splitlines()) <= 120

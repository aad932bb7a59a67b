"""A folder of runs and the live page on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from live_server import LivePage

from live_examples import small_run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder with two seeds of a small run."""
    root = tmp_path / "runs"
    small_run(root, "small", seed=0)
    small_run(root, "other", seed=1)
    return root


@pytest.fixture
def live(runs: Path, tmp_path: Path) -> Iterator[LivePage]:
    """The page on that folder, with a feedback store."""
    server = LivePage(runs, "--store", str(tmp_path / "feedback.db"))
    yield server
    server.end()


@pytest.fixture
def visitor(live: LivePage, visitor: Callable[..., Any]) -> Callable[..., Any]:
    """Pages that are closed before their server ends, because they go on asking it."""
    return visitor

"""A folder of runs and the live page on it, shared by the tests of a module: a test that needs another run adds it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from live_server import LivePage

from live_examples import small_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two seeds of a small run."""
    root = tmp_path_factory.mktemp("live") / "runs"
    small_run(root, "small", seed=0)
    small_run(root, "other", seed=1)
    return root


@pytest.fixture(scope="module")
def live(runs: Path) -> Iterator[LivePage]:
    """The page on that folder, with a feedback store beside it."""
    server = LivePage(runs, "--store", str(runs.parent / "feedback.db"))
    yield server
    server.end()


@pytest.fixture
def visitor(live: LivePage, visitor: Callable[..., Any]) -> Callable[..., Any]:
    """Pages that are closed before their server ends, because they go on asking it."""
    return visitor


@pytest.fixture
def opened(live: LivePage) -> Callable[..., Any]:
    """``opened(page, place, ready)``: a page at a place, such as ``run/small/samples``, that shows what is waited for."""

    def go(page: Any, place: str, ready: str = "figure.curve path.line") -> Any:
        page.goto(live.at(place))
        page.wait_for_selector(ready)
        return page

    return go


@pytest.fixture
def curves(opened: Callable[..., Any], page: Any) -> Any:
    """The curves of the small run in Chromium."""
    return opened(page, "run/small/curves")


@pytest.fixture
def curves_anywhere(opened: Callable[..., Any], screen: Any) -> Any:
    """The curves of the small run in both browsers, on a phone too."""
    return opened(screen, "run/small/curves")

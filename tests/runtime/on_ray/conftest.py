"""Clusters of several nodes on this machine, and runs in them; nothing that a test starts outlives it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "procs"))

from runs_on_ray import Nodes, RunOnRay, Start


@pytest.fixture(scope="module")
def three_nodes() -> Iterator[Nodes]:
    """A cluster for the tests of a file that leave it as it is."""
    nodes = Nodes()
    for _ in range(2):
        nodes.add()
    yield nodes
    nodes.close()


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    """A cluster of a test's own, with two cores on its head."""
    made = Nodes(head_cores=2)
    yield made
    made.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """``start("letters", "--steps", "8", address=…)``: begin a run; without a recipe, go on with it."""
    begun: list[RunOnRay] = []

    def begin(recipe: str = "", *words: str, **more: Any) -> RunOnRay:
        begun.append(RunOnRay(tmp_path, recipe, *words, **more))
        return begun[-1]

    yield begin
    for run in begun:
        run.kill_everyone()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten steps of letters in one process. How long a reward takes does not change them."""
    run = RunOnRay(tmp_path_factory.mktemp("undisturbed"), "letters", "--steps", "10", runtime="local")
    run.assert_ends()
    return run.run

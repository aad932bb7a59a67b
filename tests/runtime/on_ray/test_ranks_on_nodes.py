"""A learner whose ranks are on nodes of their own: the weights of ranks on one machine, whatever dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray.cluster_utils")

from runs_on_ray import Nodes, RunOnRay, Start, pids

PLACED = """
[rank]
cpus = 0
custom = {rank = 1}
"""
RANKS = ("--grpo.learner.strategy", "FSDP2", "--grpo.learner.strategy.ranks", "2")


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten steps of letters in one process with its two ranks beside it."""
    run = RunOnRay(tmp_path_factory.mktemp("together"), "letters", "--steps", "10", *RANKS, runtime="local")
    run.assert_ends()
    return run.run


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    """A head for all roles but the rank, whose node has no cores."""
    made = Nodes(head_cores=3)
    yield made
    made.close()


def begun(start: Start, nodes: Nodes, folder: Path, hold: int, until: int) -> RunOnRay:
    """A run whose second rank is on a node of its own, after some steps."""
    nodes.add(cores=0, rank=1)
    (folder / "place.toml").write_text(PLACED)
    words = ("letters", "--steps", "10", "--hold", str(hold), *RANKS, "--roles.channel", "disk", "--placement", "place.toml")
    run = start(*words, address=nodes.address)
    run.until_step(until)
    return run


def test_a_rank_whose_node_dies_has_a_successor_and_the_learner_goes_on(
    nodes: Nodes, start: Start, together: Path, tmp_path: Path
) -> None:
    run = begun(start, nodes, tmp_path, hold=24, until=5)
    assert nodes.of(run.roles["rank-1"]) is not nodes.of(run.roles["learner"])
    nodes.kill(nodes.of(run.roles["rank-1"]))
    nodes.add(cores=0, rank=1)
    run.assert_ends(together)
    assert os.path.exists(run.run / "logs" / "rank-1.log")
    assert "rank 1 of 2 is gone" in run.text


def test_a_learner_that_is_killed_gets_its_rank_again(nodes: Nodes, start: Start, together: Path, tmp_path: Path) -> None:
    run = begun(start, nodes, tmp_path, hold=24, until=5)
    learner = run.roles["learner"]
    os.kill(learner, signal.SIGKILL)
    run.until(lambda: run.roles.get("learner", learner) != learner, what="a new learner")
    run.assert_ends(together)


def test_an_interrupt_leaves_no_rank_behind(nodes: Nodes, start: Start, together: Path, tmp_path: Path) -> None:
    run = begun(start, nodes, tmp_path, hold=24, until=3)
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.wait() == 130, run.everything()
    assert run.roles == {}
    start(address=nodes.address).assert_ends(together)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A silence of 20 seconds, not of 60, in the processes that start from here on."""
    monkeypatch.setenv("PENSTOCK_SILENCE", "20")


def test_a_rank_that_stands_still_with_its_node_is_replaced(
    hasty: None, nodes: Nodes, start: Start, together: Path, tmp_path: Path
) -> None:
    run = begun(start, nodes, tmp_path, hold=24, until=5)
    rank, learner = run.roles["rank-1"], run.roles["learner"]
    os.killpg(rank, signal.SIGSTOP)
    run.assert_ends(together)
    assert not {rank, learner} & set(pids()), "what stood still is gone"
    (silent,) = run.notes("role silent")
    assert 20 <= silent["seconds"] < 60, "the silence, or ten times the longest gap before"

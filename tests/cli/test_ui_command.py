"""``penstock ui``: what it refuses before it listens, and what runs log for it. The page is tested in tests/browser/live."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from cli_examples import Penstock

from penstock.core.events import read_events


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nowhere"], "nowhere: there is no such folder"),
        (["a", "b"], "ui takes one folder"),
        ([".", "--port", "-1"], "--port -1; at least 0"),
        ([".", "--colour", "red"], "--colour"),
        ([".", "--store", "no/such/folder/feedback.db"], "feedback"),
    ],
)
def test_what_cannot_be_served_is_refused_with_the_fix(penstock: Penstock, words: list[str], told: str) -> None:
    ended = penstock("ui", *words)
    assert ended.code == 2
    assert told in ended.err


def test_a_port_that_is_taken_is_named(penstock: Penstock, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = penstock("ui", ".", "--port", str(port))
    assert ended.code == 2
    assert f"--port {port}" in ended.err


def sampled(folder: Path) -> list[tuple[int, dict[str, Any]]]:
    """(step, row) of every sample in a run's log."""
    events = [event for event in read_events(folder / "events.jsonl") if event["kind"] == "samples"]
    return [(event["step"], row) for event in events for row in event["rows"]]


def test_a_run_logs_siblings_and_the_gap_of_their_tokens(finished: Path, tmp_path: Path) -> None:
    trained = [row for _, row in sampled(tmp_path / finished) if not row["held_out"]]
    assert {row["key"].partition("#")[2] for row in trained} == {"0", "1"}
    gaps = [gap for row in trained for gap in row["tokens"]["gap"]]
    assert gaps
    assert max(map(abs, gaps)) < 1e-4
    assert all(len(row["tokens"]["pieces"]) == row["length"] for row in trained)


def test_a_run_logs_which_weights_an_evaluation_measured(finished: Path, tmp_path: Path) -> None:
    evaluated = [(step, row["version"]) for step, row in sampled(tmp_path / finished) if row["held_out"]]
    assert evaluated
    assert all(step == version for step, version in evaluated)

"""A folder that goes on with a run which went on elsewhere first has what its store has."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
from test_mirror import Node

from penstock.ckpt.fetch import catch_up, fetch_run
from penstock.ckpt.lease import FolderClaims, Lease
from penstock.ckpt.objects import Objects
from penstock.core.errors import CheckpointError
from penstock.core.events import read_events


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/bucket"


@pytest.fixture
def first(tmp_path: Path, url: str) -> Node:
    """A machine on which the run was trained to step 1."""
    node = Node(tmp_path / "a" / "run", url)
    node.send(1)
    return node


@pytest.fixture
def other(tmp_path: Path, url: str, first: Node) -> Node:
    """One that went on to step 3, and finished a stage."""
    fetch_run(f"{url}/run", tmp_path / "b" / "run")
    node = Node(tmp_path / "b" / "run", url)
    node.finish_stage("sft")
    node.send(2, 3)
    return node


def steps(node: Node) -> list[int]:
    return [event["step"] for event in read_events(node.folder / "events.jsonl") if event["kind"] == "metrics"]


def test_it_has_the_newest_checkpoint_the_whole_log_and_the_finished_models(url: str, first: Node, other: Node) -> None:
    (first.folder / "feedback.db").write_bytes(b"answers")
    assert catch_up(f"{url}/run", first.folder) == "stage-01-grpo-step-000003"
    loaded = first.store.load_newest()
    assert loaded is not None
    assert loaded.states["model"].arrays["w"][0] == 3
    assert steps(first) == [1, 2, 3]
    assert (first.folder / "models/sft/model.safetensors").read_bytes() == b"weights"
    assert json.loads((first.folder / "summary.json").read_text()) == {"stages": {"sft": {}}}
    assert (first.folder / "feedback.db").read_bytes() == b"answers"
    assert catch_up(f"{url}/run", first.folder) == ""
    assert not (first.folder / ".fetching").exists()


def test_a_folder_that_is_not_behind_stays_as_it_is(url: str, first: Node) -> None:
    first.save(2)
    assert catch_up(f"{url}/run", first.folder) == ""
    assert steps(first) == [1, 2]


def test_another_run_of_the_same_name_is_not_taken_for_it(tmp_path: Path, url: str, other: Node) -> None:
    stranger = Node(tmp_path / "c" / "run", f"file://{tmp_path}/elsewhere")
    stranger.send(1)
    assert catch_up(f"{url}/run", stranger.folder) == ""
    assert steps(stranger) == [1]


def test_a_store_that_is_away_holds_up_nobody(first: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*given: object) -> None:
        raise ConnectionError("no such host")

    monkeypatch.setattr(Objects, "sizes", away)
    assert catch_up(first.url, first.folder) == ""


def test_nothing_is_written_under_a_process_that_trains_there(url: str, first: Node, other: Node) -> None:
    with closing(Lease(FolderClaims(first.folder)).take()), pytest.raises(CheckpointError, match="is at work in it"):
        catch_up(f"{url}/run", first.folder)
    assert steps(first) == [1]


def test_one_that_is_killed_on_its_way_begins_again(
    url: str, first: Node, other: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("penstock.ckpt.fetch._fetch_checkpoint", lambda *given: 1 / 0)
        with pytest.raises(CheckpointError, match="cannot be read from it"):
            catch_up(f"{url}/run", first.folder)
    assert catch_up(f"{url}/run", first.folder) == "stage-01-grpo-step-000003"
    assert steps(first) == [1, 2, 3]

"""What an object store holds of a run, and when; with real file systems of fsspec, and over S3 where the protocol matters."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fsspec import AbstractFileSystem

from penstock.ckpt import lease as lease_module
from penstock.ckpt import mirror as mirror_module
from penstock.ckpt import objects as objects_module
from penstock.ckpt.fetch import fetch_run, has_run
from penstock.ckpt.lease import Lease, StoreClaims, free
from penstock.ckpt.mirror import Mirror, is_mirrored
from penstock.ckpt.objects import Objects
from penstock.ckpt.store import CheckpointStore, Position
from penstock.core.contracts import State
from penstock.core.errors import CheckpointError, SpecError
from penstock.core.events import read_events
from s3_server import S3Server

MODELS = {"sft": "models/sft", "grpo": "model"}


class Node:
    """A machine with a run's folder; ``said`` is what its mirror reported."""

    def __init__(self, folder: Path, url: str, keep: int = 2) -> None:
        self.folder, self.url = folder, url
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.json").write_text('{"name": "run"}')
        self.store = CheckpointStore(folder / "checkpoints", keep=keep, report=lambda what, **fields: None)
        self.mirror = Mirror(url, folder, keep, MODELS)
        self.said: list[tuple[str, dict[str, Any]]] = []

    def start(self) -> Node:
        self.mirror.start(lambda what, **fields: self.said.append((what, fields)))
        return self

    def save(self, step: int, **about: Any) -> Path:
        with open(self.folder / "events.jsonl", "a") as log:
            log.write(json.dumps({"kind": "metrics", "stage": "grpo", "step": step, "values": {}}) + "\n")
        return self.store.save(Position(1, "grpo", step), {"model": State({"w": np.full(50, step)}, {})}, **about)

    def finish_stage(self, name: str) -> None:
        model = self.folder / MODELS[name]
        model.mkdir(parents=True)
        (model / "model.safetensors").write_bytes(b"weights")
        (self.folder / "summary.json").write_text(json.dumps({"stages": {name: {}}}))

    def send(self, *steps: int) -> None:
        """Start, save these steps, and have everything in the store."""
        self.start()
        for step in steps:
            self.save(step)
        assert self.upload() == ""

    def upload(self) -> str:
        """Send everything and end."""
        self.mirror.ask()
        return self.mirror.close(20)

    def until(self, ready: Callable[[], object]) -> None:
        deadline = time.monotonic() + 60
        while not ready():
            assert time.monotonic() < deadline, self.said
            time.sleep(0.01)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/bucket"


@pytest.fixture
def node(tmp_path: Path, url: str) -> Node:
    return Node(tmp_path / "a" / "run", url)


def refused(*given: object) -> None:
    raise OSError("the store is away")


def names(url: str) -> list[str]:
    return sorted(Objects(f"{url}/run").sizes())


def fetched(tmp_path: Path, url: str, name: str = "b") -> Path:
    fetch_run(f"{url}/run", tmp_path / name / "run")
    return tmp_path / name / "run"


def newest(folder: Path) -> int:
    loaded = CheckpointStore(folder / "checkpoints").load_newest()
    assert loaded is not None
    assert (loaded.states["model"].arrays["w"] == loaded.entry.position.step).all()
    return loaded.entry.position.step


def committed(node: Node) -> list[str]:
    return [name for name in names(node.url) if name.startswith("checkpoints/") and name.endswith("manifest.json")]


def steps(node: Node) -> list[str]:
    return [name.split("/")[1][-1] for name in committed(node)]


def test_another_machine_gets_spec_log_models_and_the_newest_checkpoint(tmp_path: Path, node: Node, url: str) -> None:
    node.finish_stage("sft")
    node.send(1, 2)
    folder = fetched(tmp_path, url)
    assert newest(folder) == 2
    assert [path.name for path in (folder / "checkpoints").glob("stage-*")] == ["stage-01-grpo-step-000002"]
    assert [path.name for path in (folder / "models/sft").iterdir()] == ["model.safetensors"]
    assert (folder / "run.json").read_text() == '{"name": "run"}'
    assert [event["step"] for event in read_events(folder / "events.jsonl") if event["kind"] == "metrics"] == [1, 2]


def test_a_memory_store_holds_a_run(tmp_path: Path) -> None:
    node = Node(tmp_path / "a" / "run", "memory://bucket/of-memory")
    node.send(3)
    assert newest(fetched(tmp_path, node.url)) == 3


def test_a_checkpoint_comes_with_the_log_up_to_it_also_one_that_is_saved_while_another_is_uploaded(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    reaching, put, write = dict[str, int](), Objects.put, Objects.write

    def save_another(self: Objects, path: Path, name: str) -> None:
        monkeypatch.setattr(Objects, "put", put)
        node.save(2)
        put(self, path, name)

    def noted(self: Objects, name: str, content: bytes, new: bool = False) -> None:
        write(self, name, content, new)
        if name.endswith("manifest.json"):
            reaching[name.split("/")[1]] = self.read("events.jsonl").count(b"\n")

    monkeypatch.setattr(Objects, "put", save_another)
    monkeypatch.setattr(Objects, "write", noted)
    node.send(1)
    assert reaching == {"stage-01-grpo-step-000001": 1, "stage-01-grpo-step-000002": 2}


def test_the_store_is_pruned_like_the_folder(node: Node) -> None:
    node.start()
    for step, score in ((1, 0.9), (2, 0.1), (3, 0.2), (4, 0.3)):
        node.save(step, score=score)
        node.mirror.ask()
        node.until(lambda step=step: any(f"step-00000{step}/" in name for name in committed(node)))
    assert node.upload() == ""
    assert steps(node) == ["1", "3", "4"]
    assert len(list((Path(node.url.removeprefix("file://")) / "run/checkpoints").glob("stage-*"))) == 3


def test_the_best_checkpoint_stays_in_the_store_though_the_machine_that_made_it_is_gone(
    tmp_path: Path, node: Node, url: str
) -> None:
    node.start()
    for step in (1, 2):
        node.save(step, score=1.0 / step)
    assert node.upload() == ""
    other = Node(fetched(tmp_path, url), url).start()
    for step in (3, 4):
        other.save(step, score=0.1)
    assert other.upload() == ""
    assert steps(node) == ["1", "3", "4"]


def test_one_that_is_pruned_while_it_is_uploaded_is_uploaded_whole(
    tmp_path: Path, node: Node, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, going_on, put = threading.Event(), threading.Event(), Objects.put

    def slow(self: Objects, path: Path, name: str) -> None:
        reached.set()
        assert going_on.wait(60)
        put(self, path, name)

    node.start().save(1)
    monkeypatch.setattr(Objects, "put", slow)
    node.mirror.ask()
    assert reached.wait(60)
    shutil.rmtree(node.folder / "checkpoints/stage-01-grpo-step-000001")
    going_on.set()
    assert node.upload() == ""
    assert newest(fetched(tmp_path, url)) == 1
    assert list(node.folder.glob("checkpoints/.uploading-*")) == []


def damage(url: str, step: int, cut: bool) -> None:
    objects = Objects(f"{url}/run")
    name = next(name for name in objects.sizes("checkpoints") if f"step-00000{step}/" in name and name.endswith(".safetensors"))
    whole = objects.read(name)
    objects.write(name, whole[:-1] if cut else whole[:-1] + b"x")


@pytest.mark.parametrize("cut", [True, False], ids=["truncated", "altered"])
def test_a_damaged_checkpoint_is_passed_over_loudly(tmp_path: Path, node: Node, url: str, cut: bool) -> None:
    node.send(1, 2)
    damage(url, 2, cut)
    folder = fetched(tmp_path, url)
    assert newest(folder) == 1
    said = [event for event in read_events(folder / "events.jsonl") if event.get("what") == "checkpoint quarantined"]
    assert [event["name"] for event in said] == ["stage-01-grpo-step-000002"]
    assert "model.safetensors" in said[0]["problem"]


def test_a_damaged_checkpoint_is_uploaded_again_once_it_is_made_again(tmp_path: Path, node: Node, url: str) -> None:
    node.send(1, 2)
    damage(url, 2, cut=True)
    Node(fetched(tmp_path, url), url).send(2)
    assert newest(fetched(tmp_path, url, "c")) == 2


def test_a_checkpoint_without_its_manifest_is_none(tmp_path: Path, node: Node, url: str) -> None:
    node.send(1, 2)
    Objects(f"{url}/run").delete(name for name in committed(node) if "step-000002" in name)
    folder = fetched(tmp_path, url)
    assert newest(folder) == 1
    assert not (folder / "checkpoints/quarantine").exists()


def test_without_a_whole_checkpoint_nothing_is_fetched(tmp_path: Path, node: Node, url: str) -> None:
    node.send(1)
    damage(url, 1, cut=True)
    with pytest.raises(CheckpointError, match="1 checkpoints, and none is whole"):
        fetched(tmp_path, url)
    assert list((tmp_path / "b").iterdir()) == []


def test_a_damaged_model_of_a_finished_stage_is_refused(tmp_path: Path, node: Node, url: str) -> None:
    node.finish_stage("sft")
    node.send()
    Objects(f"{url}/run").write("models/sft/model.safetensors", b"weightz")
    with pytest.raises(CheckpointError, match=r"models/sft: a finished model is damaged: model\.safetensors does not match"):
        fetched(tmp_path, url)


def test_a_run_whose_process_lives_is_sent_by_no_other(tmp_path: Path, node: Node, url: str) -> None:
    node.start().save(1)
    node.mirror.ask()
    node.until(lambda: committed(node))
    other = Node(fetched(tmp_path, url), url).start()
    other.save(2)
    assert f"process {os.getpid()} on " in other.upload()
    with pytest.raises(CheckpointError, match=r"is at work in it; end that process, or take the run over .*--take-over"):
        other.mirror.check()
    node.mirror.check()
    assert node.upload() == ""
    assert steps(node) == ["1"]


def test_whose_run_was_taken_over_notices_before_it_has_anything_to_send(
    node: Node, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "LEASE", 0.2)
    monkeypatch.setattr(StoreClaims, "beat", 0.05)
    node.start().mirror.ask()
    node.until(lambda: node.mirror.lease.number)
    free(StoreClaims(Objects(f"{url}/run")))
    node.until(lambda: node.mirror.lease.lost)
    with pytest.raises(CheckpointError, match="has taken this run over"):
        node.mirror.check()


def test_whose_run_was_taken_over_writes_no_more(tmp_path: Path, node: Node, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "LEASE", 0.2)
    node.start().save(1)
    node.mirror.ask()
    node.until(lambda: committed(node))
    free(StoreClaims(Objects(f"{url}/run")))
    newer = Node(fetched(tmp_path, url), url).start()
    newer.save(2)
    newer.mirror.ask()
    newer.until(lambda: len(committed(node)) == 2)
    node.save(3)
    assert f"process {os.getpid()} on " in node.upload()
    with pytest.raises(CheckpointError, match="has taken this run over, so this process writes no more"):
        node.mirror.check()
    assert steps(node) == ["1", "2"]
    assert newer.upload() == ""


def test_a_store_that_cannot_write_on_a_condition_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = type("Plain", (AbstractFileSystem,), {})
    monkeypatch.setattr(objects_module, "file_system", lambda *given, **options: (plain(), "runs"))
    with pytest.raises(SpecError, match="sftp:// cannot make an object only where there is none"):
        Objects("sftp://host/runs")


def test_a_mirror_that_gave_up_holds_its_run_no_more_once_its_store_is_back(
    tmp_path: Path, node: Node, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later run of the same process would wait for it in vain."""
    monkeypatch.setattr(mirror_module, "FIRST_PAUSE", 0.05)
    node.start().save(1)
    node.mirror.ask()
    node.until(lambda: committed(node))
    with monkeypatch.context() as away:
        away.setattr(Objects, "put", refused)
        node.save(2)
        node.mirror.ask()
        assert "lacks checkpoint stage-01-grpo-step-000002" in node.mirror.close(0)
    node.until(lambda: not node.mirror._thread.is_alive())
    with closing(Lease(StoreClaims(Objects(f"{url}/run"))).take()):
        pass


def test_two_runs_of_one_name_are_kept_apart(tmp_path: Path, node: Node, url: str) -> None:
    node.send(1)
    other = Node(tmp_path / "other" / "run", url).start()
    other.save(9)
    assert "another run of this name is in the store" in other.upload()
    assert newest(fetched(tmp_path, url)) == 1


def test_a_folder_that_goes_on_uploads_only_what_is_new(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.send(1)
    sent, put = list[str](), Objects.put
    monkeypatch.setattr(Objects, "put", lambda self, path, name: (sent.append(name), put(self, path, name)))
    Node(node.folder, node.url).send(2)
    assert {name.split("/")[1] for name in sent} == {"stage-01-grpo-step-000002"}


def test_nothing_is_sent_of_a_run_that_never_began(node: Node, url: str) -> None:
    node.start()
    assert node.mirror.close(5) == ""
    assert names(url) == []


def test_a_store_that_is_away_for_a_while_loses_nothing(tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path / "a" / "run", "s3://runs/team")
    monkeypatch.setattr(mirror_module, "FIRST_PAUSE", 0.2)
    s3.stop()
    node.start().save(1)
    node.mirror.ask()
    node.until(lambda: node.said)
    what, fields = node.said[0]
    assert what == "store failed"
    assert "Could not connect" in fields["reason"]
    assert "checkpoint stage-01-grpo-step-000001" in fields["behind"]
    node.save(2)
    s3.start()
    assert node.upload() == ""
    assert node.said[-1][0] == "store reached"
    assert newest(fetched(tmp_path, node.url)) == 2


def test_a_store_that_stays_away_is_named_with_what_it_lacks(tmp_path: Path, s3: S3Server) -> None:
    node = Node(tmp_path / "a" / "run", "s3://runs/team")
    s3.stop()
    node.start().save(1)
    node.mirror.ask()
    missing = node.mirror.close(0.5)
    assert "s3://runs/team/run lacks checkpoint stage-01-grpo-step-000001" in missing
    assert f"penstock train --resume {node.folder} uploads it" in missing


def test_a_wrong_key_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """moto checks signatures once INITIAL_NO_AUTH_ACTION_COUNT requests were made: those that make the bucket."""
    server = S3Server()
    try:
        server.start(INITIAL_NO_AUTH_ACTION_COUNT="5")
        wrong = {"AWS_ACCESS_KEY_ID": "AKIAWRONG", "AWS_SECRET_ACCESS_KEY": "hidden-one"}
        for name, value in (server.environment | wrong).items():
            monkeypatch.setenv(name, value)
        node = Node(tmp_path / "a" / "run", "s3://runs/team").start()
        node.save(1)
        node.mirror.ask()
        node.until(lambda: node.said)
        assert node.said[0][0] == "store failed"
        assert "PermissionError" in node.said[0][1]["reason"] or "InvalidAccessKeyId" in node.said[0][1]["reason"]
        assert "hidden-one" not in str(node.said)
        node.mirror.check()
        assert "lacks checkpoint" in node.mirror.close(0.1)
    finally:
        server.stop()


def test_over_s3_a_truncated_object_is_passed_over_and_races_have_one_winner(tmp_path: Path, s3: S3Server) -> None:
    node = Node(tmp_path / "a" / "run", "s3://runs/team")
    node.send(1, 2)
    damage(node.url, 2, cut=True)
    assert newest(fetched(tmp_path, node.url)) == 1
    won: list[bool] = []

    def claim() -> None:
        try:
            Objects("s3://runs/race").fs.pipe_file("runs/race/attempt", b"", mode="create")
            won.append(True)
        except FileExistsError:
            won.append(False)

    with ThreadPoolExecutor(8) as racers:
        for _ in range(8):
            racers.submit(claim)
    assert sorted(won) == [False] * 7 + [True]


@pytest.mark.parametrize(
    ("store", "message"),
    [("nowhere://bucket", "nowhere"), ("abfs://bucket", r"pip install 'penstock\[storage\]'")],
)
def test_a_store_of_no_known_kind_is_refused_at_once(tmp_path: Path, store: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Mirror(store, tmp_path / "run", 2, MODELS)


def test_a_url_without_a_run_is_refused(tmp_path: Path, url: str) -> None:
    assert not has_run(f"{url}/run")
    with pytest.raises(CheckpointError, match=r"no run\.json here"):
        fetched(tmp_path, url)


def test_a_folder_in_which_a_run_is_stays_as_it_is(tmp_path: Path, node: Node) -> None:
    with pytest.raises(CheckpointError, match="a run is there already"):
        fetch_run(f"{node.url}/run", node.folder)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("run.json", True),
        ("spans/learner.jsonl", True),
        ("schedule/grpo/generator-0.0.jsonl", True),
        ("claims/000001.json", False),
        ("feedback.db", False),
        ("spans/../../key", False),
        ("spans/..", False),
        ("schedule/../run.json", False),
        ("/run.json", False),
        ("logs/learner.log", False),
    ],
)
def test_what_is_mirrored(name: str, wanted: bool) -> None:
    assert is_mirrored(name) is wanted

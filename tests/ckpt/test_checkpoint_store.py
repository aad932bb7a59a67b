"""Saving, keeping, pruning and falling back."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock.ckpt import files
from penstock.ckpt.store import CheckpointStore, Position
from penstock.core.contracts import State
from penstock.core.errors import CheckpointError


def at(step: int, stage: str = "grpo", number: int = 0) -> Position:
    return Position(number, stage, step)


def states(step: int) -> dict[str, State]:
    return {
        "learner": State(
            {"weight": torch.full((3, 2), float(step)), "rng": torch.arange(8, dtype=torch.uint8)}, {"step": step}
        ),
        "sampler": State({}, {"ordinal": step * 4}),
    }


def quiet(what: str, **fields: Any) -> None:
    return None


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path, report=quiet)


def save(store: CheckpointStore, *steps: int, **about: Any) -> Path:
    """Save these steps; gives the folder of the last."""
    return [store.save(at(step), states(step), **about) for step in steps][-1]


def newest(store: CheckpointStore) -> Any:
    loaded = store.load_newest()
    assert loaded is not None
    return loaded


def names(store: CheckpointStore) -> list[str]:
    return [entry.path.name for entry in store.entries()]


def test_an_empty_store_gives_none(tmp_path: Path) -> None:
    assert CheckpointStore(tmp_path / "none").load_newest() is None
    assert not (tmp_path / "none").exists()


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    said: list[str] = []
    path = CheckpointStore(tmp_path, report=lambda what, **fields: said.append(what)).save(
        at(50, "sft"), states(50), score=0.5, meta={"version": 7}
    )
    assert path.name == "stage-00-sft-step-000050"
    assert said == ["checkpoint"]
    loaded = newest(CheckpointStore(tmp_path))
    assert loaded.entry.position == at(50, "sft")
    assert (loaded.entry.score, loaded.entry.good, loaded.entry.meta) == (0.5, True, {"version": 7})
    assert loaded.warnings == ()
    assert loaded.states["sampler"] == State({}, {"ordinal": 200})
    torch.testing.assert_close(loaded.states["learner"].arrays["weight"], torch.full((3, 2), 50.0), rtol=0, atol=0)
    assert loaded.states["learner"].arrays["rng"].dtype == torch.uint8


def test_the_newest_is_by_stage_and_then_step(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=9)
    for position in (at(5, "rl", 1), at(900, "sft", 0), at(10, "rl", 1), at(20, "ten", 10)):
        store.save(position, states(position.step))
    assert [entry.position.step for entry in store.entries()] == [900, 5, 10, 20]
    assert newest(store).entry.position == at(20, "ten", 10)


def test_keeps_the_newest_the_best_and_the_last_good(store: CheckpointStore) -> None:
    for step, score, good in ((1, 0.1, True), (2, 0.9, True), (3, 0.2, True), (4, 0.3, False), (5, None, False)):
        store.save(at(step), states(step), score=score, good=good)
    assert [entry.position.step for entry in store.entries()] == [2, 3, 4, 5]


def test_a_score_that_comes_later_belongs_to_the_checkpoint_of_its_step(tmp_path: Path, store: CheckpointStore) -> None:
    save(store, 1, 2)
    store.rate(at(1), 0.9)
    store.rate(at(7), 5.0)  # there is none
    assert [entry.score for entry in CheckpointStore(tmp_path).entries()] == [0.9, None]
    save(store, 3, 4, 5, score=0.1)
    assert [entry.position.step for entry in store.entries()] == [1, 4, 5]


def test_a_checkpoint_that_takes_the_place_of_another_does_not_take_its_score(store: CheckpointStore) -> None:
    store.save(at(1), states(1))
    store.rate(at(1), 0.9)
    store.save(at(1), states(1))
    assert newest(store).entry.score is None


def test_the_best_is_of_the_newest_stage_with_scores(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=1)
    store.save(at(1, "sft", 0), states(1), score=100.0)
    store.save(at(1, "rl", 1), states(1), score=0.2)
    store.save(at(2, "rl", 1), states(2), score=0.1)
    assert names(store) == ["stage-01-rl-step-000001", "stage-01-rl-step-000002"]


def test_pruning_keeps_a_valid_good_one_when_a_newer_good_one_is_damaged(tmp_path: Path, store: CheckpointStore) -> None:
    save(store, 1, 2)
    (tmp_path / at(2).name / "learner.json").write_text("{}")
    CheckpointStore(tmp_path, keep=1, report=quiet).save(at(3), states(3), good=False)
    assert names(CheckpointStore(tmp_path)) == [at(1).name, at(3).name]
    assert (tmp_path / "quarantine" / at(2).name).exists()


def test_saving_below_existing_checkpoints_never_prunes_the_one_just_saved(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=1)
    save(store, 9, 1)
    assert names(store) == [at(1).name, at(9).name]


def test_the_same_position_is_replaced(tmp_path: Path, store: CheckpointStore) -> None:
    store.save(at(1), states(1))
    store.save(at(1), states(77))
    assert newest(store).states["sampler"].values == {"ordinal": 308}
    assert sorted(p.name for p in tmp_path.iterdir()) == [".lock", at(1).name]


def test_one_moved_aside_by_a_killed_replacement_comes_back(tmp_path: Path) -> None:
    CheckpointStore(tmp_path).save(at(1), states(1))
    os.rename(tmp_path / at(1).name, tmp_path / f".replaced-{at(1).name}")
    (tmp_path / f".writing-{at(1).name}").mkdir()
    assert newest(CheckpointStore(tmp_path)).entry.position == at(1)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".lock", at(1).name]


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def delete(path: Path) -> None:
    path.unlink()


def add_beside(path: Path) -> None:
    path.with_name(f"{path.name}.bak").write_bytes(b"x")


FILES = ("manifest.json", "checkpoint.json", "learner.safetensors", "learner.json", "sampler.safetensors", "sampler.json")


@pytest.mark.parametrize("damage", [flip, cut, delete, add_beside])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_one_is_quarantined_and_the_older_one_used(tmp_path: Path, name: str, damage: Any) -> None:
    said: list[tuple[str, dict[str, Any]]] = []
    store = CheckpointStore(tmp_path, report=lambda what, **fields: said.append((what, fields)))
    path = save(store, 1, 2)
    assert sorted(p.name for p in path.iterdir()) == sorted(FILES)
    damage(path / name)
    loaded = newest(store)
    assert loaded.entry.position == at(1)
    assert len(loaded.warnings) == 1
    assert at(2).name in loaded.warnings[0]
    assert not path.exists()
    assert (tmp_path / "quarantine" / at(2).name).is_dir()
    assert said[-1][0] == "checkpoint quarantined"


def test_every_single_byte_of_a_manifest_counts(tmp_path: Path) -> None:
    path = CheckpointStore(tmp_path).save(at(1), {"a": State({}, {})}) / "manifest.json"
    whole = path.read_bytes()
    for position in range(len(whole)):
        for bit in (0x01, 0x03, 0x20):
            path.write_bytes(whole[:position] + bytes([whole[position] ^ bit]) + whole[position + 1 :])
            assert files.problem_of(path.parent) is not None, whole[max(0, position - 9) : position + 9]
    path.write_bytes(whole)
    assert files.problem_of(path.parent) is None


def test_a_renamed_one_is_not_what_it_says(tmp_path: Path, store: CheckpointStore) -> None:
    os.rename(store.save(at(1), states(1)), tmp_path / at(3).name)
    with pytest.raises(CheckpointError, match="it was saved as stage-00-grpo-step-000001"):
        store.load_newest()


def test_without_a_listener_the_warning_is_a_python_warning(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    cut(save(store, 1, 2) / "learner.safetensors")
    with pytest.warns(UserWarning, match=r"learner\.safetensors has \d+ bytes instead of \d+"):
        assert newest(store).entry.position == at(1)


def test_never_starts_from_scratch_silently(tmp_path: Path, store: CheckpointStore) -> None:
    cut(store.save(at(1), states(1)) / "learner.json")
    with pytest.raises(CheckpointError, match=r"no valid one.*learner\.json"):
        store.load_newest()
    with pytest.raises(CheckpointError, match=r"move .*quarantine away"):
        CheckpointStore(tmp_path).load_newest()
    shutil.rmtree(tmp_path / "quarantine")
    assert store.load_newest() is None


def test_quarantine_keeps_every_damaged_copy(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=5, report=quiet)
    store.save(at(1), states(1))
    for _ in range(3):
        cut(store.save(at(2), states(2)) / "learner.json")
        newest(store)
    assert len(list((tmp_path / "quarantine").iterdir())) == 3


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_fills_up_while_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    store = CheckpointStore(tmp_path, keep=1)
    store.save(at(1), states(1))

    def full(path: Path, content: bytes) -> None:
        path.write_bytes(content[:3])
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files, "write_bytes", full)
    with pytest.raises(CheckpointError, match=r"needs [\d,]+ bytes, [\d,]+ free") as caught:
        store.save(at(2), states(2))
    assert str(tmp_path) in str(caught.value)
    monkeypatch.undo()
    assert sorted(p.name for p in tmp_path.iterdir()) == [".lock", at(1).name]
    assert newest(store).entry.position == at(1)


def test_too_little_space_is_seen_before_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(CheckpointError, match=r"needs 4,000,\d+ bytes, 1,000 free"):
        CheckpointStore(tmp_path).save(at(1), {"a": State({"x": torch.zeros(1_000_000)}, {})})


def test_a_file_that_the_system_refuses_to_grow(tmp_path: Path, store: CheckpointStore) -> None:
    """A real failing write, inside the safetensors library: the system limits the size of a file to 100 kB."""
    save(store, 1)
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
        with pytest.raises(CheckpointError, match="no space for stage-00-grpo-step-000002"):
            store.save(at(2), {"a": State({"x": torch.zeros(1_000_000)}, {})})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".lock", at(1).name]


def test_an_interrupted_save_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(folder: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "write_manifest", interrupt)
    with pytest.raises(KeyboardInterrupt):
        CheckpointStore(tmp_path).save(at(1), states(1))
    assert sorted(p.name for p in tmp_path.iterdir()) == [".lock"]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="file/checkpoints"):
        CheckpointStore(tmp_path / "file" / "checkpoints").save(at(1), states(1))


REFUSED = [
    ({"a": State({"x": np.array([object()])}, {})}, "state \"a\", array 'x' holds Python objects"),
    ({"a": State({"x": [1.0]}, {})}, "'x' is a list"),
    ({"a": State({"x": np.ma.array([1, 2], mask=[0, 1])}, {})}, "'x' is a MaskedArray"),
    ({"a": State({"x": np.zeros(2, ">f4")}, {})}, "'x' has type >f4"),
    ({"a": State({"x": torch.zeros(2, dtype=torch.complex128)}, {})}, "'x' has type torch.complex128"),
    ({"a": State({"x": torch.eye(2).to_sparse()}, {})}, "'x' is sparse"),
    ({"a": State({"x": torch.zeros(2, device="meta")}, {})}, "'x' is sparse, quantized or without data"),
    ({"a": State({"__metadata__": torch.zeros(2)}, {})}, "must be text other than"),
    ({"a": State({}, {"deep": [{"set": {1}}]})}, 'state "a", values.deep\\[0\\].set is a set'),
    ({"a": State({}, {"pair": (1, 2)})}, "values.pair is a tuple"),
    ({"a": State({}, {"rate": np.float64(1)})}, "values.rate is a float64"),
    ({"a": State({}, {"loss": float("nan")})}, "values.loss=nan"),
    ({"a": State({}, {"map": {1: 2}})}, "values.map: key 1"),
    ({"../a": State({}, {})}, 'state "../a"'),
    ({"manifest": State({}, {})}, 'state "manifest"'),
]


@pytest.mark.parametrize(("given", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_cannot_be_kept_exactly_is_refused_by_name(tmp_path: Path, given: dict[str, State], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        CheckpointStore(tmp_path).save(at(1), given)
    assert list(tmp_path.iterdir()) == []


def test_impossible_positions_scores_and_counts(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="folder name"):
        CheckpointStore(tmp_path).save(at(1, "a/b"), states(1))
    with pytest.raises(CheckpointError, match="score=nan"):
        CheckpointStore(tmp_path).save(at(1), states(1), score=float("nan"))
    with pytest.raises(CheckpointError, match="keep=0"):
        CheckpointStore(tmp_path, keep=0)


def test_a_lock_held_too_long_names_the_folder(tmp_path: Path, store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.ckpt.store.LOCK_SECONDS", 0.1)
    with store._locked(), pytest.raises(CheckpointError, match=r"another process has held \.lock"):
        CheckpointStore(tmp_path).save(at(1), states(1))

"""The record of a schedule: what its lines are, when they are on the disk, and what a kill leaves of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from penstock.core.errors import DataError
from penstock.core.tape import LEASES, NO_LEASES, LeaseLog, Tape, read_lines
from penstock.core.types import Group, Prompt, PromptKey, Sample, SampleKey

KEY = PromptKey("letters", 0, 7)


def group(origin: str, *errors: str | None) -> Group:
    tokens_T = np.array([5, 6], np.int32)
    samples = tuple(
        Sample(
            SampleKey(KEY, place), {"tokens_T": tokens_T}, np.array([False, True]), np.zeros(2, np.float32),
            np.array([-1, 0], np.int32), finish="stop", error=error,
        )
        for place, error in enumerate(errors)
    )  # fmt: skip
    return Group(Prompt(KEY, "ab"), samples, origin=origin)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "generator-0.0.jsonl"


def test_a_line_says_the_turn_before_which_something_came(path: Path) -> None:
    tape = Tape(path)
    tape.note("load", 3, 1)
    origin = tape.begin(7)
    tape.submit(SampleKey(KEY, 2))
    tape.turn += 5
    tape.note("drop", origin)
    tape.close()
    assert list(read_lines(path)) == [
        [0, "load", 3, 1],
        [0, "begin", "generator-0.0/0", 7],
        [0, "submit", ["letters", 0, 7, 2]],
        [5, "drop", "generator-0.0/0"],
    ]


def test_a_new_take_leaves_those_before_it_alone_and_has_origins_of_its_own(tmp_path: Path) -> None:
    origins, written = [], {}
    for role in (*["generator-0"] * 3, "generator-1"):  # three starts of one generator
        tape = Tape.next_take(tmp_path, role)
        origins += [tape.begin(0), tape.begin(0)]
        tape.close()
        assert {name: (tmp_path / name).read_bytes() for name in written} == written
        written = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert len(set(origins)) == 8
    assert sorted(written) == [f"generator-{name}.jsonl" for name in ("0.0", "0.1", "0.2", "1.0")]


def test_what_was_noted_is_in_the_file_after_a_flush_and_not_twice(path: Path) -> None:
    tape = Tape(path)
    tape.begin(0)
    tape.flush()
    tape.flush()
    assert list(read_lines(path)) == [[0, "begin", "generator-0.0/0", 0]]


def test_a_tape_without_a_file_counts_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tape = Tape()
    assert tape.begin(0) != tape.begin(0)
    tape.note("load", 0, 0)
    tape.close()
    NO_LEASES.note(0, [group("generator-0.0/0", None)])
    assert list(tmp_path.iterdir()) == []


def test_a_batch_names_its_groups_and_the_samples_that_failed(tmp_path: Path) -> None:
    LeaseLog(tmp_path, threads=2).note(4, [group("generator-0.0/3", None, None), group("generator-1.0/0", None, "too slow")])
    groups = ["generator-0.0/3", "generator-1.0/0"]
    expected = {"version": 4, "threads": 2, "groups": groups, "failed": [[1, 1, "too slow"]]}
    assert list(read_lines(tmp_path / LEASES)) == [expected]


def test_a_line_that_a_kill_cut_short_is_passed_over(path: Path) -> None:
    path.write_text('[0, "load", 0, 0]\n[0, "begin", "generator-0.0/0", 0]\n[3, "subm', encoding="utf-8")
    assert [line[1] for line in read_lines(path)] == ["load", "begin"]


@pytest.mark.parametrize("torn", ['{"version": 0, "thr', '{"version": 0, "threads": 1, "gro\xc3'])
def test_a_batch_after_a_torn_line_stands_on_a_line_of_its_own(torn: str, tmp_path: Path) -> None:
    (tmp_path / LEASES).write_bytes(torn.encode("latin-1"))
    LeaseLog(tmp_path).note(0, [group("generator-0.1/0", None)])
    assert [line["groups"] for line in read_lines(tmp_path / LEASES)] == [["generator-0.1/0"]]


def test_a_record_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"leases.jsonl: no such record"):
        list(read_lines(tmp_path / LEASES))


def test_every_line_is_json_that_other_programs_read(tmp_path: Path) -> None:
    log = LeaseLog(tmp_path)
    for version in range(3):
        log.note(version, [group(f"generator-0.0/{version}", None)])
    lines = (tmp_path / LEASES).read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["version"] for line in lines if line] == [0, 1, 2]

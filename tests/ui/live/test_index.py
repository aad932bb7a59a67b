"""The index of an event log: what a whole reading gives, however the file came to be what it is."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from live_examples import log_of, row, run_folder, small_run
from penstock.core.events import EventLog, read_events
from penstock.ui.live import index as index_module
from penstock.ui.live.index import LogIndex, Series
from penstock.ui.metrics import numbers


def series(index: LogIndex, stage: str, metric: str) -> dict[int, float]:
    found = index.stages[stage].series[metric]
    return dict(zip(found.steps, found.values, strict=True))


def read(path: Path) -> LogIndex:
    index = LogIndex(path)
    index.refresh()
    return index


@pytest.fixture
def log(tmp_path: Path) -> EventLog:
    """The log of a run that has just begun."""
    return log_of(run_folder(tmp_path, "run", "grpo"), "grpo")


def event(step: int, loss: float) -> bytes:
    """A line of the log."""
    return json.dumps({"kind": "metrics", "time": 1.0, "stage": "s", "step": step, "values": {"loss": loss}}).encode() + b"\n"


def test_training_and_evaluated_samples_of_one_step_come_together(log: EventLog) -> None:
    log.samples(5, [row("a", "first")])
    log.samples(6, [row("a", "later")])
    log.samples(5, [row("b", "evaluated")])  # another process measured step 5 while step 6 was trained
    index = read(log.path)
    assert [one["text"] for one in index.rows("grpo", 5)] == ["first", "evaluated"]
    assert index.stages["grpo"].sampled() == [5, 6]


def test_reading_goes_on_where_it_ended_and_nothing_new_is_no_change(log: EventLog) -> None:
    log.metrics(1, {"loss": 1.0})
    index = read(log.path)
    log.metrics(2, {"loss": 0.5})
    offset = index.offset
    index.refresh()
    assert series(index, "grpo", "loss") == {1: 1.0, 2: 0.5}
    assert 0 < offset < index.offset
    changes = index.changes
    index.refresh()
    assert (index.changes, index.generation) == (changes, 0)


def test_a_resume_that_drops_steps_starts_the_index_over(log: EventLog) -> None:
    for step in range(1, 6):
        log.metrics(step, {"loss": float(step)})
        log.samples(step, [row("a", f"text {step}")])
    index = read(log.path)
    log.truncate_after("grpo", 2)
    index.refresh()
    assert series(index, "grpo", "loss") == {1: 1.0, 2: 2.0}
    assert index.rows("grpo", 5) == []
    log.metrics(3, {"loss": 30.0})
    index.refresh()
    assert series(index, "grpo", "loss")[3] == 30.0
    assert index.generation == 1


def test_a_file_rewritten_in_place_is_noticed_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(event(1, 1.0))
    index = read(path)
    with open(path, "r+b") as file:
        file.write(event(9, 5.0))
    index.refresh()
    assert series(index, "s", "loss") == {9: 5.0}


def test_rows_are_not_read_from_a_file_that_was_replaced_since(log: EventLog) -> None:
    for step in (1, 2):
        log.samples(step, [row("a", f"text {step}")])
    index = read(log.path)
    log.truncate_after("grpo", 1)
    assert index.rows("grpo", 2) == []


def test_a_log_that_vanishes_is_an_empty_one(tmp_path: Path) -> None:
    folder = small_run(tmp_path)
    index = read(folder / "events.jsonl")
    (folder / "events.jsonl").unlink()
    index.refresh()
    assert index.stages == {}


def test_a_value_logged_again_replaces_the_earlier_one_and_late_ones_are_sorted_in() -> None:
    made = Series()
    for step, value in ((1, 1.0), (5, 5.0), (3, 3.0), (5, 50.0), (0, 0.5)):
        made.add(step, value)
    assert (list(made.steps), list(made.values)) == ([0, 1, 3, 5], [0.5, 1.0, 3.0, 50.0])


def test_a_line_of_monstrous_length_is_passed_over(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "LONGEST_LINE", 2000)
    monkeypatch.setattr(index_module, "BLOCK", 512)
    log.metrics(1, {"loss": 1.0})
    log.samples(2, [row("a", "x" * 9000)])
    log.metrics(3, {"loss": 3.0})
    index = read(log.path)
    assert series(index, "grpo", "loss") == {1: 1.0, 3: 3.0}
    assert index.stages["grpo"].sampled() == []


def test_a_budget_reads_a_long_log_in_parts(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "BLOCK", 512)
    path = small / "small" / "events.jsonl"
    index, parts = LogIndex(path), 0
    while not parts or not index.complete:
        index.refresh(budget=1024)
        parts += 1
    index.refresh()
    assert parts > 2
    assert series(index, "grpo", "reward/mean") == series(read(path), "grpo", "reward/mean")


@pytest.mark.parametrize("make", ["link", "pipe", "folder"])
def test_what_is_no_regular_file_is_not_read(tmp_path: Path, make: str) -> None:
    path, secret = tmp_path / "events.jsonl", tmp_path / "secret"
    secret.write_text('{"kind": "lifecycle", "time": 1, "stage": "s", "step": 0, "what": "secret"}\n')
    {"link": lambda: path.symlink_to(secret), "pipe": lambda: os.mkfifo(path), "folder": path.mkdir}[make]()
    assert read(path).lifecycle == []


EVENTS = st.lists(
    st.fixed_dictionaries(
        {
            "kind": st.sampled_from(["metrics", "samples", "lifecycle", "sentinel", "unknown"]),
            "time": st.one_of(st.floats(0, 2e9), st.none(), st.text(max_size=3)),
            "stage": st.one_of(st.sampled_from(["a", "b", 'quo"ted', "ü"]), st.none(), st.integers()),
            "step": st.one_of(st.integers(0, 5), st.none(), st.text(max_size=2)),
            "values": st.dictionaries(
                st.sampled_from(["x", "y"]), st.one_of(st.floats(-5, 5), st.none(), st.just("nan")), max_size=2
            ),
            "rows": st.one_of(
                st.lists(st.dictionaries(st.just("text"), st.text(max_size=9), max_size=1), max_size=2), st.none()
            ),
        }
    ),
    max_size=12,
)


def gathered(path: Path) -> dict[str, tuple[dict[str, dict[int, float]], dict[int, list[Any]]]]:
    """Values by metric and step, and samples by step, of each stage, from the whole log at once."""
    stages: dict[str, tuple[dict[str, dict[int, float]], dict[int, list[Any]]]] = {}
    for event in read_events(path):
        name, step = str(event.get("stage") or ""), event.get("step")
        if not name or not isinstance(step, int):
            continue
        values, samples = stages.setdefault(name, ({}, {}))
        if event["kind"] == "metrics":
            for metric, value in numbers(event.get("values")).items():
                values.setdefault(metric, {})[step] = value
        elif event["kind"] == "samples" and isinstance(event.get("rows"), list):
            samples.setdefault(step, []).extend(event["rows"])
    return stages


@given(events=EVENTS, cuts=st.lists(st.integers(0, 4000), max_size=4), noise=st.binary(max_size=20))
def test_reading_in_any_parts_gives_what_the_log_holds(
    tmp_path_factory: pytest.TempPathFactory, events: list[dict[str, Any]], cuts: list[int], noise: bytes
) -> None:
    path = tmp_path_factory.mktemp("log") / "events.jsonl"
    whole = noise.replace(b"\n", b"") + b"\n" + b"".join(json.dumps(e, ensure_ascii=False).encode() + b"\n" for e in events)
    path.write_bytes(b"")
    index = LogIndex(path)
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(whole)], strict=True):
        with open(path, "ab") as file:
            file.write(whole[start:end])
        index.refresh()
    stages = gathered(path)
    expected = {
        name: {metric: repr(sorted(found.items())) for metric, found in series.items()} for name, (series, _) in stages.items()
    }
    found = {
        name: {metric: repr(sorted(series(index, name, metric).items())) for metric in stage.series}
        for name, stage in index.stages.items()
    }
    assert found == expected
    for name, (_, samples) in stages.items():
        assert {step: index.rows(name, step) for step in samples} == samples

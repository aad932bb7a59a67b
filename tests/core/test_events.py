"""The event log: whole lines, and every step once, whatever a kill did to the file."""

import json
import math

import numpy as np
import pytest

from penstock.core.errors import DataError
from penstock.core.events import EventLog, read_events


@pytest.fixture
def log(tmp_path):
    return EventLog(tmp_path / "events.jsonl")


def test_an_event_carries_kind_time_stage_and_step(log):
    log.stage = "rl"
    log.metrics(3, {"reward/mean": 0.5})
    (event,) = read_events(log.path)
    assert event.pop("time") > 1.6e9
    assert event == {"kind": "metrics", "stage": "rl", "step": 3, "values": {"reward/mean": 0.5}}


def test_every_line_is_whole_as_soon_as_it_is_emitted(tmp_path):
    log = EventLog(tmp_path / "run" / "events.jsonl")
    for step in range(3):
        log.lifecycle(step, "checkpoint", path="ö\n")
        lines = log.path.read_bytes().split(b"\n")
        assert lines[-1] == b""
        assert [json.loads(line)["step"] for line in lines[:-1]] == list(range(step + 1))


def test_listeners_see_every_event(tmp_path):
    seen = []
    log = EventLog(tmp_path / "events.jsonl", [seen.append])
    log.samples(0, [{"text": "a"}])
    assert seen == list(read_events(log.path))


@pytest.mark.parametrize(("value", "written"), [(math.nan, "nan"), (math.inf, "inf"), (np.float32(0.5), 0.5), (np.int64(3), 3)])
def test_values_outside_json_are_written_readably(log, value, written):
    log.metrics(0, {"x": value})
    json.loads(log.path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not standard JSON"))
    assert next(read_events(log.path))["values"] == {"x": written}


@pytest.mark.parametrize("cut", [b'{"kind": "metr', '{"kind": "samples", "text": "ö'.encode()[:-1]])
def test_a_last_line_cut_by_a_kill_is_closed_and_passed_over(log, cut):
    log.metrics(0, {})
    log.close()
    with open(log.path, "ab") as file:
        file.write(cut)
    EventLog(log.path).metrics(1, {})
    assert [event["step"] for event in read_events(log.path)] == [0, 1]


def test_truncate_after_drops_only_what_a_resume_runs_again(log):
    for stage in ("sft", "rl"):
        log.stage = stage
        for step in (1, 2, 3):
            log.metrics(step, {})
            log.samples(step, [])
        log.lifecycle(3, "killed")
    log.truncate_after("rl", 1)
    kept = [(event["stage"], event["kind"], event["step"]) for event in read_events(log.path)]
    assert [entry for entry in kept if entry[0] == "rl"] == [("rl", "metrics", 1), ("rl", "samples", 1), ("rl", "lifecycle", 3)]
    assert len([entry for entry in kept if entry[0] == "sft"]) == 7


def test_an_evaluation_that_is_made_again_is_dropped_with_its_samples_and_nothing_else_of_its_step(log):
    for step in (1, 2):
        log.metrics(step, {"loss": 1.0})
        log.metrics(step, {"evaluation/reward": 0.5})
        log.samples(step, [{"held_out": True}])
    log.truncate_after("", 2, evaluation=2)
    kept = [(event["kind"], event["step"]) for event in read_events(log.path)]
    assert kept == [("metrics", 1), ("metrics", 1), ("samples", 1), ("metrics", 2)]


def test_the_log_goes_on_after_truncation(log):
    log.metrics(1, {})
    log.truncate_after("", 0)
    log.metrics(1, {"again": 1.0})
    assert [event["values"] for event in read_events(log.path)] == [{"again": 1.0}]


def test_a_missing_log_is_named(tmp_path):
    with pytest.raises(DataError, match="no event log here"):
        next(read_events(tmp_path / "events.jsonl"))


def test_half_a_character_in_a_text_is_written_as_a_question_mark(log):
    log.samples(1, [{"error": "broken \ud83d emoji"}])
    log.truncate_after("", 5)
    log.close()
    assert [event["rows"][0]["error"] for event in read_events(log.path)] == ["broken ? emoji"]

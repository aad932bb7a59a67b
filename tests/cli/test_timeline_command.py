"""``penstock timeline``: the account and the trace of a real run, and refusals in one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from cli_examples import RECIPES, Penstock
from processes import events

from penstock.observe.lanes import read_lanes


def test_a_run_records_what_each_role_did(finished: Path, tmp_path: Path) -> None:
    lanes = {lane.role: lane for lane in read_lanes(tmp_path / finished / "spans")}
    assert list(lanes) == ["learner", "generator-0", "reward-0"]
    kinds = {role: {span.name for span in lane.spans} for role, lane in lanes.items()}
    assert kinds["learner"] == {"train", "label", "publish", "wait", "evaluate", "save"}
    assert kinds["generator-0"] == {"generate", "update"}
    assert kinds["reward-0"] == {"reward"}
    steps = [span.fields["step"] for span in lanes["learner"].spans if span.name == "train"]
    assert steps == [0, 1, 2, 3, 0, 1, 2, 3]
    versions = [span.fields["version"] for span in lanes["generator-0"].spans if span.name == "update"]
    assert versions == [1, 2, 3, 4]
    for lane in lanes.values():
        ((begin, end),) = lane.lives
        assert all(begin - 1e-5 <= span.start <= span.end <= end + 1e-5 for span in lane.spans)


def test_the_command_prints_the_account_and_writes_a_trace(penstock: Penstock, finished: Path) -> None:
    shown = penstock("timeline", str(finished))
    assert shown.code == 0
    for part in ("learner ", "generator-0 ", "reward-0 ", "the learner waits: ", "generators are idle: ", "stall of a weight"):
        assert part in shown.out, part
    assert "lag of trained tokens: 0: 100.0%" in shown.out
    assert f"wrote {finished}/timeline.json" in shown.out
    trace = json.loads((finished / "timeline.json").read_text())
    assert {event["name"] for event in trace["traceEvents"] if event["ph"] == "X"} >= {"train", "generate", "reward", "wait"}


def test_the_trace_may_go_elsewhere(penstock: Penstock, finished: Path, tmp_path: Path) -> None:
    assert penstock("timeline", str(finished), "--out", "a.json").code == 0
    assert penstock("timeline", "--out=b.json", str(finished)).code == 0
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert not (finished / "timeline.json").exists()


def test_what_cannot_be_shown_is_refused_in_one_line(penstock: Penstock, finished: Path) -> None:
    penstock("timeline").assert_refused("Missing from penstock timeline: RUN")
    penstock("timeline", str(finished), "--out").assert_refused("--out")
    penstock("timeline", str(finished), "--speed", "3").assert_refused("unknown flag --speed")
    penstock("timeline", "nowhere").assert_refused("this is not a run folder")
    penstock("timeline", str(finished), "--out", "no/such/folder.json").assert_refused("no/such", "No such file")
    shutil.rmtree(finished / "spans")
    penstock("timeline", str(finished)).assert_refused("spans", "nothing is recorded", "no timeline")


def test_a_killed_run_has_a_timeline_and_goes_on_with_it(penstock: Penstock, halted: Path) -> None:
    assert penstock("timeline", str(halted)).code == 0
    assert penstock("train", "--resume", str(halted)).code == 0
    lanes = {lane.role: lane for lane in read_lanes(halted / "spans")}
    assert len(lanes["learner"].lives) == 2
    assert len(lanes["generator-0"].lives) == 2


def test_lag_is_measured_where_a_batch_is_older(penstock: Penstock) -> None:
    assert penstock("train", f"{RECIPES}:tiny", "--name", "late", "--grpo.max_lag", "1").code == 0
    values = [event["values"] for event in events(Path("runs/late")) if "lag/mean" in event.get("values", {})]
    assert len(values) == 4
    assert {value["lag/max"] for value in values} == {0.0, 1.0}
    shown = penstock("timeline", "runs/late").out
    assert "lag of trained tokens: 0: " in shown
    assert " 1: " in shown

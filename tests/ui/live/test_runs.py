"""The listing of runs: what counts as one, how far it is, and that only listed names lead anywhere."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from live_examples import log_of, row, run_folder, small_run
from penstock.core.sentinels import Alarm
from penstock.ui.live import runs as runs_module
from penstock.ui.live.runs import Runs
from penstock.web.refusals import Refusal


def names(runs: Runs) -> set[str]:
    return {run.name for run in runs.scan()}


def test_runs_are_found_in_the_folder_and_one_level_deeper(tmp_path: Path) -> None:
    small_run(tmp_path, "one")
    small_run(tmp_path / "sweep", "two")
    (tmp_path / "notes").mkdir()
    assert names(Runs(tmp_path)) == {"one", "sweep/two"}


def test_a_run_folder_itself_is_a_listing_of_one(tmp_path: Path) -> None:
    assert names(Runs(small_run(tmp_path, "one"))) == {"one"}


def test_a_run_that_began_since_is_found(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    assert names(runs) == set()
    small_run(tmp_path, "new")
    assert names(runs) == {"new"}
    assert runs.find("new").folder == tmp_path / "new"


def test_the_run_with_the_newest_events_is_first(tmp_path: Path) -> None:
    for place, name in enumerate(("a", "b", "c")):
        os.utime(small_run(tmp_path, name) / "events.jsonl", (0, [50, 90, 10][place]))
    assert [run.name for run in Runs(tmp_path).scan()] == ["b", "a", "c"]


ELSEWHERE = ["..", ".", "/etc", "../outside", "small/../../outside", "%2e%2e", "", "small/events.jsonl", "x" * 9999]


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_name_that_no_listing_gave_leads_nowhere(tmp_path: Path, name: str) -> None:
    small_run(tmp_path, "outside")
    small_run(tmp_path / "runs")
    with pytest.raises(Refusal, match="there is no run"):
        Runs(tmp_path / "runs").find(name)


def test_links_to_folders_elsewhere_are_not_followed(tmp_path: Path) -> None:
    small_run(tmp_path / "elsewhere", "secret")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "elsewhere" / "secret")
    assert names(Runs(tmp_path / "runs")) == set()


@pytest.mark.parametrize("name", ["with space", "ünïcode", "-flag", "a?b#c"])
def test_a_folder_of_any_name_gets_an_address_of_plain_characters(tmp_path: Path, name: str) -> None:
    small_run(tmp_path, name)
    (run,) = Runs(tmp_path).scan()
    assert (run.name, run.id.isalnum()) == (name, True)


def test_a_line_tells_stage_step_numbers_and_alarms(small: Path) -> None:
    (line,) = Runs(small).listing()
    told = [line[name] for name in ("stage", "place", "stages", "step", "steps", "alarms")]
    assert told == ["grpo", 2, 2, 10, 10, 1]
    assert {"label": "reward", "value": "1"} in line["values"]


def test_a_line_costs_the_end_of_a_long_log_only(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs_module, "END", 2000)
    parsed: list[int] = []
    monkeypatch.setattr(runs_module, "parsed", lambda line: (parsed.append(len(line)), json.loads(line or b"{}"))[1])
    runs = Runs(small)
    runs.listing()
    first = sum(parsed)
    runs.listing()
    assert (small / "small" / "events.jsonl").stat().st_size > 4000
    assert first < 2000 + (small / "small" / "run.json").stat().st_size + 1
    assert sum(parsed) == first


STATES = {
    "nothing": "running", "old": "silent", "summary": "finished", "fatal": "stopped", "empty": "silent", "resumed": "running",
}  # fmt: skip


@pytest.mark.parametrize("change", STATES)
def test_the_state_of_a_run(tmp_path: Path, change: str) -> None:
    folder = run_folder(tmp_path, "run", "grpo")
    log = log_of(folder, "grpo")
    if change != "empty":
        log.metrics(1, {"loss": 1.0})
    if change in ("fatal", "resumed"):
        log.sentinel(Alarm("non-finite", "fatal", 1, "loss is NaN", 0.0, 0.0))
    if change == "resumed":
        log.metrics(2, {"loss": 1.0})
    if change == "summary":
        (folder / "summary.json").write_text('{"headline": "done in 3 s", "stages": {}}')
    later = 3600 if change == "old" else 1
    runs = Runs(tmp_path, now=lambda: os.stat(log.path).st_mtime + later)
    assert runs.listing()[0]["state"] == STATES[change]


def test_numbers_before_very_long_samples_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs_module, "END", 500)
    log = log_of(run_folder(tmp_path, "run", "grpo"), "grpo")
    for step in range(1, 20):
        log.metrics(step, {"reward/mean": step / 100})
    log.samples(19, [row("a", "x" * 3000)])
    (line,) = Runs(tmp_path).listing()
    assert (line["step"], line["values"]) == (19, [{"label": "reward", "value": "0.190"}])


def test_a_linked_folder_of_spans_is_not_followed(tmp_path: Path) -> None:
    folder = small_run(tmp_path)
    (folder / "spans").rename(tmp_path / "elsewhere")
    (folder / "spans").symlink_to(tmp_path / "elsewhere")
    assert Runs(tmp_path).find("small").drawn(len) == 0


def test_runs_that_differ_in_name_and_seed_only_are_a_family(tmp_path: Path) -> None:
    small_run(tmp_path, "a", seed=1)
    small_run(tmp_path, "b", seed=2)
    run_folder(tmp_path, "c", "sft", "grpo", seed=1, steps=99)
    families = {line["name"]: line["family"] for line in Runs(tmp_path).listing()}
    assert families["a"] == families["b"] != families["c"]


@pytest.mark.parametrize("damage", ["[]", "{", "", '{"stages": 3}', '{"stages": [1, {"name": 2, "steps": "x"}]}', "\x00"])
def test_a_damaged_spec_still_lists(tmp_path: Path, damage: str) -> None:
    (small_run(tmp_path) / "run.json").write_text(damage)
    assert [line["name"] for line in Runs(tmp_path).listing()] == ["small"]


@pytest.mark.parametrize(("limit", "value", "kept"), [("INDEXED_BYTES", 1, {"a"}), ("INDEXED", 2, {"a", "c"})])
def test_indexes_that_were_not_used_for_longest_are_forgotten_once_there_is_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int, kept: set[str]
) -> None:
    for name in "abc":
        small_run(tmp_path, name)
    runs = Runs(tmp_path)
    for name in "abc":
        runs.index(runs.find(name))
    monkeypatch.setattr(runs_module, limit, value)
    runs.index(runs.find("a"))
    assert {run.name for run in runs.scan() if run.index is not None} == kept

"""Alarms on the screen and in the report: once, in words, and harmless whatever stands in them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from rich.console import Console

from live_examples import log_of, run_folder
from penstock.core.events import read_events
from penstock.core.sentinels import Alarm
from penstock.observe.alarms import Tripped, tripped, verdict
from penstock.ui.progress import Progress
from penstock.ui.report import write_report


def event(name: str, step: int, state: str = "tripped", severity: str = "warning", **more: Any) -> dict[str, Any]:
    known = {"kind": "sentinel", "stage": "grpo", "step": step, "sentinel": name, "state": state, "severity": severity}
    return {**known, "message": "look here", "value": 0.2, "bound": 0.1, **more}


def test_an_alarm_lasts_from_its_trip_to_its_clearing() -> None:
    events = [
        event("constant reward", 5),
        event("constant reward", 6),
        event("constant reward", 9, "cleared"),
        event("constant reward", 12),
        event("log-prob gap", 13, severity="fatal"),
        {"kind": "sentinel"},
        {"kind": "metrics", "sentinel": "none", "step": 1},
        event("never tripped", 14, "cleared"),
    ]
    assert tripped(events) == [
        Tripped("constant reward", "warning", 5, "look here", 9),
        Tripped("constant reward", "warning", 12, "look here"),
        Tripped("log-prob gap", "fatal", 13, "look here"),
    ]
    assert [one.until for one in tripped(events)] == ["cleared at step 9", "not cleared", "stopped the run"]


def test_a_run_in_a_few_words() -> None:
    assert verdict([[], []], {"sentinels": "on"}) == "all quiet"
    assert verdict([[]], {"sentinels": "off"}) == "off"
    assert verdict([[]], {}) == ""
    found = [Tripped("a", "warning", 1, ""), Tripped("b", "fatal", 2, "")]
    assert verdict([found, found[:1]], {"sentinels": "on"}) == "3 tripped, 1 fatal"


def test_the_screen_says_an_alarm_on_one_line_and_leaves_a_fatal_message_to_the_error() -> None:
    out = io.StringIO()
    show = Progress([("grpo", 10)], Console(file=out, width=400, highlight=False))
    show(event("constant reward", 5, message="every sample\nhad [red]the same\x1b reward"))
    show(event("constant reward", 9, "cleared", message="back within the bound"))
    show(event("log-prob gap", 10, severity="fatal", message="said by the error"))
    show.close()
    assert out.getvalue().splitlines() == [
        "grpo sentinel tripped: constant reward, step 5: every sample⏎had [red]the same� reward",
        "grpo sentinel cleared: constant reward, step 9: back within the bound",
        "grpo sentinel tripped: log-prob gap, step 10",
    ]


def test_the_report_lists_what_tripped_and_escapes_it(tmp_path: Path) -> None:
    log = log_of(run_folder(tmp_path, "watched", "grpo"), "grpo")
    log.metrics(1, {"mismatch/mean": 1e-6})
    log.sentinel(Alarm("constant reward", "warning", 5, "<b>always</b> 1", 0.0, 0.0))
    log.sentinel(Alarm("log-prob gap", "fatal", 9, "they differ", float("nan"), 0.05))
    log.close()
    page = write_report(log.path.parent).read_text(encoding="utf-8")
    assert "2 tripped, 1 fatal" in page
    assert "&lt;b&gt;always&lt;/b&gt; 1" in page
    assert "<b>always" not in page
    assert "stopped the run" in page
    assert "log-prob gap" in page


def test_a_quiet_run_says_so(tmp_path: Path) -> None:
    page = write_report(run_folder(tmp_path, "quiet", "grpo")).read_text(encoding="utf-8")
    assert "<dt>sentinels</dt><dd>all quiet</dd>" in page


def test_a_resume_drops_warnings_that_will_come_again_and_keeps_what_stopped_the_run(tmp_path: Path) -> None:
    log = log_of(tmp_path, "grpo")
    for step, severity in ((3, "warning"), (7, "warning"), (8, "fatal")):
        log.sentinel(Alarm("gap", severity, step, "", 0.0, 0.0))  # type: ignore[arg-type]
    log.truncate_after("grpo", 4)
    log.close()
    assert [entry["step"] for entry in read_events(log.path)] == [3, 8]

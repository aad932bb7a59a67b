"""docs/backends.md says what the contract suites have recorded."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def tool():
    spec = importlib.util.spec_from_file_location("backends_table", ROOT / "tools/backends_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def entry(implementation: str, outcome: str, why: str = "", requirement: str = "it holds") -> dict[str, str]:
    return {"suite": "channel", "implementation": implementation, "requirement": requirement, "outcome": outcome, "why": why}


def test_the_tables_are_those_of_the_records() -> None:
    checked = subprocess.run(
        [sys.executable, "tools/backends_table.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout


def test_what_ran_somewhere_counts_more_than_what_was_skipped_elsewhere_and_failures_count_most() -> None:
    records = [
        [entry("a", "skipped", "not installed"), entry("b", "run"), entry("c", "run"), entry("c", "skipped", "half of it")],
        [entry("a", "run"), entry("b", "failing", "it broke")],
    ]
    rows = list(tool().table(tool().merged(records)["channel"]))
    assert rows[2] == "| it holds | run | **failing** [1] | run, in part [2] |"
    assert rows[-2:] == ["[1] it broke  ", "[2] half of it  "]


def test_a_requirement_that_an_implementation_has_no_record_of_is_left_open() -> None:
    rows = list(tool().table(tool().merged([[entry("a", "run"), entry("b", "run", requirement="another")]])["channel"]))
    assert rows[2:] == ["| it holds | run | – |", "| another | – | run |"]

"""docs/algorithms.md says what the docstrings say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_the_tables_of_algorithms_are_those_of_the_docstrings() -> None:
    checked = subprocess.run(
        [sys.executable, "tools/algorithms_table.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout


def test_every_function_in_the_table_of_equations_names_its_paper_or_says_what_it_is() -> None:
    rows = [line for line in (ROOT / "docs/algorithms.md").read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert len(rows) > 80
    assert [row for row in rows if not row.split(" | ")[1].strip()] == []

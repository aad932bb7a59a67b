"""docs/algorithms.md says what the docstrings say."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import reduce
from pathlib import Path

import penstock.algos
from penstock.algos import advantages
from penstock.config.run import Offline, Online

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


BEHAVIOUR = {"what a KL in the reward reads"}
"""Defaults that are no field: tests of their own hold them (``docs/log.md``)."""


def test_the_defaults_that_differ_are_those_of_the_fields() -> None:
    """In the first column stand fields as ``Spec.field``, in the second their values in the same order."""
    page = (ROOT / "docs/algorithms.md").read_text(encoding="utf-8").split("\n## Defaults that differ\n")[1].split("\n## ")[0]
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")][2:]
    known = vars(penstock.algos) | {"advantages": advantages, "Offline": Offline, "Online": Online}
    compared, others = 0, set()
    for first, ours, *_ in rows:
        fields, values = re.findall(r"`(\w+(?:\.\w+)+)`", first), [ast.literal_eval(v) for v in re.findall("`(.+?)`", ours)]
        found = [reduce(getattr, field.split(".")[1:], known[field.split(".")[0]]) for field in fields]
        assert found == values, first
        compared += len(fields)
        others |= set() if fields else {first.removeprefix("| ")}
    assert (compared, others) == (14, BEHAVIOUR)

"""The benchmark of learning: its tables are read from finished runs, one for the recipe's graph and one for others."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from learning import other_graphs, replaced, table


def finish(home: Path, name: str, **last: float) -> None:
    (home / name).mkdir()
    summary = {"headline": "", "seconds": 30, "stages": {"sft": {"last": {}}, "second": {"last": last}}}
    (home / name / "summary.json").write_text(json.dumps(summary))


def test_runs_on_other_graphs_have_a_table_of_their_own(tmp_path):
    finish(tmp_path, "dpo-seed-0", **{"evaluation/reward": 0.75})
    finish(tmp_path, "dpo-graph-3-seed-0", **{"evaluation/reward": 0.5})
    finish(tmp_path, "dpo-graph-3-seed-1", **{"evaluation/reward": 0.25})
    finish(tmp_path, "ilql-graph-12-seed-0", **{"evaluation/reward": 0.125, "evaluation/beta=64/reward": 0.875})
    (tmp_path / "ppo-graph-1-seed-0").mkdir()  # unfinished
    assert table(tmp_path)[2:] == ["| dpo | 1 | 0.750 | 0.750 to 0.750 | 30 |"]
    assert other_graphs(tmp_path)[2:] == ["| dpo | 3 | 2 | 0.500, 0.250 |", "| ilql | 12 | 1 | 0.875 |"]


def test_a_part_of_the_page_is_replaced_and_the_rest_stays():
    page = "before <!-- measured: begin -->\nold\n<!-- measured: end --> after"
    assert replaced(page, "measured", ["new"]) == "before <!-- measured: begin -->\nnew\n<!-- measured: end --> after"

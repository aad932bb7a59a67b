"""A run that goes on reads the rows that it began with, or says that they are others."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from penstock.algos import SFT
from penstock.config.run import DataSpec, EvaluationSpec, ModelSpec, Offline
from penstock.core.errors import DataError
from penstock.runtime.pinning import require_same_rows

ROWS = [{"prompt": f"{number}", "completion": "a"} for number in range(600)]


def written(path: Path, rows: list[dict[str, Any]]) -> None:
    """A file of the kind that its name says."""
    if path.suffix == ".csv":
        with path.open("w", newline="") as out:
            table = csv.DictWriter(out, list(rows[0]))
            table.writeheader()
            table.writerows(rows)
        return
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(lines) if path.suffix == ".gz" else lines)


def begun(folder: Path, **data: Any) -> None:
    """What beginning a stage or going on with it asks of its rows."""
    rows = DataSpec(**({"source": "rows.jsonl"} | data))
    stage = Offline(name="s", algorithm=SFT(), model=ModelSpec(preset="1m"), data=rows, steps=1)
    require_same_rows(stage, folder, folder)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz", "rows.csv"])
@pytest.mark.parametrize(
    "changed", [ROWS[::-1], [*ROWS, ROWS[0]], ROWS[:599]], ids=["another order", "a row more", "a row less"]
)
def test_other_rows_than_those_of_the_beginning_are_refused(name, changed, tmp_path):
    written(tmp_path / name, ROWS)
    begun(tmp_path, source=name)
    begun(tmp_path, source=name)
    written(tmp_path / name, changed)
    with pytest.raises(DataError, match=f"{name}: its rows are not those that the run began with"):
        begun(tmp_path, source=name)


def test_a_file_that_grew_behind_what_is_read_of_it_is_the_same(tmp_path):
    written(tmp_path / "rows.jsonl", ROWS)
    begun(tmp_path, size=100)
    before = (tmp_path / "pins.json").read_text()
    written(tmp_path / "rows.jsonl", [*ROWS, ROWS[0]])
    begun(tmp_path, size=100)
    assert (tmp_path / "pins.json").read_text() == before


def test_held_out_rows_are_looked_at_too(tmp_path):
    written(tmp_path / "rows.jsonl", ROWS)
    written(tmp_path / "held.jsonl", ROWS[:9])
    stage = Offline(
        name="s", algorithm=SFT(), model=ModelSpec(preset="1m"), data=DataSpec(source="rows.jsonl"), steps=1,
        evaluation=EvaluationSpec(data=DataSpec(source="held.jsonl")),
    )  # fmt: skip
    require_same_rows(stage, tmp_path, tmp_path)
    written(tmp_path / "held.jsonl", ROWS[1:10])
    with pytest.raises(DataError, match=r"held\.jsonl"):
        require_same_rows(stage, tmp_path, tmp_path)

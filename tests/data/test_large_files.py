"""Files larger than memory: their rows stay on disk, whatever kind of file it is, and are made ready once."""

from __future__ import annotations

import csv
import gzip
import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.core.errors import DataError
from penstock.data import files

ROWS = [{"prompt": f"naïve {number}\u2028", "answer": number} for number in range(300)]


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Every file is large, and the cache is the test's own."""
    monkeypatch.setattr(files, "LARGE", 1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "penstock" / "rows"


def written(path: Path, rows: Sequence[dict[str, object]]) -> Path:
    """A file of the kind that its name says."""
    if path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as out:
            table = csv.DictWriter(out, list(rows[0]))
            table.writeheader()
            table.writerows(rows)
    elif path.suffix == ".txt":
        path.write_text("".join(f"{row['prompt']}\n" for row in rows), encoding="utf-8")
    else:
        lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
        path.write_bytes(gzip.compress(lines) if path.suffix == ".gz" else lines)
    return path


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz", "rows.csv", "rows.txt"])
def test_rows_on_disk_are_those_of_the_file(name, tmp_path):
    opened = files.open_rows(written(tmp_path / name, ROWS), name)
    assert isinstance(opened, files.JsonLines)
    wanted = [{"text": row["prompt"]} for row in ROWS] if name.endswith(".txt") else ROWS
    assert [opened[place] for place in range(len(opened))] == wanted


def test_the_second_opening_reads_nothing_through(tmp_path, monkeypatch):
    path = written(tmp_path / "rows.csv", ROWS)
    files.open_rows(path, path.name)
    monkeypatch.delattr(files, "numbered_csv")
    monkeypatch.delattr(files, "_read_through")
    assert files.open_rows(path, path.name)[299] == ROWS[299]


def test_a_file_that_changed_is_read_again(tmp_path):
    path = written(tmp_path / "rows.jsonl.gz", ROWS)
    files.open_rows(path, path.name)
    written(path, ROWS[:7])
    os.utime(path, ns=(1, 1))
    assert len(files.open_rows(path, path.name)) == 7


def test_openings_at_once_make_it_ready_once(tmp_path, capsys):
    path = written(tmp_path / "rows.jsonl.gz", ROWS)
    with ThreadPoolExecutor(8) as pool:
        lengths = list(pool.map(lambda _: len(files.open_rows(path, path.name)), range(8)))
    assert lengths == [300] * 8
    assert capsys.readouterr().err.count("written to the cache") == 1


def test_a_broken_row_is_named_and_leaves_nothing(tmp_path, cache):
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"prompt": "a"}\n{"prompt": \n'))
    with pytest.raises(DataError, match=r"rows.jsonl.gz:2: not valid JSON"):
        files.open_rows(path, path.name)
    assert not list(cache.glob("*.jsonl"))


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    path = written(tmp_path / "rows.csv", ROWS)
    with pytest.raises(DataError, match="set XDG_CACHE_HOME"):
        files.open_rows(path, path.name)
    plain = written(tmp_path / "rows.jsonl", ROWS)
    assert len(files.open_rows(plain, plain.name)) == 300  # its lines are where they are; only the index is not kept


def test_who_waits_too_long_for_another_says_so(tmp_path, monkeypatch, cache):
    monkeypatch.setattr(files, "LONGEST", 0.2)
    path = written(tmp_path / "rows.jsonl.gz", ROWS)
    files.open_rows(path, path.name)
    (kept,) = cache.glob("*.jsonl")
    kept.unlink()
    with (cache / f".{kept.name}.lock").open("ab") as holder:
        assert files.lock(holder.fileno())
        with pytest.raises(DataError, match="another process"):
            files.open_rows(path, path.name)


def test_few_rows_of_a_large_file_are_read_without_reading_it_through(tmp_path, monkeypatch):
    path = written(tmp_path / "rows.jsonl.gz", ROWS)
    monkeypatch.delattr(files, "_read_through")
    assert files.open_rows(path, path.name, most=3) == ROWS[:3]

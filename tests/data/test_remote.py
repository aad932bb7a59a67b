"""Rows of object stores: fetched once, the same as of a file, and what is wrong with a URL in one line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.config.run import DataSpec
from penstock.core.errors import DataError, SpecError
from penstock.data.sources import open_source

fsspec = pytest.importorskip("fsspec")

ROWS = [{"prompt": f"{number} + 1 =", "answer": str(number + 1)} for number in range(50)]


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[object]:
    """fsspec's store in memory, and a cache of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    files = fsspec.filesystem("memory")
    yield files
    files.store.clear()


def lines(rows: list[dict[str, str]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def read(source: str, base: Path) -> list[dict[str, str]]:
    opened = open_source(DataSpec(source=source), base)
    return [dict(opened[place]) for place in range(len(opened))]


def test_rows_of_a_store_are_those_of_the_file(memory, tmp_path):
    memory.pipe_file("/team/rows.jsonl", lines(ROWS))
    assert read("memory://team/rows.jsonl", tmp_path) == ROWS


def test_a_file_is_fetched_once_until_the_store_has_another(memory, tmp_path):
    memory.pipe_file("/team/rows.jsonl", lines(ROWS))
    read("memory://team/rows.jsonl", tmp_path)
    (kept,) = (tmp_path / "cache" / "penstock" / "remote").rglob("rows.jsonl")
    before = kept.stat().st_mtime_ns
    read("memory://team/rows.jsonl", tmp_path)
    assert kept.stat().st_mtime_ns == before
    memory.pipe_file("/team/rows.jsonl", lines(ROWS[:3]))
    assert read("memory://team/rows.jsonl", tmp_path) == ROWS[:3]


def test_what_is_not_there_is_one_line_and_leaves_nothing(memory, tmp_path):
    with pytest.raises(DataError, match=r"memory://team/none.jsonl: cannot be read"):
        read("memory://team/none.jsonl", tmp_path)
    assert not list((tmp_path / "cache").rglob("*.jsonl"))


def test_a_scheme_that_nobody_knows_names_those_that_are(memory, tmp_path):
    with pytest.raises(SpecError, match=r"data.source=ftpx://team/rows.jsonl: .*use file://, s3://, gs://"):
        read("ftpx://team/rows.jsonl", tmp_path)


def test_a_file_of_no_known_kind_is_refused(memory, tmp_path):
    memory.pipe_file("/team/rows.arrow", b"ARROW1")
    with pytest.raises(DataError, match="no source that is known"):
        read("memory://team/rows.arrow", tmp_path)


def test_rows_come_over_s3(tmp_path, monkeypatch):
    pytest.importorskip("s3fs")
    pytest.importorskip("moto.server")
    from s3_server import S3Server

    server = S3Server()
    server.start()
    try:
        for name, value in {**server.environment, "XDG_CACHE_HOME": str(tmp_path / "cache")}.items():
            monkeypatch.setenv(name, value)
        fsspec.filesystem("s3").clear_instance_cache()
        server.files().pipe_file("runs/rows.jsonl", lines(ROWS))
        assert read("s3://runs/rows.jsonl", tmp_path) == ROWS
    finally:
        server.stop()

"""A log's line that is longer than may be read at once, or nested deeper than can be."""

from pathlib import Path

from penstock.core import files
from penstock.core.files import json_lines


def test_a_line_that_is_too_long_or_too_deep_is_passed_over_and_the_next_is_read(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(files, "LONGEST_LINE", 1 << 20)
    log = tmp_path / "events.jsonl"
    log.write_text('{"a": 1}\n{"b": "' + "x" * (3 << 20) + '"}\n' + "[" * 200_000 + '\n{"c": 2}\n')
    assert [value for value in json_lines(log) if isinstance(value, dict)] == [{"a": 1}, {"c": 2}]

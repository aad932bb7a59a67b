"""Rows to JSON lines, Parquet and CSV, and back. A file is there whole or not at all."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from penstock.core.files import replaced
from penstock.core.messages import is_messages
from penstock.data.files import READERS, arrow
from penstock.feedback.errors import FeedbackError

Row = dict[str, Any]
NUMBERED = re.compile(r"(response|model|media)[_ ]?(\d{1,3}|(?<=[_ ])[a-z])")
"""Columns of CSV that are one list: ``response_1``, ``model_b``."""


def encoded(rows: Sequence[Mapping[str, Any]], suffix: str) -> bytes:
    """Rows in the format of a suffix: .jsonl, .parquet or .csv. Raises FeedbackError: another suffix, or no rows."""
    if suffix not in FORMATS:
        raise FeedbackError(f"cannot write {suffix or 'a file without suffix'}; use {', '.join(FORMATS)}")
    if not rows:
        raise FeedbackError("there are no rows to write; has anybody voted yet?")
    if suffix == ".csv" and (lists := [name for row in rows for name, value in row.items() if is_messages(value)]):
        raise FeedbackError(f"{lists[0]} holds conversations, which are no text of a cell of CSV; use .jsonl or .parquet")
    return FORMATS[suffix][0](rows)


def write_rows(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write rows in the format of the path's suffix: .jsonl, .parquet or .csv.

    Raises:
        FeedbackError: another suffix, no rows, or a folder that cannot be written.
    """
    content = encoded(rows, path.suffix)
    try:
        with replaced(path, binary=True, private=True) as file:
            file.write(content)
    except OSError as error:
        raise FeedbackError(f"{path}: cannot be written ({error.strerror})") from error


def placed_rows(path: Path) -> list[tuple[str, Row]]:
    """Rows of a .jsonl, .json (a list of objects), .csv or .parquet file, each with its place for an error, such as ``FILE:7``.

    A cell of CSV is text, an empty one is not there but in :data:`NUMBERED` columns.

    Raises:
        DataError, FeedbackError: another suffix, or a malformed file; names the line.
    """
    suffix = path.name.removesuffix(".gz").rpartition(".")[2]
    if path.suffix == ".gz" and suffix != "jsonl":
        raise FeedbackError(f"{path}: unpack it first (gunzip); only .jsonl.gz is read packed")
    if suffix not in READERS:
        raise FeedbackError(f"{path}: cannot read {path.suffix or 'a file without suffix'}; use .{', .'.join(READERS)}")
    if not path.is_file():
        raise FeedbackError(f"{path}: there is no such file")
    found = [(f"{path}:{number}", _there(row) if suffix == "csv" else row) for number, row in READERS[suffix](path)]
    if not found:
        raise FeedbackError(f"{path}: no rows in it; is it the right file?")
    return found


def _there(row: Row) -> Row:
    """The cells of CSV that are not empty, and those of numbered columns."""
    return {name: cell or "" for name, cell in row.items() if cell or NUMBERED.fullmatch(name)}


_json = partial(json.dumps, ensure_ascii=False, allow_nan=False)


def _parquet(rows: Sequence[Mapping[str, Any]]) -> bytes:
    parquet = arrow(Path("rows.parquet"))
    import pyarrow

    # Mappings become JSON text: their keys differ from row to row, and a Parquet struct may not be empty.
    names = dict.fromkeys(name for row in rows for name in row)
    cells = [{name: row.get(name) for name in names} for row in rows]
    flat = [{name: json.dumps(cell) if isinstance(cell, Mapping) else cell for name, cell in row.items()} for row in cells]
    sink = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(flat), sink)
    return sink.getvalue()


def changed_texts(rows: Sequence[Mapping[str, Any]], suffix: str) -> int:
    """How many texts a file of this kind does not hold as they are: in CSV those that look like formulas."""
    return sum(suffix == ".csv" and isinstance(one, str) and _inert(one) != one for row in rows for one in row.values())


def csv_bytes(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """CSV with every cell quoted, and a quote before what a spreadsheet would run as a formula."""
    sink = io.StringIO()
    columns = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.writer(sink, quoting=csv.QUOTE_ALL, lineterminator="\r\n")
    writer.writerow([_inert(name) for name in columns])
    writer.writerows([[_inert(row.get(name)) for name in columns] for row in rows])
    return sink.getvalue().encode()


def _inert(value: Any) -> str:
    """A cell's text. Numbers stay numbers; text that begins like a formula is made text.

    SOURCE: OWASP, "CSV Injection": ``= + - @``, tab and carriage return begin a formula; so do their full-width forms, also
    behind other white space.
    """
    if value is None:
        return ""
    if isinstance(value, int | float):
        return str(value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    dangerous = text[:1] in ("\t", "\r") or bool(re.match(r"[\s\ufeff]*[=+\-@＝＋－＠|]", text))
    return f"'{text}" if dangerous else text


FORMATS: Mapping[str, tuple[Callable[[Sequence[Mapping[str, Any]]], bytes], str]] = {
    ".jsonl": (lambda rows: b"".join(_json(row).encode() + b"\n" for row in rows), "application/x-ndjson"),
    ".json": (lambda rows: _json(rows, indent=1).encode(), "application/json"),
    ".parquet": (_parquet, "application/vnd.apache.parquet"),
    ".csv": (csv_bytes, "text/csv; charset=utf-8"),
}
"""What is written by suffix: how, and its media type."""

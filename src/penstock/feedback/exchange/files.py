"""Rows to JSON lines, Parquet and CSV, and back. A file is there whole or not at all."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from penstock.core.files import replaced
from penstock.data.sources import numbered_json_rows
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
    found = [(f"{path}:{number}", dict(row)) for number, row in READERS[suffix](path)]
    if not found:
        raise FeedbackError(f"{path}: no rows in it; is it the right file?")
    return found


def _read_parquet(path: Path) -> Iterator[tuple[int, Row]]:
    parquet = _arrow(path)
    from pyarrow import ArrowException

    try:
        return enumerate(parquet.read_table(path).to_pylist(), 1)
    except (OSError, ArrowException) as error:
        raise FeedbackError(f"{path}: no readable Parquet ({str(error).splitlines()[0]})") from error


def _read_json(path: Path) -> Iterator[tuple[int, Row]]:
    try:
        found = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise FeedbackError(f"{path}: no JSON ({error}); use .jsonl for one object a line") from error
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        raise FeedbackError(f"{path}: not a list of objects; use .jsonl for one object a line")
    return enumerate(found, 1)


def _read_csv(path: Path) -> Iterator[tuple[int, Row]]:
    content = path.read_bytes()
    try:
        reader = csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True)
        twice = [name for name, count in Counter(reader.fieldnames or ()).items() if count > 1]
        if twice:
            raise FeedbackError(f"{path}:1: {len(twice)} column names are there twice, such as {twice[0]!r:.40}; rename one")
        for row in reader:
            if None in row or None in row.values():
                raise FeedbackError(f"{path}:{reader.line_num}: other cells than the header has; quote what holds commas")
            yield reader.line_num, {name: cell for name, cell in row.items() if cell or NUMBERED.fullmatch(name)}
    except csv.Error as error:
        raise FeedbackError(f"{path}:{reader.line_num + 1}: no CSV ({error})") from error
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise FeedbackError(f"{path}:{line}: not UTF-8; save the file as UTF-8 (of Windows-1252, say)") from error


READERS: Mapping[str, Callable[[Path], Iterator[tuple[int, Mapping[str, Any]]]]] = {
    "jsonl": numbered_json_rows, "json": _read_json, "csv": _read_csv, "parquet": _read_parquet,
}  # fmt: skip


_json = partial(json.dumps, ensure_ascii=False, allow_nan=False)


def _parquet(rows: Sequence[Mapping[str, Any]]) -> bytes:
    parquet = _arrow(Path("rows.parquet"))
    import pyarrow

    # Mappings become JSON text: their keys differ from row to row, and a Parquet struct may not be empty.
    names = dict.fromkeys(name for row in rows for name in row)
    cells = [{name: row.get(name) for name in names} for row in rows]
    flat = [{name: json.dumps(cell) if isinstance(cell, Mapping) else cell for name, cell in row.items()} for row in cells]
    sink = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(flat), sink)
    return sink.getvalue()


def _arrow(path: Path) -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise FeedbackError(f"{path}: Parquet needs the pyarrow package; run: pip install penstock[hub]") from error
    return pyarrow.parquet


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

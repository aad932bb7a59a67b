"""Rows of files: JSON lines, which stay on disk until they are read, JSON, CSV, Parquet and plain text."""

from __future__ import annotations

import contextlib
import csv
import gzip
import hashlib
import itertools
import json
import os
import re
import sys
import time
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import DataError
from penstock.core.files import lock, replaced
from penstock.data.rows import DataRow

Row = dict[str, Any]
Numbered = Iterator[tuple[int, Row]]
FILES = (".jsonl", ".ndjson", ".txt", ".csv", ".tsv", ".json")
"""Ends of files that :func:`open_rows` reads, each also with .gz."""
ZIPPED = b"\x1f\x8b"
"""How a gzipped file begins, whatever its name is in a cache."""
PATIENCE = 2.0
"""Seconds between two lines that say how far reading has come."""
LONGEST = 3600.0
"""Seconds to wait for another process that reads the same file."""
LARGE, MANY = 64 << 20, 100_000
"""Bytes of a file, and rows asked of it, from which on rows of any kind stay on disk."""


def is_zipped(path: Path) -> bool:
    """Whether a file is gzipped."""
    with path.open("rb") as file:
        return file.read(2) == ZIPPED


def kind_of(name: str) -> str:
    """What a file is by its name, such as "csv" of rows.csv.gz; empty for one of none of :data:`FILES`."""
    plain = name.lower().removesuffix(".gz")
    return next((end[1:].replace("ndjson", "jsonl") for end in FILES if plain.endswith(end)), "")


def lines_of(path: Path) -> Iterator[tuple[int, int, int, str]]:
    """Number, first byte, end and text of every line that is not blank, split at line feeds only, without their line end.

    Raises:
        DataError: not UTF-8, or it cannot be read to its end.
    """
    opened: Any = gzip.open(path, "rb") if is_zipped(path) else open(path, "rb")  # noqa: SIM115 - closed below
    number, at = 0, 0
    with opened as lines:
        try:
            for number, line in enumerate(lines, 1):
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").removesuffix("\n").removesuffix("\r")
                if text.strip():
                    yield number, at, at + len(line), text
                at += len(line)
        except UnicodeDecodeError as error:
            raise DataError(f"{path}:{number}: not UTF-8 ({error.reason} at byte {error.start}); convert the file") from error
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{path}: cannot be read after line {number} ({error}); is it complete?") from error


def parsed(line: str | bytes, where: str) -> Row:
    """The row of a line of JSON. Raises DataError: it is none."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not valid JSON ({error})") from error
    if not isinstance(row, dict):
        raise DataError(f'{where}: a row must be a JSON object like {{"prompt": "…"}}, not {type(row).__name__}')
    return row


def numbered_json_rows(path: Path) -> Numbered:
    """Rows of a JSON-lines file, plain or gzipped, each with the number of its line, from 1; blank lines are passed over."""
    return ((number, parsed(line, f"{path}:{number}")) for number, _, _, line in lines_of(path))


def text_rows(path: Path) -> Iterator[Row]:
    """Rows of a UTF-8 text file, one a line in the column ``text``; blank lines are passed over."""
    return ({"text": line} for *_, line in lines_of(path))


class JsonLines:
    """Rows of a JSON-lines file by their place, each read and parsed when it is asked for.

    The first opening reads the whole file, so that a broken line is found before anything starts, and keeps where lines begin
    in the user's cache; later ones, and other processes, map that: 16 bytes a row, shared by all.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDONLY)
        self._ends = _line_index(path)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, place: int) -> DataRow:
        start, end = (int(edge) for edge in self._ends[place])
        changed = f"{self.path}: row {place} is not what it was when the run began; do not change data of a run"
        return parsed(os.pread(self._file, end - start, start), changed)

    def __del__(self) -> None:
        if "_file" in self.__dict__:
            os.close(self._file)


def cache_folder(name: str) -> Path:
    """A folder of the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock" / name


def made_once(kept: Path, source: str, make: Callable[[Any], None]) -> Path:
    """A file of the user's cache, which ``make`` writes if it is not there; other processes that want it wait for it.

    Raises:
        OSError: the cache cannot be written.
        DataError: another process has been making it for an hour.
    """
    if kept.exists():
        return kept
    kept.parent.mkdir(parents=True, exist_ok=True)
    with kept.with_name(f".{kept.name}.lock").open("ab") as holder:
        began = time.monotonic()
        while not lock(holder.fileno()):
            if time.monotonic() - began > LONGEST:
                raise DataError(f"{source}: another process has been reading it for an hour ({kept}); end it, or remove that")
            time.sleep(0.1)
        if not kept.exists():
            with replaced(kept, binary=True) as file:
                make(file)
    return kept


def _kept(path: Path, suffix: str) -> Path:
    """Where the cache keeps what was made of a file in its present state."""
    stat = path.stat()
    known = f"{path} {stat.st_size} {stat.st_mtime_ns} {stat.st_ino}"
    return cache_folder("rows") / f"{hashlib.sha256(known.encode()).hexdigest()[:24]}{suffix}"


def _as_json_lines(path: Path, rows: Iterator[Row]) -> Path:
    """A large file of another kind as JSON lines in the user's cache, which need no memory.

    Raises:
        DataError: a malformed row, or a cache that cannot be written.
    """

    def write(file: Any) -> None:
        print(f"{path}: its rows are written to the cache as JSON lines; once", file=sys.stderr, flush=True)
        file.writelines(json.dumps(row).encode() + b"\n" for row in rows)

    try:
        return made_once(_kept(path, ".jsonl"), str(path), write)
    except OSError as error:
        raise DataError(f"{path}: is large, and its rows cannot be kept in the cache ({error}); set XDG_CACHE_HOME") from error


def _line_index(path: Path) -> NDArray[np.uint64]:
    """First byte and end of every row ``[rows, 2]``, of the cache if the file has not changed since."""
    if path.stat().st_size < LARGE >> 6:
        return _read_through(path)
    found: list[NDArray[np.uint64]] = []

    def write(file: Any) -> None:
        found.append(_read_through(path))
        np.save(file, found[0], allow_pickle=False)

    with contextlib.suppress(OSError):  # a cache that cannot be written makes the next start slower, nothing else
        kept = made_once(_kept(path, ".npy"), str(path), write)
        return np.load(kept, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
    return found[0] if found else _read_through(path)


def _read_through(path: Path) -> NDArray[np.uint64]:
    """Parse every line once and note where it is."""
    edges, said, size = array("Q"), time.monotonic() + PATIENCE, path.stat().st_size
    for number, start, end, line in lines_of(path):
        parsed(line, f"{path}:{number}")
        edges.extend((start, end))
        if number % 1000 == 0 and time.monotonic() > said:
            read = f"{start >> 20:,} of {size >> 20:,} MB read, {len(edges) // 2:,} rows"
            print(f"{path}: {read}; once", file=sys.stderr, flush=True)
            said = time.monotonic() + PATIENCE
    return np.frombuffer(edges, np.uint64).reshape(-1, 2)


def numbered_json(path: Path) -> Numbered:
    """Rows of a .json file: a list of objects, or an object a line."""
    text = _content(path)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        if text.lstrip()[:1] == "{" and "\n" in text.strip():
            return numbered_json_rows(path)
        raise DataError(f"{path}: not valid JSON ({error}); give a list of objects, or .jsonl with one a line") from error
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        raise DataError(f"{path}: not a list of objects; use .jsonl for one object a line")
    return enumerate(found, 1)


def numbered_csv(path: Path, delimiter: str = ",") -> Numbered:
    """Rows of a .csv file. Every cell is a text as it is spelled; an empty one is null."""
    opened = gzip.open if is_zipped(path) else open
    with opened(path, "rt", encoding="utf-8-sig", newline="") as lines:
        yield from _csv_rows(path, csv.DictReader(lines, delimiter=delimiter, strict=True))


def _csv_rows(path: Path, reader: csv.DictReader[str]) -> Numbered:
    try:
        twice = [name for name, count in Counter(reader.fieldnames or ()).items() if count > 1]
        if twice:
            raise DataError(f"{path}:1: {len(twice)} column names are there twice, such as {twice[0]!r:.40}; rename one")
        for row in reader:
            if None in row or None in row.values():
                raise DataError(f"{path}:{reader.line_num}: other cells than the header has; quote what holds commas")
            yield reader.line_num, {name: cell or None for name, cell in row.items()}
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num + 1}: no CSV ({error})") from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read after line {reader.line_num} ({error}); is it complete?") from error
    except UnicodeDecodeError as error:
        _content(path)  # which names the line
        raise AssertionError(f"{path}: changed while it was read") from error


def number_of(cell: Any) -> Any:
    """A cell of CSV that spells a number as a program would write it (``7``, ``0.5``; not ``007``, ``1e3``) as that number."""
    if isinstance(cell, str) and re.fullmatch(r"-?(0|[1-9]\d{0,14})(\.\d{1,12})?", cell):
        value = float(cell) if "." in cell else int(cell)
        return value if str(value) == cell else cell
    return cell


def _content(path: Path) -> str:
    content = gzip.decompress(path.read_bytes()) if is_zipped(path) else path.read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}:{line}: not UTF-8; save the file as UTF-8 (of Windows-1252, say)") from error


def numbered_parquet(path: Path) -> Numbered:
    """Rows of a .parquet file."""
    parquet = arrow(path)
    from pyarrow import ArrowException

    try:
        return enumerate(parquet.read_table(path).to_pylist(), 1)
    except (OSError, ArrowException) as error:
        raise DataError(f"{path}: no readable Parquet ({str(error).splitlines()[0]})") from error


def arrow(path: Path) -> Any:
    """pyarrow's module for Parquet. Raises DataError: it is not installed."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise DataError(f"{path}: Parquet needs the pyarrow package; run: pip install penstock[hub]") from error
    return pyarrow.parquet


def open_rows(path: Path, name: str, most: int | None = None) -> Any:
    """The rows of a file by their place; ``name`` says by its end what it is, ``most`` how many rows are needed of it at most.

    Raises:
        DataError: a malformed row; names the line.
    """
    kind, many = kind_of(name), most is None or most > MANY
    if kind == "jsonl" and many and not is_zipped(path):
        return JsonLines(path)
    rows = itertools.islice(_plain_rows(path, kind), most)
    return JsonLines(_as_json_lines(path, rows)) if many and path.stat().st_size > LARGE else list(rows)


def _plain_rows(path: Path, kind: str) -> Iterator[Row]:
    if kind == "txt":
        return text_rows(path)
    rows = (row for _, row in (numbered_csv(path, "\t") if kind == "tsv" else READERS[kind](path)))
    table = kind in ("csv", "tsv")
    return ({column: number_of(cell) for column, cell in row.items()} for row in rows) if table else rows


READERS: Mapping[str, Callable[[Path], Numbered]] = {
    "jsonl": numbered_json_rows, "json": numbered_json, "csv": numbered_csv, "parquet": numbered_parquet,
}  # fmt: skip
"""What reads a file of rows, by its suffix."""

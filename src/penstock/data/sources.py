"""Sources of data rows: files, gym tasks, hub data sets and user functions behind one call, :func:`open_source`."""

from __future__ import annotations

import gzip
import itertools
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from penstock.config.run import DataSpec
from penstock.core.contracts import Source
from penstock.core.errors import DataError, blame
from penstock.data.resolve import is_reference, resolve
from penstock.data.rows import DataRow, Rows, span

Opener = Callable[[DataSpec, str, Path], Source]
"""Opens a source: its spec, what follows the colon, and the folder that relative files are looked up in."""
_OPENERS: dict[str, Opener | str] = {"gym": "penstock.data.gym:open_gym", "hub": "penstock.data.hub:open_hub"}
"""Openers of sources by their scheme; one that is named is imported when it is needed."""
TABLES = (".csv", ".parquet", ".json")
"""Ends of files that the source ``hub:FILE`` reads."""


def register_source(scheme: str, opener: Opener) -> None:
    """Let ``opener`` open the sources ``scheme:…``; the module that brings a kind of source registers it."""
    _OPENERS[scheme] = opener


def is_function(source: str) -> bool:
    """Whether a source names a user's function: ``MODULE:FUNCTION`` or ``FILE.py:FUNCTION``."""
    return source.partition(":")[0] not in _OPENERS and is_reference(source)


def open_source(spec: DataSpec, base: Path) -> Source:
    """Open what ``spec.source`` names; relative files are looked up in ``base``.

    ``skip`` and ``size`` are applied; with ``size`` a file is read (and checked) only as far as it is needed.

    Raises:
        DataError: missing, empty or malformed data, with the file and the line; nothing left after ``skip``.
        SpecError: a user function that cannot be found.
    """
    scheme, _, rest = spec.source.partition(":")
    if opener := _OPENERS.get(scheme):
        opened: Source = (resolve(opener) if isinstance(opener, str) else opener)(spec, rest, base)
        return opened
    if is_function(spec.source):
        return _open_function(spec, base)
    if spec.source.endswith((".jsonl", ".jsonl.gz")):
        return _open_file(spec, base, json_rows)
    if spec.source.endswith(".txt"):
        return _open_file(spec, base, text_rows)
    if spec.source.endswith(TABLES):
        raise DataError(f'"{spec.source}": a table is read by the datasets package; write hub:{spec.source}')
    raise DataError(
        f'"{spec.source}" is no source that is known; use FILE.jsonl, FILE.jsonl.gz, FILE.txt, gym:TASK, hub:NAME '
        "(also for a folder, .parquet, .csv or .json), feedback:STORE, MODULE:FUNCTION or FILE.py:FUNCTION"
    )


def _open_file(spec: DataSpec, base: Path, read: Any) -> Rows:
    path = (base / Path(spec.source).expanduser()).resolve()
    if not path.is_file():
        raise DataError(f"{path}: there is no such file; data.source is relative to {base.resolve()}")
    rows = list(itertools.islice(read(path), spec.skip + spec.size if spec.size else None))
    if not rows:
        raise DataError(f"{path}: no rows in it; is it the right file?")
    stem = path.name.removesuffix(".gz").rsplit(".", 1)[0]
    return Rows(spec.name or stem, [rows[index] for index in span(spec, len(rows))])


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines that are not blank, split at line feeds only, without their line end."""
    opened: Any = gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb")  # noqa: SIM115 - closed below
    number = 0
    with opened as lines:
        try:
            for number, line in enumerate(lines, 1):
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").removesuffix("\n").removesuffix("\r")
                if text.strip():
                    yield number, text
        except UnicodeDecodeError as error:
            raise DataError(f"{path}:{number}: not UTF-8 ({error.reason} at byte {error.start}); convert the file") from error
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{path}: cannot be read after line {number} ({error}); is it complete?") from error


def json_rows(path: Path) -> Iterator[DataRow]:
    """Rows of a JSON-lines file, plain or gzipped; blank lines are passed over."""
    return (row for _, row in numbered_json_rows(path))


def numbered_json_rows(path: Path) -> Iterator[tuple[int, DataRow]]:
    """:func:`json_rows`, each with the number of its line, from 1."""
    for number, line in _lines(path):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}:{number}: not valid JSON ({error})") from error
        if not isinstance(row, dict):
            raise DataError(f'{path}:{number}: a row must be a JSON object like {{"prompt": "…"}}, not {type(row).__name__}')
        yield number, row


def text_rows(path: Path) -> Iterator[DataRow]:
    """Rows of a UTF-8 text file, one a line in the column ``text``; blank lines are passed over."""
    for _, line in _lines(path):
        yield {"text": line}


def _open_function(spec: DataSpec, base: Path) -> Rows:
    function = resolve(spec.source, base)
    with blame(DataError, f"{spec.source} with options {dict(spec.options)}"):
        rows = function(**spec.options)
    if isinstance(rows, str | bytes | Mapping) or not hasattr(rows, "__iter__"):
        raise DataError(f"{spec.source}: returned {type(rows).__name__}; return a list of mappings, one a row")
    with blame(DataError, f"{spec.source} while giving its rows"):
        rows = list(rows)
    for index, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise DataError(f"{spec.source}: row {index} is {type(row).__name__}; a row must map column names to values")
    if not rows:
        raise DataError(f"{spec.source}: returned no rows")
    return Rows(spec.name or spec.source.rpartition(":")[2], [rows[index] for index in span(spec, len(rows))])

"""Rows of what people have: lists, tables of pandas, polars and Arrow, data sets, columns."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.core.errors import SpecError

FILE_ENDS = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".txt", ".gz", ".ndjson")
"""Ends of names of files, which are no prompts."""


def held(given: Any, name: str) -> list[Any]:
    """The items of a container, each a mapping, a tuple or a text, for a call's keyword ``name``.

    What a container changed is undone: whole numbers that became floats because a cell is empty, keys with null that other rows
    have, empty cells that became NaN. Nothing is imported: a table is known by the library that its class comes from.

    Raises:
        SpecError: it is no list of rows; says what it is and what to give.
    """
    library = type(given).__module__.partition(".")[0]
    if isinstance(given, Mapping):
        return _of_mapping(given, name)
    if library == "datasets" and not hasattr(given, "__len__"):
        whole = "datasets.Dataset.from_list(list(….take(1000)), features=….features)"
        raise SpecError(f"{name}=… is a data set without a length; give {whole}, or save it and name the folder")
    if hasattr(given, "read"):
        raise SpecError(f"{name}=… is an open file; give its name, whose end says how to read it")
    _remark_on_guesses(given, name)
    if library == "pandas" and hasattr(given, "columns"):
        if twice := sorted({str(column) for column in given.columns[given.columns.duplicated()]}):
            raise SpecError(f"{name}=… has columns twice: {', '.join(twice)}; rename one")
        columns = {str(column): _column(given[column].tolist()) for column in given.columns}
        return _rows(columns)
    if library == "polars" and hasattr(given, "collect"):
        raise SpecError(f"{name}=… is a lazy table; give ….collect()")
    for turn_into_rows in ("to_dicts", "to_pylist"):  # polars; pyarrow
        if library in ("polars", "pyarrow") and hasattr(given, "columns") and hasattr(given, turn_into_rows):
            return [plain_row(row) for row in getattr(given, turn_into_rows)()]
    if isinstance(given, set | frozenset):
        raise SpecError(f"{name}=… is a set, which has no order; give a list")
    if isinstance(given, str | bytes) or not (hasattr(given, "__iter__") or hasattr(given, "__getitem__")):
        raise SpecError(
            f"{name}=… is {type(given).__name__}; give a list of rows, a table, a data set, a file's name or a function"
        )
    if hasattr(given, "__len__") and hasattr(given, "__getitem__") and not isinstance(given, Sequence):
        items = [given[index] for index in range(len(given))] if library != "pandas" else given.tolist()
        return [plain_row(item) if isinstance(item, Mapping) else plain(item) for item in items]
    found = [item._asdict() if hasattr(item, "_asdict") else item for item in given]  # named tuples have columns
    if found and all(isinstance(item, Path) or (isinstance(item, str) and Path(item).suffix in FILE_ENDS) for item in found):
        raise SpecError(f"{name}=… is a list of files ({found[0]}, …); give one file's name, or the rows of all: "
                        'datasets.load_dataset("json", data_files=[…], split="train")')  # fmt: skip
    return found


def _remark_on_guesses(given: Any, name: str) -> None:
    """Say which columns of a data set hold what datasets guessed: there a text that spells a number may have become one."""
    features = getattr(given, "features", None)
    guessed = [column for column, feature in features.items() if type(feature).__name__ == "Json"] if features else []
    if guessed:
        warnings.warn(
            f"{name}=…: {', '.join(guessed)} had values of several types, and datasets may have read a text such as 007 as a "
            "number; give the file's name instead of the data set",
            stacklevel=2,
        )


def _of_mapping(given: Mapping[Any, Any], name: str) -> list[Any]:
    """Columns as rows."""
    if given and all(hasattr(value, "column_names") or hasattr(value, "features") for value in given.values()):
        splits = ", ".join(map(str, given))
        raise SpecError(f'{name}=… has the splits {splits}; give one of them: …["{next(iter(given))}"]')
    columns = {str(column): _listed(values) for column, values in given.items()}
    lengths = {column: len(values) for column, values in columns.items() if values is not None}
    if len(lengths) < len(columns) or not columns:
        raise SpecError(f"{name}=… is one mapping with {', '.join(columns) or 'nothing'}; give a list of rows: [{{…}}]")
    if len(set(lengths.values())) > 1:
        raise SpecError(f"{name}=… has columns of different lengths: {lengths}")
    return _rows({column: _column(values or []) for column, values in columns.items()})


def _listed(values: Any) -> list[Any] | None:
    if isinstance(values, str | bytes | Mapping) or not hasattr(values, "__len__") or not hasattr(values, "__iter__"):
        return None
    return list(values)


def _rows(columns: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _column(values: Iterable[Any]) -> list[Any]:
    """A column's values without what a table made of them: an empty cell is null, and whole numbers stay whole next to one."""
    found = [None if _is_empty(value) else plain(value) for value in values]
    there = [value for value in found if value is not None]
    if len(there) < len(found) and there and all(isinstance(value, float) and value.is_integer() for value in there):
        return [None if value is None else int(value) for value in found]
    return found


def _is_empty(value: Any) -> bool:
    """Whether a cell holds pandas' or numpy's mark for nothing: NaN, NaT or NA."""
    return type(value).__name__ in ("NaTType", "NAType") or (isinstance(value, float) and math.isnan(value))


def plain_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row whose values are plain: its own nulls stay, those within its values go."""
    return {column: None if _is_empty(value) else plain(value) for column, value in row.items()}


def plain(value: Any) -> Any:
    """A value in plain types: lists for arrays, and mappings without the nulls that a table adds where rows have other keys."""
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items() if one is not None}
    if type(value).__module__ == "numpy":
        return plain(value.tolist()) if getattr(value, "dtype", None) is not None and value.dtype != "uint8" else value
    if isinstance(value, list | tuple):
        return type(value)(plain(one) for one in value) if type(value) in (list, tuple) else value
    return value

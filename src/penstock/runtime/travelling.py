"""What lives in this process only, made ready for a run of several: rows at hand travel in a file, functions are refused."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from penstock.config.run import DataSpec, Run
from penstock.config.spec import plain
from penstock.core.errors import DataError, SpecError
from penstock.data.resolve import LOCAL, resolve

AT_HAND = f"{LOCAL}rows-"
"""What the names of rows at hand begin with."""


@contextlib.contextmanager
def travelling(run: Run, folder: Path) -> Iterator[Run]:
    """The run as other processes can carry it out, with its rows at hand in ``folder``/data; gone again if no run begins.

    Raises:
        SpecError: a function that no other process can find.
        DataError: a row holds what JSON does not.
    """
    functions = sorted({text for text in _texts(plain(run)) if not text.startswith(AT_HAND)})
    if functions:
        raise SpecError(
            f'runtime="{run.runtime}" has processes that cannot find {functions[0].removeprefix(LOCAL)}, which lives in this '
            'one: define it at the top level of a file, or set runtime="local"'
        )
    written: list[Path] = []
    try:
        yield _with_files(run, (folder / "data").absolute(), written)
    finally:
        if not (folder / "run.json").exists():
            for file in written:
                file.unlink(missing_ok=True)
            for parent in (folder / "data", folder) if written else ():
                with contextlib.suppress(OSError):
                    parent.rmdir()


def _texts(value: Any) -> Iterator[str]:
    """All texts within plain values that name what lives in this process only."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, str) and value.startswith(LOCAL):
        yield value


def _with_files(value: Any, rows: Path, written: list[Path]) -> Any:
    """``value``, a spec, with every source of rows at hand as a file in ``rows``."""
    if isinstance(value, DataSpec) and value.source.startswith(AT_HAND):
        file = rows / f"{value.source.removeprefix(LOCAL)}.jsonl"  # whose stem is the name in prompt keys, as it was
        _write(resolve(value.source)(), file, written)
        return replace(value, source=str(file))
    if isinstance(value, tuple):
        return tuple(_with_files(item, rows, written) for item in value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    found = {field.name: _with_files(getattr(value, field.name), rows, written) for field in fields(value) if field.init}
    changed = {name: item for name, item in found.items() if item is not getattr(value, name) and item != getattr(value, name)}
    return replace(value, **changed) if changed else value


def _write(rows: list[dict[str, Any]], file: Path, written: list[Path]) -> None:
    lines = []
    for index, row in enumerate(rows):
        try:
            lines.append(json.dumps(row))
        except (TypeError, ValueError) as error:
            raise DataError(f"row {index} of the rows at hand cannot go to other processes: {error}") from error
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        written.append(file)

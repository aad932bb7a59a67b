"""What lives in this process only, made ready for a run of several: rows at hand travel in a file, functions are refused."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from penstock.config.run import Run
from penstock.config.spec import parse, plain
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
    rows, written = (folder / "data").absolute(), list[Path]()

    def moved(text: str) -> str:
        if not text.startswith(AT_HAND):
            raise SpecError(
                f'runtime="{run.runtime}" has processes that cannot find {text.removeprefix(LOCAL)}, which lives in this '
                'one: define it at the top level of a file, or set runtime="local"'
            )
        file = rows / f"{text.removeprefix(LOCAL)}.jsonl"  # whose stem is the name in prompt keys, as it was
        _write(resolve(text)(), file, written)
        return str(file)

    try:
        yield parse(Run, _local_texts(plain(run), moved))
    finally:
        if not (folder / "run.json").exists():
            for file in written:
                file.unlink(missing_ok=True)
            for parent in (folder / "data", folder) if written else ():
                with contextlib.suppress(OSError):
                    parent.rmdir()


def _local_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Plain values with every text in them changed that names what lives in this process only."""
    if isinstance(value, Mapping):
        return {name: _local_texts(inner, change) for name, inner in value.items()}
    if isinstance(value, list):
        return [_local_texts(inner, change) for inner in value]
    return change(value) if isinstance(value, str) and value.startswith(LOCAL) else value


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

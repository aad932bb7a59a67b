"""Sources of data rows: files, gym tasks, hub data sets and user functions behind one call, :func:`open_source`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from penstock.config.run import DataSpec
from penstock.core.contracts import Source
from penstock.core.errors import DataError, blame
from penstock.data.files import FILES, kind_of, open_rows
from penstock.data.held import held
from penstock.data.remote import fetched
from penstock.data.resolve import is_reference, resolve
from penstock.data.rows import Rows

Opener = Callable[[DataSpec, str, Path], Source]
"""Opens a source: its spec, what follows the colon, and the folder that relative files are looked up in."""
_OPENERS: dict[str, Opener | str] = {"gym": "penstock.data.gym:open_gym", "hub": "penstock.data.hub:open_hub"}
"""Openers of sources by their scheme; one that is named is imported when it is needed."""


def register_source(scheme: str, opener: Opener) -> None:
    """Let ``opener`` open the sources ``scheme:…``; the module that brings a kind of source registers it."""
    _OPENERS[scheme] = opener


def is_function(source: str) -> bool:
    """Whether a source names a user's function: ``MODULE:FUNCTION`` or ``FILE.py:FUNCTION``."""
    return source.partition(":")[0] not in _OPENERS and is_reference(source)


def is_file(source: str) -> bool:
    """Whether a source names a file of rows, here or in a store."""
    place = source.removeprefix("hub:")
    return bool(kind_of(place) or place.endswith(".parquet")) and not is_function(source)


def open_source(spec: DataSpec, base: Path) -> Source:
    """Open what ``spec.source`` names; relative files are looked up in ``base``.

    ``skip`` and ``size`` are applied; with ``size`` a file is read (and checked) only as far as it is needed.

    Raises:
        DataError: missing, empty or malformed data, with the file and the line; nothing left after ``skip``.
        SpecError: a user function that cannot be found.
    """
    scheme, _, rest = spec.source.partition(":")
    if is_function(spec.source):
        return _open_function(spec, base)
    if opener := _OPENERS.get(scheme if scheme != "hub" else ""):
        return _opened(opener, spec, rest, base)
    place = rest if scheme == "hub" else spec.source
    if "://" in place:
        place = str(fetched(place))
    path = (base / Path(place).expanduser()).resolve()
    if kind_of(path.name) and path.is_file():
        return _open_file(spec, path)
    if scheme == "hub" or (path.suffix == ".parquet" and path.is_file()):
        return _opened(_OPENERS["hub"], spec, place, base)
    if kind_of(path.name) or path.suffix == ".parquet":
        raise DataError(f"{path}: there is no such file; data.source is relative to {base.resolve()}")
    raise DataError(
        f'"{spec.source}" is no source that is known; use a file or its URL ({", ".join(FILES)}, .parquet), gym:TASK, '
        "hub:NAME (also of a folder), feedback:STORE, MODULE:FUNCTION or FILE.py:FUNCTION"
    )


def _opened(opener: Opener | str, spec: DataSpec, place: str, base: Path) -> Source:
    opened: Source = (resolve(opener) if isinstance(opener, str) else opener)(spec, place, base)
    return opened


def _open_file(spec: DataSpec, path: Path) -> Source:
    found = open_rows(path, path.name, spec.skip + spec.size if spec.size else None)
    if not len(found):
        raise DataError(f"{path}: no rows in it; is it the right file?")
    stem = path.name.removesuffix(".gz").rsplit(".", 1)[0]
    return Rows.of(spec, stem, found)


def _open_function(spec: DataSpec, base: Path) -> Rows:
    function = resolve(spec.source, base)
    with blame(DataError, f"{spec.source} with options {dict(spec.options)}"):
        rows = function(**spec.options)
    if isinstance(rows, str | bytes | Mapping) or not (hasattr(rows, "__iter__") or hasattr(rows, "to_pylist")):
        raise DataError(f"{spec.source}: returned {type(rows).__name__}; return a list of mappings, one a row")
    with blame(DataError, f"{spec.source} while giving its rows"):
        rows = held(rows, "rows")
    for index, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise DataError(f"{spec.source}: row {index} is {type(row).__name__}; a row must map column names to values")
    if not rows:
        raise DataError(f"{spec.source}: returned no rows")
    return Rows.of(spec, spec.source.rpartition(":")[2], rows)

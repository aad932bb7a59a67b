"""Feedback as training data: the source ``feedback:PLACE`` of a stage, pinned to a point of the log when a run begins.

A store grows while a run trains on it. So a run's spec is given two options before it is written down: ``until``, the
length of the log, and ``content``, the hash of the rows that it gives. A resume reads the very same rows, or is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.config.run import DataSpec
from penstock.core.errors import DataError, blame
from penstock.data.rows import Rows
from penstock.feedback.exchange.snapshot import content_hash

if TYPE_CHECKING:
    from penstock.feedback.store import Store

SCHEME = "feedback:"


def open_feedback(spec: DataSpec, place: str, base: Path) -> Rows:
    """The rows of a store as the source of a stage; see :func:`rows`."""
    return Rows.of(spec, "feedback", rows(place, base, spec.options))


def rows(place: str, base: Path, options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of a store.

    Args:
        place: a file, relative to ``base``, or a PostgreSQL URL.
        options: ``form``, ``until``, ``content``, and what the form takes (``forms.OPTIONS``).

    Raises:
        DataError: an unknown option, no store there, no rows in it, rows of another content than the run recorded, or rows with
            images, sounds or videos, of which a language model would only see the texts.
    """
    found, pins = _read(place, base, options)
    if any("media" in row for row in found):
        raise DataError(
            f"{SCHEME}{place}: rows have media, and stages read texts alone; ask such questions in a project of their own, and "
            "write them with: penstock feedback export --media FOLDER"
        )
    if options.get("content", content_hash(found)) != content_hash(found):
        raise DataError(
            f"{SCHEME}{place}: its first {pins['until']} entries do not give the rows the run recorded; is it the same store?"
        )
    return found


def pin(spec: DataSpec, base: Path) -> DataSpec:
    """The spec with ``until`` and ``content`` (and ``at``, for prompts) as they are now; one that has them, or is of another
    source, as it is."""
    if not spec.source.startswith(SCHEME) or "content" in spec.options:
        return spec
    found, pins = _read(spec.source.removeprefix(SCHEME), base, spec.options)
    return replace(spec, options={**spec.options, **pins, "content": content_hash(found)})


def _read(place: str, base: Path, options: Mapping[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The rows, and the options that pin them."""
    where = place
    if "://" not in place:
        file = (base / Path(place).expanduser()).resolve()
        if not file.is_file():
            raise DataError(f"{file}: there is no such feedback store; data.source is relative to {base.resolve()}")
        where = str(file)
    with _named(f"{SCHEME}{place}"), opened(where) as store:
        from penstock.product import forms

        return forms.read(store, options, base)


def opened(place: str) -> Store:
    """Open or create a store. Raises DataError where the extra is missing."""
    try:
        from penstock.feedback.store import Store
    except ImportError as error:
        raise DataError(f"{place}: needs the extra feedback; run: pip install penstock[feedback]") from error
    return Store.open(place)


@contextmanager
def _named(place: str) -> Iterator[None]:
    """Put the source's name before the message of an error."""
    try:
        with blame(DataError, place):
            yield
    except DataError as error:
        raise error if str(error).startswith(place) else DataError(f"{place}: {error}") from error

"""Feedback as training data: the source ``feedback:PLACE`` of a stage, pinned to a point of the log when a run begins.

Forms of votes are read here, those of product signals in ``forms.py``.

A store grows while a run trains on it. So a run's spec is given two options before it is written down: ``until``, the
length of the log, and ``content``, the hash of the rows that it gives. A resume reads the very same rows, or is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.config.run import DataSpec
from penstock.config.spec import suggestion
from penstock.core.errors import DataError, blame
from penstock.data.rows import Rows, span
from penstock.feedback.exchange.snapshot import FORMS, Labels, content_hash, snapshot

if TYPE_CHECKING:
    from penstock.feedback.store import Store

SCHEME = "feedback:"
PRODUCT_FORMS = ("product", "product_corrections", "prompts")
OPTIONS = ("form", "until", "content", *(field.name for field in fields(Labels)))


def open_feedback(spec: DataSpec, place: str, base: Path) -> Rows:
    """The rows of a store as the source of a stage; see :func:`rows`."""
    found = rows(place, base, spec.options)
    return Rows(spec.name or "feedback", [found[index] for index in span(spec, len(found))])


def rows(place: str, base: Path, options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of a store.

    Args:
        place: a file, relative to ``base``, or a PostgreSQL URL.
        options: ``form``, ``until``, ``content``, and what the form takes: ``pairs``, ``completions`` and ``corrections`` the
            fields of ``Labels``, the others what ``forms`` says.

    Raises:
        DataError: an unknown option, no store there, no rows in it, or rows of another content than the run recorded.
    """
    found, pins = _read(place, base, options)
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
    form = options.get("form", "pairs")
    if form not in (*FORMS, *PRODUCT_FORMS):
        raise DataError(f'{SCHEME}{place}: form="{form}"{suggestion(str(form), (*FORMS, *PRODUCT_FORMS))}')
    for name in options:
        if name not in OPTIONS and form in FORMS:
            raise DataError(f'{SCHEME}{place}: unknown option "{name}"{suggestion(name, OPTIONS)}')
    where = place
    if "://" not in place:
        file = (base / Path(place).expanduser()).resolve()
        if not file.is_file():
            raise DataError(f"{file}: there is no such feedback store; data.source is relative to {base.resolve()}")
        where = str(file)
    try:
        from penstock.feedback.store import Store
    except ImportError as error:
        raise DataError(f"{SCHEME}{place}: needs the extra feedback; run: pip install penstock[feedback]") from error
    with _named(f"{SCHEME}{place}"), Store.open(where) as store:
        if form in FORMS:
            return _votes(store, form, options)
        from penstock.product import forms

        return forms.read(store, options, base)


def _votes(store: Store, form: str, options: Mapping[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    chosen: dict[str, Any] = {field.name: options[field.name] for field in fields(Labels) if field.name in options}
    if "natures" in chosen:
        chosen["natures"] = tuple(chosen["natures"])
    labels = Labels(**chosen)
    taken = snapshot(store, options.get("until"))
    found = FORMS[form](taken, labels)
    if not found:
        natures = ", ".join(sorted(set(taken.natures.values()))) or "nobody"
        raise DataError(
            f"{taken.until} events give no {form} by votes of {', '.join(labels.natures)} "
            f"(annotators there are: {natures}); collect votes, or choose natures and form in options"
        )
    return found, {"until": taken.until}


@contextmanager
def _named(place: str) -> Iterator[None]:
    """Put the source's name before the message of an error."""
    try:
        with blame(DataError, place):
            yield
    except DataError as error:
        raise error if str(error).startswith(place) else DataError(f"{place}: {error}") from error

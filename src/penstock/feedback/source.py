"""Feedback as training data: the source ``feedback:PLACE`` of a stage, pinned to a point of the log when a run begins.

A store grows while a run trains on it. So a run's spec is given two options before it is written down: ``until``, the
length of the log, and ``content``, the hash of the rows that it gives. A resume reads the very same rows, or is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from penstock.core.errors import DataError, blame
from penstock.core.run import DataSpec
from penstock.core.spec import suggestion
from penstock.feedback.exchange import FORMS, Labels, content_hash, snapshot

SCHEME = "feedback:"
OPTIONS = ("form", "until", "content", *(field.name for field in fields(Labels)))


def rows(place: str, base: Path, options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of a store.

    Args:
        place: a file, relative to ``base``, or a PostgreSQL URL.
        options: ``form`` (``pairs``, ``completions`` or ``corrections``), ``until``, ``content``, and fields of ``Labels``.

    Raises:
        DataError: an unknown option, no store there, no rows in it, or rows of another content than the run recorded.
    """
    found, until = _read(place, base, options)
    if options.get("content", content_hash(found)) != content_hash(found):
        raise DataError(
            f"{SCHEME}{place}: its first {until} events do not give the rows that the run recorded; is it the same store?"
        )
    return found


def pin(spec: DataSpec, base: Path) -> DataSpec:
    """The spec with ``until`` and ``content`` as they are now; one that has them, or is of another source, as it is."""
    if not spec.source.startswith(SCHEME) or "content" in spec.options:
        return spec
    found, until = _read(spec.source.removeprefix(SCHEME), base, spec.options)
    return replace(spec, options={**spec.options, "until": until, "content": content_hash(found)})


def _read(place: str, base: Path, options: Mapping[str, Any]) -> tuple[list[dict[str, Any]], int]:
    for name in options:
        if name not in OPTIONS:
            raise DataError(f'{SCHEME}{place}: unknown option "{name}"{suggestion(name, OPTIONS)}')
    form = options.get("form", "pairs")
    if form not in FORMS:
        raise DataError(f'{SCHEME}{place}: form="{form}"{suggestion(str(form), FORMS)}')
    where = place
    if "://" not in place:
        file = (base / Path(place).expanduser()).resolve()
        if not file.is_file():
            raise DataError(f"{file}: there is no such feedback store; data.source is relative to {base.resolve()}")
        where = str(file)
    known = {field.name for field in fields(Labels)}
    chosen: dict[str, Any] = {name: value for name, value in options.items() if name in known}
    if "natures" in chosen:
        chosen["natures"] = tuple(chosen["natures"])
    labels = Labels(**chosen)
    try:
        from penstock.feedback.store import Store
    except ImportError as error:
        raise DataError(f"{SCHEME}{place}: needs the extra feedback; run: pip install penstock[feedback]") from error
    with blame(DataError, f"{SCHEME}{place}"), Store.open(where) as store:
        taken = snapshot(store, options.get("until"))
        found = FORMS[form](taken, labels)
    if not found:
        natures = ", ".join(sorted(set(taken.natures.values()))) or "nobody"
        raise DataError(
            f"{SCHEME}{place}: {taken.until} events give no {form} by votes of {', '.join(labels.natures)} "
            f"(annotators there are: {natures}); collect votes, or choose natures and form in options"
        )
    return found, taken.until

"""Untrusted text fit for a page, and values as people read them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, TypeVar

from penstock.ui import metrics

TEXT_LIMIT = 4000
"""Characters of a text that are shown; the rest is counted."""

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")

Item = TypeVar("Item")


def clean(text: Any, limit: int = TEXT_LIMIT) -> str:
    """Untrusted text fit for a file: half characters (lone surrogates) and NUL replaced, very long text cut with a note."""
    whole = _LONE_SURROGATE.sub("�", str(text)).replace("\0", "�")
    rest = len(whole) - limit
    return whole if rest <= 0 else f"{whole[:limit]}… ({rest:,} more characters)"


def plain_text(value: Any) -> str:
    """A field's value: numbers written well, a missing one as a dash, text as it is, the rest as JSON."""
    if isinstance(value, str):
        return clean(value)
    if value is None:
        return "–"
    found = metrics.number(value)
    return clean(json.dumps(value)) if found is None else metrics.text_of(found)


def written(value: Any) -> str:
    """A number as people read it; "" where there is none."""
    found = metrics.number(value)
    return "" if found is None else metrics.text_of(found)


def spread(found: Sequence[Item], most: int) -> list[Item]:
    """At most so many of a sequence, evenly spread, first and last included."""
    if len(found) <= most:
        return list(found)
    return [found[round(i * (len(found) - 1) / (most - 1))] for i in range(most)]

"""Token ids in a request's JSON."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.core.types import IntArray
from penstock.web.fields import shown
from penstock.web.refusals import Refusal


def is_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, int) and not isinstance(one, bool) for one in value)


def tokens_of(value: Any, name: str, vocabulary: int) -> IntArray:
    """Token ids ``[T]`` of a JSON list. Raises Refusal for anything but ids of the vocabulary, and for none at all."""
    if not is_tokens(value):
        raise Refusal(400, f"{name}: {shown(value)} is no list of token ids", param=name)
    stray = next((token for token in value if not 0 <= token < vocabulary), None)
    if stray is not None:
        raise Refusal(400, f"{name}: the token id {shown(stray)} is outside the vocabulary of {vocabulary}", param=name)
    return np.asarray(value, np.int32)

"""Numbers as text on a line of JSON: their bytes in base64, exact and a third shorter than digits."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

Kind = Literal["<i4", "<f4"]
"""Whole numbers or floats of 32 bits, little-endian."""


def packed(values: ArrayLike, kind: Kind) -> str:
    """One-dimensional numbers as text."""
    return base64.b64encode(np.asarray(values, kind).tobytes()).decode()


def unpacked(text: Any, kind: Kind) -> Sequence[Any]:
    """The numbers in a text of :func:`packed`. Raises ValueError for anything else."""
    if not isinstance(text, str):
        raise ValueError(f"{text!r:.40} is no packed text")
    data = base64.b64decode(text.encode("ascii"), validate=True)  # its errors, and those of other characters, are ValueErrors
    return np.frombuffer(data, kind).tolist()

"""Numbers as text: they come back bit for bit, and damage is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.core.events import Kind, packed, unpacked


@pytest.mark.parametrize("kind", ["<i4", "<f4"])
def test_numbers_come_back_bit_for_bit(kind: Kind) -> None:
    values = np.random.default_rng(0).integers(-(1 << 31), 1 << 31, 1000).astype("<i4").view(kind)
    values = values[np.isfinite(values)]
    assert np.array_equal(np.array(unpacked(packed(values, kind), kind), kind), values)


def test_no_numbers_are_an_empty_text() -> None:
    assert (packed([], "<i4"), unpacked("", "<i4")) == ("", [])


@pytest.mark.parametrize("text", [None, 5, [1], "é", "AAA", "AAAA", "A A A A=", "AAAAAA==\n"])
def test_what_is_no_packed_text_is_refused(text: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        unpacked(text, "<i4")

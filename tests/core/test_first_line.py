"""What an error of a foreign package becomes in a message of ours."""

from __future__ import annotations

import pytest

from penstock.core.errors import first_line


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("no such key: a\nand much more"), "ValueError: no such key: a"),
        (OSError("\n  torn\n"), "OSError: torn"),
        (KeyError(), "KeyError"),
    ],
    ids=["of several lines", "with blank lines around", "without a message"],
)
def test_an_error_is_shown_by_its_first_line(error: Exception, line: str) -> None:
    assert first_line(error) == line

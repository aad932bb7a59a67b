"""The word diff that the pages share, in a browser: what differs is marked, and no text is lost, however long it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.web.files import SHARED


@pytest.fixture(scope="module")
def module(browser: Callable[[str], Any]) -> Iterator[Callable[..., Any]]:
    """``module(name, left, right)``: what a function of ``diff.js`` gives."""
    source = (SHARED / "diff.js").read_text(encoding="utf-8").replace("export function", "function")
    page = browser("chromium").new_page()
    yield lambda name, *texts: page.evaluate(f"([left, right]) => {{ {source}; return {name}(left, right); }}", list(texts))
    page.close()


def test_words_that_differ_are_marked_on_both_sides(module: Callable[..., Any]) -> None:
    found = module("compare", "the gate is open now", "the gate is shut, now")
    assert found["left"] == [["the gate is ", True], ["open", False], [" now", True]]
    assert found["right"] == [["the gate is ", True], ["shut,", False], [" now", True]]


def test_a_space_between_two_words_that_differ_is_marked_with_them(module: Callable[..., Any]) -> None:
    assert module("compare", "a b c", "a x y")["right"] == [["a ", True], ["x y", False]]


def test_one_text_is_told_with_what_was_in_its_place(module: Callable[..., Any]) -> None:
    found = [(one["kind"], one["text"]) for one in module("diff", "so it is", "so it was, then")]
    assert found == [("same", "so it "), ("removed", "is"), ("added", "was, then")]


def test_long_texts_are_compared_by_lines_and_none_is_lost(module: Callable[..., Any]) -> None:
    left = "".join(f"line {i} of the left\n" for i in range(600))
    right = "".join(f"line {i} of the {'right' if i % 2 else 'left'}\n" for i in range(600))
    found = module("compare", left, right)
    assert found["unit"] == "lines"
    assert ("".join(piece for piece, _ in found["left"]), "".join(piece for piece, _ in found["right"])) == (left, right)


def test_texts_too_long_to_compare_are_told_as_a_whole(module: Callable[..., Any]) -> None:
    left, right = ("".join(f"{word} {i}\n" for i in range(2500)) for word in ("one", "two"))
    assert module("compare", left, right) is None
    assert [(one["kind"], one["text"]) for one in module("diff", left, right)] == [("removed", left), ("added", right)]

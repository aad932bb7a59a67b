"""Answers: those that a row calls right, and the one that a completion states in the end."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.core.errors import RewardError

if TYPE_CHECKING:
    from penstock.core.types import Sample

Answer = str | Decimal
PUBLISHED = (
    ("value aliases normalized_value normalized_aliases", "matched_wiki_entity_name normalized_matched_wiki_entity_name type"),
    ("text", "answer_start"),
    ("ground_truth", "style"),
)
"""Columns of TriviaQA, SQuAD and verl: the keys that hold right answers, and those that hold none."""
LONGEST = 200
"""Characters that a statement of an answer has at most."""
_MARKS = ("<think>", "</think>", "<answer>", "</answer>")
_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_ANCHOR = re.compile(r"\banswer\b(?:(?:(?!\bas\b)[^.\n]){0,60}?(?:\bis\b|\bare\b|[:=])|\W{0,4}\n)[\s:*]*", re.IGNORECASE)
_OPERATORS = r"+*/=<>^×÷±≤≥-"
_FORMULA = rf"(?:\S*[\d\\]\S*|[{_OPERATORS}]+|[A-Za-z](?= [{_OPERATORS}])|(?<=[{_OPERATORS}] )[A-Za-z](?!\S))"
_PIECE = re.compile(
    r"\$\$(.+?)\$\$|\\\[(.+?)\\\]|\\\((.+?)\\\)|(?<![\\$])\$(?!\s)((?:\\.|[^$\\\n])+?)(?<!\s)\$(?!\d)"
    rf"|(?<!\S)({_FORMULA}(?: {_FORMULA})*)(?!\S)",
    re.DOTALL,
)
"""What is set as mathematics (a dollar next to a space or before a digit is money, as Pandoc reads it), or a run of numbers."""
_DISPLAYED = re.compile(r"\\\[.*?\\\]|\$\$.*?\$\$", re.DOTALL)
_JOINED = re.compile(
    r"(?!\s*\n\s*\n)(?:[\s$,;&]|\\[()\[\],; ]|\\q?quad|(?:\\text\s*\{\s*)?\b(?:and|or)\b(?:\s*\})?|[A-Za-z]\w*\s*=)*"
)
"""What may be between the parts of one statement, such as ``\\boxed{1} and \\boxed{2}``."""
WORD = re.compile(r"(?<![\\A-Za-z])(?!(?:and|or|sqrt|pi|sin|cos|tan|log|ln|exp|infinity|inf)(?![A-Za-z]))[A-Za-z]{2,}")
"""A word, which is no function's name."""
_NUMBER = re.compile(r"[-+−]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?", re.ASCII)


def expected(columns: Mapping[str, Any], column: str) -> list[Answer]:
    """The right answers of a row, any of which will do: texts, and numbers as such.

    The column holds a text, a finite number, a list of them (an array's and Arrow's too), or one of :data:`PUBLISHED`.

    Raises:
        RewardError: the row has no such column, or it holds something else (null, NaN, a truth value, a date, a list in a
            list, an empty list or text); says what.
    """
    if columns.get(column) is None:
        raise RewardError(
            f'found no value in column "{column}"; name another with options={{"column": …}}, '
            f"columns there are: {', '.join(map(str, columns))}"
        )
    found: list[Answer] = []
    for value in _values(columns[column]):
        if isinstance(value, str) and not value.strip():
            raise RewardError(f'found an empty answer in column "{column}", which every completion contains; leave the row out')
        answer = value if isinstance(value, str) else _number(value)
        if answer is None:
            raise RewardError(
                f'column "{column}" holds {value!r:.60} ({type(value).__name__}), which is no answer; give a text, a finite '
                "number, or a list of these, of which any is right"
            )
        found.append(answer)
    if not found:
        raise RewardError(f'column "{column}" holds {columns[column]!r:.60}, a list without an answer; leave such rows out')
    return found


def _values(given: Any) -> Sequence[Any]:
    """The values of a column: of a list, an array, Arrow's or a published mapping, else the one that it is."""
    for name in ("as_py", "to_pylist", "to_list"):
        if hasattr(given, name):
            given = getattr(given, name)()
    if isinstance(given, Mapping):
        for answers, others in PUBLISHED:
            if given.keys() <= {*answers.split(), *others.split()}:
                there = [given[key] for key in answers.split() if given.get(key) is not None]
                return [value for each in there for value in _values(each)]
        return [dict(given)]
    if isinstance(given, np.ndarray):
        return list(given) if given.ndim else [given[()]]
    return given if isinstance(given, list | tuple) else [given]


def _number(value: Any) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating | Decimal):
        return None
    number = Decimal(str(value))
    return number if number.is_finite() else None


def read_number(text: str) -> Decimal | None:
    """The number that a text is, with its thousands separators; None for any other text, "nan" and "infinity" among them."""
    return Decimal(text.replace(",", "").replace("−", "-")) if _NUMBER.fullmatch(text) else None


def answer_of(sample: Sample) -> str:
    """What a completion answers: what follows its thought (``</think>``), and of that what its last ``<answer>`` holds.

    Empty where a thought has not ended, or nothing follows it. The marks may be special tokens.
    """
    text = sample.raw_text if any(mark in sample.raw_text for mark in _MARKS) else sample.text
    said = text.rpartition("</think>")[2].partition("<think>")[0]
    return said.rpartition("<answer>")[2].partition("</answer>")[0]


def statement(text: str) -> str:
    """The part of a text that states its answer, as one formula or word.

    The content of its last box, with those that the same statement joins to it; empty where that is not closed. Without a box:
    what follows the last ``####``, else what begins after its last "answer is", else its last formula or number, with those
    that "and", "or" or a comma join. A short text without any of these is its own statement.
    """
    if _BOX.search(text):
        return _joined(list(_boxes(text)), text)
    marked = text.rpartition("####")
    if marked[1] and (line := marked[2].strip().partition("\n")[0]) and not WORD.search(line):
        return line
    anchors = list(_ANCHOR.finditer(text))
    if not anchors:
        return _piece(text.strip(), first=False)
    following = _DISPLAYED.sub(lambda found: " ".join(found[0].split()), text[anchors[-1].end() :].strip())
    sentence = re.split(r"\n|[.!?](?:\s|$)", following, maxsplit=1)[0]
    return sentence if re.match(r"\([A-Z]\)|[A-Z](?:[):]|$)", sentence) else _piece(sentence, first=True)


def stated(text: str) -> str:
    """The answer in an expected text: what follows its last ``####`` (GSM8K), or its last box holds (MATH); else all of it."""
    marked = re.search(r"####([^\n]*)\s*$", text)
    text = marked[1].strip() if marked else text
    return statement(text) if _BOX.search(text) else text


def _boxes(text: str) -> Iterator[tuple[int, int, str]]:
    """Begin, end and content of each box; one that is not closed ends nowhere and is empty."""
    for box in _BOX.finditer(text):
        if not text.startswith("{", box.end()):  # TeX boxes one token; hendrycks/math writes "\boxed 2$"
            content = re.compile(r"[^\s$,.]*").match(text, box.end())
            assert content is not None
            yield box.start(), content.end(), content[0]
            continue
        depth = 0
        for brace in re.compile(r"(?<!\\)[{}]").finditer(text, box.end()):
            depth += 1 if brace[0] == "{" else -1
            if not depth:
                yield box.start(), brace.end(), text[box.end() + 1 : brace.start()]
                break
        else:
            yield box.start(), len(text) + 1, ""


def _joined(pieces: Sequence[tuple[int, int, str]], text: str) -> str:
    """The last of the pieces and those before it that are joined to it."""
    begin, _, last = pieces[-1]
    found = [last]
    for start, end, content in reversed(pieces[:-1] if last else []):
        if end > begin or not _JOINED.fullmatch(text[end:begin]):
            break
        found.insert(0, content)
        begin = start
    return ", ".join(dict.fromkeys(found))


def _piece(text: str, first: bool) -> str:
    """The formula that a text is, begins with (``first``) or holds last; the text itself where it holds none."""
    set_apart = any(mark in text for mark in ("$", "\\(", "\\["))
    if not set_apart and not WORD.search(re.sub(r"\\text\s*\{[^}]*\}", "", text)):
        return text.rstrip(" .,;:*`").lstrip(" *`")
    pieces = [(found.start(), found.end(), _content(found, text)) for found in _PIECE.finditer(text)]
    if not pieces:
        return text if len(text) <= LONGEST else ""
    count = 1
    if first and not text[: pieces[0][0]].strip(" *"):
        while count < len(pieces) and _JOINED.fullmatch(text[pieces[count - 1][1] : pieces[count][0]]):
            count += 1
        pieces = pieces[:count]
    return _joined(pieces, text)


def _content(found: re.Match[str], text: str) -> str:
    """A formula without the punctuation around it; empty where it is part of a larger one, such as the end of ``x + 1``."""
    content = found[found.lastindex or 0]
    if not found[5]:
        return content.rstrip(" .,;:").lstrip()
    content = content.rstrip(" .,;:!?*`\"'").lstrip(" *`\"'=")
    if content.startswith("(") and content.count("(") > content.count(")"):
        content = content[1:]
    if content.endswith(")") and content.count(")") > content.count("("):
        content = content.rstrip(").")
    partial = re.match(rf"[{_OPERATORS[:-1]}]|-\s", content) or re.search(rf"[{_OPERATORS}]$", content)
    followed = re.match(r" [b-z](?![A-Za-z])", text[found.end() : found.end() + 3])
    return "" if partial or followed else content

"""Whether two answers are the same in mathematics. Formulas are read by math-verify's parser; this is its only home.

What an answer is made of (a list, a tuple, an interval, a ratio, a unit, a name before an equals sign) is compared here, as
math-verify's own comparison calls equal what is not: 1e-7 and 0, 5t and 5, (0, 1) and {1, 0}, two equations without a solution.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from penstock.core.errors import RewardError
from penstock.rewards.answers import WORD, read_number, stated

_GOES_ON = re.compile(r"\\[lc]?dots(?![A-Za-z])|…|\.\.\.")
"""An answer that goes on without being said."""
NO_ANSWER = ("proof", "notfound", "not found", "-", "—", "n/a", "nan", "None", "null")
"""What published sets (NuminaMath among them) write where a problem has no answer to compare with."""
TOLERANCE = 2e-6
"""Relative difference up to which a decimal number is a formula's value: 0.333333 is a third, 0.3333 is not."""

_SIGNS = str.maketrans(
    {"−": "-", "–": "-", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "×": r"\times ", "·": r"\cdot ", "÷": "/", "∪": r"\cup ",
     "∈": r"\in ", "∞": r"\infty ", "π": r"\pi ", "√": r"\sqrt", "°": r"^\circ ",
     "½": r"\frac{1}{2}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}", "²": "^2", "³": "^3", "∅": r"\emptyset "}
)  # fmt: skip
_REPLACED: Sequence[tuple[str, str]] = (
    (r"\\(?:text)?color\s*\{[^{}]*\}\s*\{([^{}]*)\}", r"\1"),
    (r"^\s*\{([^{}]*)\}\s*$", r"\1"),
    (r"\\varnothing(?![A-Za-z])", r"\\emptyset "),
    (r"^\s*(?:[a-z]\s*\\in\s*)?\\mathbb\s*\{?\s*R\s*\}?\s*$", r"(-\\infty,\\infty)"),
    (r"^\s*\([a-z](?:\s*,\s*[a-z])+\)\s*=\s*(?=\()", ""),
    (r"\\!|\\(?:left|right|displaystyle)(?![A-Za-z])", ""),
    (r"(?<!\\)\\[,;: ]|~|\\q?quad(?![A-Za-z])|\s", " "),
    (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
    (r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}"),
    (r"\\(?:text(?:bf|it|rm|normal)|mathrm|mathbf|mathit|mbox)(?![A-Za-z])", r"\\text"),
    (r"\^\s*\{?\s*\\circ\s*\}?|\\degree(?![A-Za-z])", r"\\text{degree}"),
    (r"\\?%", r"\\text{percent}"),
    (r"\\\$", "$"),
    (r"<=|\\leq(?![A-Za-z])", r"\\le "),
    (r">=|\\geq(?![A-Za-z])", r"\\ge "),
    (r"!=|\\neq(?![A-Za-z])", r"\\ne "),
    (r"(?<![\\A-Za-z])inf(?:inity|ty)?(?![A-Za-z])", r"\\infty "),
    (r"(?<![\\A-Za-z])(pi|sqrt)(?![A-Za-z])", r"\\\1 "),
    (r"\*\*", "^"),
    (r"_\{(\w)\}", r"_\1"),
    (r"^\s*\\text\s*\{([^{}]*\d[^{}]*)\}\s*$", r"\1"),
    (r"(\d)\{,\}(?=\d{3}(?!\d))", r"\1,"),
    (r"(\d)\{,\}(?=\d)", r"\1."),
    (r"(?<![\d}])(\d+)\s*\\frac\{(\d+)\}\{(\d+)\}$", r"(\1+\\frac{\2}{\3})"),
    (r"(?<![\d}/^])(\d+) (\d+)/(\d+)$", r"(\1+\\frac{\2}{\3})"),
)
"""One writing for what is written in several, in this order; a whole number before a fraction is added to it."""
_SET = r"(?<!\\)\$\$?(?!\s)((?:\\.|[^$\\])+?)(?<!\s)\$\$?(?!\d)|(?<!\\)\\[()\[\]]"
"""What is set as mathematics, its marks around it."""
_SPACE = r"(?<!\d)\s|\s(?!\d)"
_AND = r"\\text\s*\{\s*(?:and|or)\s*\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])|;"
_COMMA = r",\s+|(?<!\d),|,(?!\d{3}(?!\d))"
_RELATION = re.compile(r"\\[lgn]e(?![A-Za-z])|[<>=]")
_FLIPPED = {">": "<", "\\ge": "\\le"}
_NAME = re.compile(r"(\\?[A-Za-z]+'?(?:_\{?\w+\}?)?(?:\([^()]*\))?)\s*(?:\\in(?![A-Za-z])|=)\s*(?=\S)")
_MONEY = {"$": "dollar", "€": "euro", "£": "pound"}
_UNIT = re.compile(
    r"(.*\S)\s*\\text\s*\{([^}]*)\}(\^\{?\d\}?)?|([-+]?[\d.,/]+)\s*"
    r"([ap]\.?\s?m\.?|cm|mm|km|kg|mg|ml|ft|hr|lb|oz|(?<=\s)[A-Za-z]{3,}[A-Za-z ]*)(\^\d)?"
)
"""A value and its unit: a text, or a word after a number. One letter is no unit, because it may be a variable."""


def equal(gold: str, said: str) -> bool:
    """Whether ``said`` states the answer ``gold``. Takes as long as sympy does.

    Raises:
        RewardError: the gold answer is none, or cannot be read.
    """
    gold = normal(stated(gold))
    if gold in NO_ANSWER or _word(gold) in NO_ANSWER:
        raise RewardError(f"the expected answer is {gold!r}, which is no answer (a proof, or none was found); leave it out")
    if not gold or not _readable(gold):
        raise RewardError(f"cannot read the expected answer {gold[:80]!r} as mathematics; use exact_match for other answers")
    if _GOES_ON.search(said) and not _GOES_ON.search(gold):
        return False
    try:
        return bool(said.strip()) and _same(gold, normal(said))
    except Exception:  # sympy raises what it likes of what a model writes
        return False


def normal(text: str) -> str:
    """An answer in one of the ways in which it may be written."""
    text = re.sub(_SET, r"\1", text.strip()).translate(_SIGNS)
    for pattern, replacement in _REPLACED:
        text = re.sub(pattern, replacement, text)
    text = re.sub(r"(?<![\d.])\d{1,3}(?: \d{3})+(?!\d)", lambda found: found[0].replace(" ", ""), text)
    return text.rstrip(" .").lstrip()


def _same(gold: str, said: str) -> bool:
    if re.sub(_SPACE, "", gold) == re.sub(_SPACE, "", said):
        return True
    (kind, golds), (other, saids) = _parts(gold), _parts(said)
    if not kind and not other:
        return _same_value(gold, said)
    if not kind or not other:  # a unit or a name may hide what it is made of
        values = _measured(gold)[1], _measured(said)[1]
        return values != (gold, said) and _same(*values)
    if len(golds) != len(saids):
        return False
    if (kind == other and kind not in ("list", "set")) or {kind, other} == {"list", "()"}:
        return all(map(_same, golds, saids))
    left = list(saids) if {kind, other} <= {"list", "set"} else []
    for one in golds:
        found = next((at for at, each in enumerate(left) if _same(one, each)), None)
        if found is None:
            return False
        del left[found]
    return True


def _parts(text: str) -> tuple[str, Sequence[str]]:
    """What an answer is made of: its kind (``list``, ``set``, ``:``, two brackets, or empty for one value) and its parts."""
    if read_number(text) is not None or _word(text):
        return "", [text]
    if len(parts := _split(text, rf"{_AND}|\\cup(?![A-Za-z])|{_COMMA}")) > 1:
        return "list", list(dict.fromkeys(filter(None, parts)))
    bare = text[name.end() :] if (name := _NAME.match(text)) else text
    if bare.startswith("\\{") and bare.endswith("\\}"):
        return "set", list(dict.fromkeys(_split(bare[2:-2], ",")))
    if re.fullmatch(r"[(\[].*[)\]]", bare):
        parts = _split(bare[1:-1], _COMMA if ", " in bare else ",")
        if len(parts) > 1:
            return bare[0] + bare[-1], parts
    if "\\pm" in bare:
        plus = "+" if bare.partition("\\pm")[0].strip(" {(") else ""
        return "list", [bare.replace("\\pm", plus, 1), bare.replace("\\pm", "-", 1)]
    if re.fullmatch(r"[\d.]+(?:\s*:\s*[\d.]+)+", bare):
        return ":", re.split(r"\s*:\s*", bare)
    return _interval(text) or ("", [text])


def _interval(text: str) -> tuple[str, Sequence[str]] | None:
    """The interval that ``a < x \\le b`` or ``x > a`` means, where the one variable is between or before its bounds."""
    signs, sides = _RELATION.findall(text), [side.strip() for side in _RELATION.split(text)]
    if set(signs) <= {*_FLIPPED}:
        signs, sides = [_FLIPPED[sign] for sign in reversed(signs)], sides[::-1]
    if not signs or not set(signs) <= {"<", "\\le"}:
        return None
    brackets = ("(" if signs[0] == "<" else "[") + (")" if signs[-1] == "<" else "]")
    variables = [bool(re.fullmatch(r"\\?[A-Za-z]+", side)) for side in sides]
    if len(sides) == 3 and variables[1]:
        return brackets, [sides[0], sides[2]]
    if variables == [True, False]:
        return "(" + brackets[1], ["-\\infty", sides[1]]
    return (brackets[0] + ")", [sides[0], "\\infty"]) if variables == [False, True] else None


def _split(text: str, separator: str) -> list[str]:
    """The parts between separators that are in no brackets."""
    parts, begin, depth = [], 0, 0
    for found in re.finditer(rf"(?P<separator>{separator})|[(\[{{]|[)\]}}]", text):
        if found["separator"] is None:
            depth += 1 if found[0] in "([{" else -1
        elif not depth:
            parts.append(text[begin : found.start()].strip())
            begin = found.end()
    return [*parts, text[begin:].strip()]


def _word(text: str) -> str:
    """What a word or the letter of a choice says, a single letter as it is; empty for anything else."""
    plain = re.sub(r"\\text\s*\{([^}]*)\}", r" \1 ", text).strip()
    choice = re.match(r"(?:\(([A-Z])\)|([A-Z])[.):](?=\s|$))(?!.*\b[A-Z]\b)(?!\s*[-+*/^=<>\\])", plain)
    if choice or re.fullmatch(r"\(?[A-Za-z]\)?", plain):
        return choice[1] or choice[2] if choice else plain.strip("()")
    letters = re.fullmatch(r"[^\W\d_]{2,}(?:[ '-]+[^\W\d_]+)*", plain)
    variables = plain == text and re.fullmatch(r"[a-z]{2,3}", plain)
    return " ".join(plain.split()).casefold() if letters and not variables and WORD.search(plain) else ""


def _measured(text: str) -> tuple[str, str, str]:
    """Name before an equals sign, value and unit of an answer; empty where there is none."""
    name = ""
    if (found := _NAME.match(text)) and not _RELATION.search(text, found.end()):
        name, text = found[1], text[found.end() :]
    elif set(_RELATION.findall(text)) == {"="} and not re.search(r"[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", text)):
        text = text.rpartition("=")[2].strip()  # a calculation up to its result
    if money := re.fullmatch(r"(-?)\s*([$€£])\s*(-?.+)|(.*\d)\s*([$€£])", text):
        return name, (money[1] or "") + (money[3] or money[4]), _MONEY[money[2] or money[5]]
    if (found := _UNIT.fullmatch(text)) is None:
        return name, text, ""
    unit = re.sub(r"(?<=\w)s$|[. ]", "", (found[2] or found[5] or "").lower()) + (found[3] or found[6] or "")
    return name, found[1] or found[4], re.sub(r"^(?:percentage|pct)$", "percent", unit)


def _same_value(gold: str, said: str) -> bool:
    if _word(gold) or _word(said):
        return _word(gold) == _word(said)
    before = gold, said
    (name, gold, unit), (other_name, said, other) = _measured(gold), _measured(said)
    if (name and other_name and name != other_name) or (unit and other and unit != other):
        return False
    if (gold, said) != before:
        if _same(gold, said):
            return True
        if (unit == "percent") == (other == "percent"):
            return False
        gold, said = (f"({gold})/100", said) if unit == "percent" else (gold, f"({said})/100")
    numbers = read_number(gold), read_number(said)
    if None not in numbers:
        return numbers[0] == numbers[1]
    signs = _RELATION.findall(gold), _RELATION.findall(said)
    if not signs[0] and not signs[1]:
        return _no_difference(_expression(gold), _expression(said))
    return len(signs[0]) == len(signs[1]) == 1 and _same_relation(gold, signs[0][0], said, signs[1][0])


def _same_relation(gold: str, sign: str, said: str, other: str) -> bool:
    """Whether two equations or inequalities are the same up to a factor."""
    import sympy

    if _FLIPPED.get(sign, sign) != _FLIPPED.get(other, other):
        return False
    (a, b), (c, d) = ([_expression(side) for side in _RELATION.split(text)] for text in (gold, said))
    factor = sympy.simplify((a - b) / (c - d)) * (-1 if sign != other else 1)
    return bool(factor.is_number and (factor.is_nonzero if sign in ("=", "\\ne") else factor.is_positive))


@lru_cache(256)
def _expression(text: str) -> Any:
    """A formula as sympy has it, read as a whole; None where it is none."""
    import math_verify
    from latex2sympy2_extended import NormalizationConfig

    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text).strip()
    words = WORD.findall(re.sub(r"\\[A-Za-z]+(?:\{[a-z]*matrix\})?", " ", text))
    if not text or re.search(r"\$|\d_", text) or not all(re.fullmatch(r"[a-z]{2,3}", word) for word in words):
        return None  # xyz is a product; the parser would leave out the base of 11_2
    normalized = NormalizationConfig(units=False, malformed_operators=True, nits=False, boxed="none")
    target = math_verify.LatexExtractionConfig(normalization_config=normalized, boxed_match_priority=-1)
    found = math_verify.parse(
        f"${text}$", [target], fallback_mode="no_fallback", extraction_mode="first_match", parsing_timeout=None
    )
    return found[0] if found else None


def _no_difference(first: Any, second: Any) -> bool:
    """Whether two expressions have the same value: exactly, or to :data:`TOLERANCE` where one holds a decimal number."""
    import sympy

    if isinstance(first, sympy.MatrixBase) and isinstance(second, sympy.MatrixBase):
        return first.shape == second.shape and all(map(_no_difference, first, second))
    if not isinstance(first, sympy.Expr) or not isinstance(second, sympy.Expr):
        return first is not None and bool(first == second)
    first, second = first.doit(), second.doit()
    difference = first - second
    if difference.is_number and difference.has(sympy.Float):
        size = max(abs(sympy.N(first)), abs(sympy.N(second)))
        return bool(size.is_finite and abs(sympy.N(difference)) <= TOLERANCE * size)
    return bool(first == second or sympy.simplify(difference) == 0)


def _readable(text: str) -> bool:
    """Whether an expected answer is something that can be compared."""
    kind, parts = _parts(text)
    if kind:
        return all(map(_readable, parts))
    if _word(text) or read_number(text) is not None or re.fullmatch(r"[\dA-F]+_\w+", text):
        return True
    value = _measured(text)[1]
    return _readable(value) if value != text else all(_expression(side) is not None for side in _RELATION.split(value))

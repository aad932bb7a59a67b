"""Tests of programs as published data sets have them: rows to tests, by pure functions. Sources: docs/data_and_rewards.md.

A layout is recognised by its columns. What a layout does not say, an unknown key in a test, or no test at all is an error.
"""

from __future__ import annotations

import ast
import contextlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from penstock.core.errors import RewardError
from penstock.rewards.assertions import free_names, functions_of, parsed

Row = Mapping[str, Any]
PRELUDE = """
from bisect import *
from collections import *
from functools import *
from heapq import *
from itertools import *
from math import ceil, comb, factorial, floor, gcd, inf, isqrt, lcm, log, log2, pi, prod, sqrt
from typing import *
import bisect, collections, copy, datetime, functools, heapq, itertools, json, math, operator, random, re, string, sys
sys.setrecursionlimit(50_000)
"""
"""What graders of APPS, TACO, Eurus-2, DeepCoder and LiveCodeBench import before an answer."""


@dataclass(frozen=True)
class Pair:
    """What a program reads, and what it must print by a rule of :func:`prints`."""

    given: str
    wanted: str
    rule: str = "lines"


@dataclass(frozen=True)
class Call:
    """Arguments of a function, and the value that is wanted by a rule of :func:`~penstock.rewards.assertions.same`."""

    name: str
    arguments: Sequence[Any]
    wanted: Any
    rule: str


@dataclass(frozen=True)
class Asserts:
    """Code that asserts; ``only`` one function of it, if there is a name."""

    code: str
    only: str = ""


Case = Pair | Call | Asserts


@dataclass(frozen=True)
class Tests:
    """The tests of a row, the ``names`` that they call, and code ``before`` the answer, from which it may go on."""

    cases: Sequence[Case]
    names: frozenset[str]
    before: str


def read_tests(columns: Row, column: str) -> Tests:
    """The tests in a row's ``column``, or in the columns of a published layout.

    Raises:
        RewardError: there are none; or they have another form, which is named.
    """
    row = {name: value for name, value in columns.items() if value is not None}
    entry, prompt = str(row.get("entry_point", "")), row.get("prompt")
    if column in row and not any(column in names.split() for names in LAYOUTS):
        cases = _cases(row[column], f'column "{column}"', entry=entry)
    else:
        cases = _published(row, column)
    if not cases:
        raise RewardError(f"the row holds no tests (its list is empty): {', '.join(row)}; leave the row out")
    names = {each.name for each in cases if isinstance(each, Call)}
    for code in {each.code for each in cases if isinstance(each, Asserts)}:
        names |= free_names(ast.parse(code))
    before = PRELUDE if any(each.rule not in ("lines", "tokens") for each in cases if not isinstance(each, Asserts)) else ""
    if entry and isinstance(prompt, str) and f"def {entry}" in prompt and parsed(prompt) is not None:
        before = prompt
    return Tests(tuple(cases), frozenset(names), before)


def _published(row: Row, column: str) -> list[Case]:
    """The tests of the first of the published layouts that has its columns in the row."""
    read = next((LAYOUTS[names] for names in LAYOUTS if set(names.split()) <= row.keys()), None)
    if read is None:
        raise RewardError(
            f'column "{column}" holds no tests, and no published layout was recognised; {_FORMS}, or name another column; '
            f"columns there are: {', '.join(map(str, row))}"
        )
    if isinstance(read, str):
        raise RewardError(f"{read}; give the column tests, or leave these rows out")
    for name, why in _OTHERWISE.items():
        if row.get(name) not in (None, "", False, "stdio"):
            raise RewardError(
                f"a problem of this row {why} ({name}: {row[name]!r:.60}), which is not carried out; leave it out"
            )
    return read(row)


_FORMS = 'give {"input": …, "output": …}, {"inputs": […], "outputs": […]}, or code with assertions'


def _cases(value: Any, where: str, rules: tuple[str, str] | None = None, entry: str = "") -> list[Case]:
    """Tests as values or text of them: pairs, lists of inputs and outputs, calls, or code. ``rules``: of pairs and of calls."""
    value = _read(value)
    if isinstance(value, Mapping) and {"inputs", "outputs"} <= value.keys():
        value, rules = _tests(value, where), rules or ("close", "wrapped")
    cases: list[Case] = []
    for number, test in enumerate(value if isinstance(value, list | tuple) else [value]):
        if isinstance(test, str) and test.strip():
            cases += _code(test, where, entry)
        elif isinstance(test, Mapping):
            cases.append(_case(test, f"{where}, test {number}", rules))
        else:
            raise RewardError(f"{where}, test {number}: {test!r:.60} is no test; {_FORMS}")
    return cases


def _tests(value: Row, where: str) -> list[Row]:
    """``inputs`` and ``outputs``, of calls where there is an ``fn_name`` (APPS, TACO, Eurus-2, DeepCoder), one by one."""
    _known(value, "inputs outputs fn_name", where)
    given, wanted, name = value["inputs"], value["outputs"], value.get("fn_name")
    if not isinstance(given, list | tuple) or not isinstance(wanted, list | tuple) or len(given) != len(wanted):
        raise RewardError(f"{where}: inputs and outputs are lists of one length; they are {given!r:.60} and {wanted!r:.60}")
    return [{"input": one, "output": other, "fn_name": name} for one, other in zip(given, wanted, strict=True)]


def _case(test: Row, where: str, rules: tuple[str, str] | None) -> Pair | Call:
    """One test with ``input`` and ``output``; by ``type`` or ``testtype`` a call of a function."""
    _known(test, "input output type testtype fn_name metadata", where)
    meta = test.get("metadata") or {}
    _known(meta, "func_name", f"{where}, metadata")
    if "input" not in test or "output" not in test:
        raise RewardError(f"{where}: it needs input and output; {_FORMS}")
    given, wanted, kind = test["input"], test["output"], test.get("testtype") or test.get("type")
    if rules is None:
        rules = ("decimal", "exact") if test.get("testtype") else ("close" if kind else "lines", "wrapped")
    name = test.get("fn_name") or meta.get("func_name")
    if kind in ("stdin", "stdin_stdout") or (kind is None and not name):
        return Pair(_text(given, where), _text(wanted, where), rules[0])
    if kind not in (None, "functional", "function_call"):
        raise RewardError(f'{where}: type "{kind}" is unknown; known are stdin, stdin_stdout, functional and function_call')
    if not name:
        raise RewardError(f"{where}: a functional test needs fn_name or metadata.func_name")
    if isinstance(given, list | tuple):
        return Call(name, list(given), wanted, rules[1])
    try:
        return Call(name, [json.loads(line) for line in given.strip().split("\n")], json.loads(wanted), rules[1])
    except (AttributeError, ValueError, TypeError):
        raise RewardError(
            f"{where}: arguments of {name} are a list, or lines of JSON, like the output; they are {given!r:.60}"
        ) from None


def _known(test: Row, names: str, where: str) -> None:
    unknown = [str(name) for name, value in test.items() if name not in names.split() and value is not None]
    if unknown:
        raise RewardError(f"{where}: unknown keys {', '.join(unknown)}; known are {names}")


def _text(value: Any, where: str) -> str:
    """A program's input or output: a text, or a list of its lines."""
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
        return "\n".join(value)
    raise RewardError(
        f"{where}: {value!r:.60} is no text and no list of lines; write the text itself, as a program reads or prints it"
    )


def _code(code: str, where: str, entry: str = "") -> list[Case]:
    """A piece of code as tests: each function that pytest would call, or all of it; HumanEval's ``check`` of ``entry``, also
    where that is an expression (``Solution().twoSum`` in LeetCodeDataset)."""
    tree, made = parsed(code), entry.partition("(")[0]
    if tree is not None and entry and any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in tree.body):
        code = f"{code}\nfrom solution import {made}\ncheck({entry})\n"
        tree = parsed(code)
    if tree is None:
        raise RewardError(f"{where}: a test is no Python: {code!r:.60}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Compare):
            raise RewardError(f"{where}: a test compares without asserting; write: assert {ast.unparse(node)}")
    return [Asserts(code, only=name) for name in functions_of(tree)] or [Asserts(code)]


def _read(value: Any) -> Any:
    """What a text of JSON says, or of Python's literals, which some data sets wrote; else the value itself."""
    for read in (json.loads, ast.literal_eval) if isinstance(value, str) else ():
        with contextlib.suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return read(value)
    return value


def _json(value: Any, where: str, kind: Any = (list, tuple, Mapping)) -> Any:
    """A list or mapping, or what its text says."""
    if not isinstance(value := _read(value), kind):
        raise RewardError(f"{where} holds no tests of code: {value!r:.60}; judge such rows by the reward math or exact_match")
    return value


def _test_files(row: Row) -> list[Case]:
    return _code(_text(row.get("test") or row["test_code"], "test"), 'column "test"', str(row.get("entry_point", "")))


def _mbpp(row: Row) -> list[Case]:
    setup = "\n".join([*row.get("test_imports", ()), row.get("test_setup_code", "")])
    listed = [*_json(row["test_list"], "test_list"), *_json(row.get("challenge_test_list", []), "challenge_test_list")]
    cases = [case for each in listed for case in _code(f"{setup}\n{each}".strip(), 'column "test_list"')]
    return [*cases, *(_code(_text(row["test"], "test"), 'column "test"') if row.get("test") else [])]  # MBPP+ has more in it


def _live(row: Row) -> list[Case]:
    private = row.get("private_test_cases", "[]")
    if isinstance(private, str) and not private.lstrip().startswith("["):
        raise RewardError(
            "private_test_cases are pickled (LiveCodeBench: base64, zlib, pickle), which is never read; write them as JSON, "
            "or leave the column out to judge by the public ones"
        )
    name = _json(row.get("metadata", "{}"), "metadata", Mapping).get("func_name")
    listed = [*_json(row["public_test_cases"], "public_test_cases"), *_json(private, "private_test_cases")]
    common = {"testtype": "stdin", "metadata": {"func_name": name}}
    return _cases([{**common, **test} if isinstance(test, Mapping) else test for test in listed], "test_cases")


def _contests(row: Row) -> list[Case]:
    cases: list[Case] = []
    for name in ("public_tests", "private_tests", "generated_tests"):
        tests = _json(row.get(name, {"input": [], "output": []}), name, Mapping)
        _known(tests, "input output", f'column "{name}"')
        lists = {"inputs": tests.get("input"), "outputs": tests.get("output")}
        cases += _cases(lists, f'column "{name}"', ("tokens", "wrapped"))
    return cases


def _synthetic(row: Row) -> list[Case]:
    task, info = row["task_type"], _json(row["verification_info"], "verification_info", Mapping)
    if task != "verifiable_code":
        better = {"verifiable_math": "the reward math", "code_output_prediction": "the reward exact_match"}.get(task, "a judge")
        raise RewardError(f'task_type "{task}" (SYNTHETIC) is not judged by tests of code; use {better}, or leave the row out')
    _known(info, "language test_cases", "verification_info")
    if info.get("language") != "python":
        raise RewardError(f'language "{info.get("language")}" (SYNTHETIC) has no judge here; leave out rows other than python')
    return _cases(info["test_cases"], "test_cases", ("stripped", "printed"))


def _truth(row: Row) -> list[Case]:
    place = _json(row["reward_model"], "reward_model", Mapping) if "reward_model" in row else row
    return _cases(_json(place.get("ground_truth"), "ground_truth"), "ground_truth")


LAYOUTS: dict[str, str | Callable[[Row], list[Case]]] = {
    "plus_input": "outputs of HumanEval+ and MBPP+ are in a pickled cache, which is never read",
    "instruct_prompt test": "BigCodeBench needs its packages and a pickled cache, which is never read",
    "FAIL_TO_PASS": "SWE rows need a container for each repository, which the sandbox is not",
    "inputs outputs func_name": "cells of rStar-Coder are not documented",
    "test entry_point": _test_files,
    "test_list": _mbpp,
    "test": _test_files,
    "test_code": _test_files,
    "input_output": lambda row: _cases(_json(row["input_output"], "input_output", Mapping), 'column "input_output"'),
    "public_test_cases": _live,
    "public_tests": _contests,
    "verification_info task_type": _synthetic,
    "official_tests": lambda row: _cases(_json(row["official_tests"], "official_tests"), "official_tests"),
    "reward_model": _truth,
    "ground_truth": _truth,
}
"""Published layouts, or why they are refused, by the columns that show them; the most particular first."""
_OTHERWISE = {
    "interaction_format": "is interactive", "generated_checker": "is judged by a checker", "input_file": "reads a file",
    "output_file": "writes a file", "input_mode": "reads what input_mode says",
}  # fmt: skip
"""Columns of CodeContests and Codeforces that say how a problem is judged otherwise than by what a program prints."""


def prints(given: str, wanted: str, rule: str) -> bool:
    """Whether a program's output is what a data set expects.

    ``lines``: equal without space at the ends of lines (ours). ``stripped``: without space around them (SYNTHETIC-1).
    ``decimal``: then words equal as decimals too (LiveCodeBench). ``close``: without empty lines, numbers within 1e-5 of the
    expected one's size, order kept (APPS, TACO, Eurus-2). ``tokens``: words, whatever their case and lines, numbers within 1e-5
    (CodeContests).
    """
    one, other = _lines(given, rule), _lines(wanted, rule)
    if rule not in _NEAR or len(one) != len(other):
        return one == other
    return all(_same_words(a.split(), b.split(), *_NEAR[rule]) for a, b in zip(one, other, strict=True))


def _lines(text: str, rule: str) -> list[str]:
    if rule == "lines":
        return [line.rstrip() for line in text.rstrip().splitlines()]
    if rule == "tokens":
        return [text.lower()]
    return [line.strip() for line in text.strip().splitlines() if rule != "close" or line.strip()]


_NEAR: dict[str, tuple[Any, Callable[[Any, Any], bool]]] = {
    "decimal": (Decimal, lambda a, b: a == b),
    "close": (float, lambda a, b: math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-8)),
    "tokens": (float, lambda a, b: abs(a - b) <= 1e-5),
}


def _same_words(words: Sequence[str], others: Sequence[str], number: Any, near: Callable[[Any, Any], bool]) -> bool:
    try:
        return all(a == b or near(number(a), number(b)) for a, b in zip(words, others, strict=True))
    except (ValueError, InvalidOperation):  # words that are no numbers
        return False

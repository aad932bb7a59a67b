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
from penstock.rewards.assertions import free_names, functions_of
from penstock.rewards.code_blocks import parsed

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
    """Code that asserts; ``only`` one function of it, or its ``check`` of the function ``entry``."""

    code: str
    only: str = ""
    entry: str = ""


@dataclass(frozen=True)
class Tests:
    """The tests of a row, and the ``names`` that they call. ``PRELUDE`` or a ``prompt`` runs before the answer."""

    cases: tuple[Pair | Call | Asserts, ...]
    names: frozenset[str] = frozenset()
    prelude: bool = False
    prompt: str = ""


def read_tests(columns: Row, column: str) -> Tests:
    """The tests in a row's ``column``, or in the columns of a published layout.

    Raises:
        RewardError: there are none; or they have another form, which is named.
    """
    row = {name: value for name, value in columns.items() if value is not None}
    shown = next((names for names in LAYOUTS if set(names.split()) <= row.keys()), None)
    if column in row and not any(column in names.split() for names in LAYOUTS):
        tests = _values(row[column], f'column "{column}"', row)
    elif shown is None:
        raise RewardError(
            f'column "{column}" holds no tests, and no published layout was recognised; {_FORMS}, or name another column; '
            f"columns there are: {', '.join(map(str, columns))}"
        )
    else:
        read = LAYOUTS[shown]
        if isinstance(read, str):
            raise RewardError(f"{read}; give the column tests, or leave these rows out")
        tests = read(row)
    if not tests.cases:
        raise RewardError(f"the row holds no tests (its list is empty): {', '.join(row)}; leave the row out")
    names = {each.name for each in tests.cases if isinstance(each, Call)}
    for each in {each.code: each for each in tests.cases if isinstance(each, Asserts)}.values():
        names |= free_names(ast.parse(each.code)) | {each.entry} - {""}
    return Tests(tests.cases, frozenset(names), tests.prelude, tests.prompt)


def _values(value: Any, where: str, row: Row, rule: str = "lines") -> Tests:
    """Tests as values or JSON text: pairs, lists of inputs and outputs, calls, or code."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        with contextlib.suppress(ValueError):  # a piece of code may begin with a bracket too
            value = json.loads(value)
    if isinstance(value, Mapping) and {"inputs", "outputs"} <= value.keys():
        return _in_and_out(value, where)
    listed = list(value) if isinstance(value, list | tuple) else [value]
    cases: list[Pair | Call | Asserts] = []
    for number, test in enumerate(listed):
        if isinstance(test, str) and test.strip():
            cases += _code(test, where, str(row.get("entry_point", "")))
        elif isinstance(test, Mapping):
            cases.append(_test(test, f"{where}, test {number}", rule))
        else:
            raise RewardError(f"{where}, test {number}: {_shown(test)} is no test; {_FORMS}")
    published = any(isinstance(each, Mapping) and {"testtype", "type"} & each.keys() for each in listed)
    return Tests(tuple(cases), prelude=published)


_FORMS = 'give {"input": …, "output": …}, {"inputs": […], "outputs": […]}, or code with assertions'


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else text[:57] + "…"


def _known(test: Row, names: str, where: str) -> None:
    unknown = [str(name) for name, value in test.items() if name not in names.split() and value is not None]
    if unknown:
        raise RewardError(f"{where}: unknown keys {', '.join(unknown)}; known are {names}")


def _test(test: Row, where: str, rule: str = "lines") -> Pair | Call:
    """One test with ``input`` and ``output``; by ``type`` or ``testtype`` a call of a function."""
    _known(test, "input output type testtype fn_name metadata", where)
    meta = test.get("metadata") or {}
    _known(meta, "func_name", f"{where}, metadata")
    kind = test.get("testtype") or test.get("type")
    name = test.get("fn_name") or meta.get("func_name")
    if "input" not in test or "output" not in test:
        raise RewardError(f"{where}: it needs input and output; {_FORMS}")
    if kind not in (None, "stdin", "stdin_stdout", "functional", "function_call"):
        raise RewardError(f'{where}: type "{kind}" is unknown; known are stdin, stdin_stdout, functional and function_call')
    if kind in ("functional", "function_call") or (kind is None and name):
        if not name:
            raise RewardError(f"{where}: a functional test needs fn_name or metadata.func_name")
        how = "printed" if rule == "stripped" else "exact" if test.get("testtype") else "wrapped"
        return _called(name, test["input"], test["output"], how, where)
    if rule == "lines" and kind is not None:
        rule = "decimal" if test.get("testtype") else "close"
    return Pair(_text(test["input"], where), _text(test["output"], where), rule)


def _text(value: Any, where: str) -> str:
    """A program's input or output: a text, or a list of its lines."""
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
        return "\n".join(value)
    raise RewardError(
        f"{where}: {_shown(value)} is no text and no list of lines; write the text itself, as a program reads or prints it"
    )


def _called(name: str, given: Any, wanted: Any, rule: str, where: str) -> Call:
    """A call whose arguments are a list, or lines of JSON with a value of JSON."""
    if isinstance(given, str):
        try:
            given = [json.loads(line) for line in given.strip().split("\n")]
            wanted = json.loads(wanted)
        except (ValueError, TypeError):
            raise RewardError(f"{where}: arguments of {name} are lines of JSON, like the output: {_shown(given)}") from None
    elif isinstance(given, list | tuple):
        given = list(given)
    else:
        raise RewardError(f"{where}: arguments of {name} are a list, or lines of JSON; they are {_shown(given)}")
    return Call(name, given, wanted, rule)


def _code(code: str, where: str, entry: str = "") -> list[Asserts]:
    """A piece of code as tests: each function that pytest would call, or all of it."""
    tree = parsed(code)
    if tree is None:
        raise RewardError(f"{where}: a test is no Python: {_shown(code)}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Compare):
            raise RewardError(f"{where}: a test compares without asserting; write: assert {ast.unparse(node)}")
    if entry and any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in tree.body):
        return [Asserts(code, entry=entry)]
    return [Asserts(code, only=name) for name in functions_of(tree)] or [Asserts(code)]


def _in_and_out(value: Any, where: str, rule: str = "close") -> Tests:
    """``inputs`` and ``outputs``, of calls where there is an ``fn_name`` (APPS, TACO, Eurus-2, DeepCoder)."""
    _known(value, "inputs outputs fn_name", where)
    given, wanted, name = value["inputs"], value["outputs"], value.get("fn_name")
    if not isinstance(given, list | tuple) or not isinstance(wanted, list | tuple) or len(given) != len(wanted):
        raise RewardError(f"{where}: inputs and outputs are lists of one length; they are {_shown(given)} and {_shown(wanted)}")
    places = [f"{where}, test {number}" for number in range(len(given))]
    cases: list[Pair | Call | Asserts] = [
        _called(name, one, other, "wrapped", place) if name else Pair(_text(one, place), _text(other, place), rule)
        for place, one, other in zip(places, given, wanted, strict=True)
    ]
    return Tests(tuple(cases), prelude=True)


def _json(value: Any, where: str, kind: Any = (list, tuple, Mapping)) -> Any:
    """A list or mapping, or what its JSON text says; some data sets wrote Python's literals."""
    for read in (json.loads, ast.literal_eval) if isinstance(value, str) else ():
        with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            value = read(value)
            break
    if not isinstance(value, kind):
        raise RewardError(f"{where} holds no tests of code: {_shown(value)}; judge such rows by the reward math or exact_match")
    return value


def _human_eval(row: Row) -> Tests:
    cases = _code(_text(row["test"], "test"), 'column "test"', str(row["entry_point"]))
    prompt = row.get("prompt", "")
    is_code = isinstance(prompt, str) and f"def {row['entry_point']}" in prompt and parsed(prompt) is not None
    return Tests(tuple(cases), prompt=prompt if is_code else "")


def _pytest(row: Row) -> Tests:
    return Tests(tuple(_code(row.get("test") or row["test_code"], 'column "test"')))


def _mbpp(row: Row) -> Tests:
    setup = "\n".join([*row.get("test_imports", ()), row.get("test_setup_code", "")])
    listed = [*_json(row["test_list"], "test_list"), *_json(row.get("challenge_test_list", []), "challenge_test_list")]
    return Tests(tuple(case for each in listed for case in _code(f"{setup}\n{each}".strip(), 'column "test_list"')))


def _live(row: Row) -> Tests:
    private = row.get("private_test_cases", "[]")
    if isinstance(private, str) and not private.lstrip().startswith("["):
        raise RewardError(
            "private_test_cases are pickled (LiveCodeBench: base64, zlib, pickle), which is never read; write them as JSON, "
            "or leave the column out to judge by the public ones"
        )
    name = _json(row.get("metadata", "{}"), "metadata", Mapping).get("func_name")
    listed = [*_json(row["public_test_cases"], "public_test_cases"), *_json(private, "private_test_cases")]
    common = {"testtype": "stdin", "metadata": {"func_name": name}}
    return _values([{**common, **test} if isinstance(test, Mapping) else test for test in listed], "test_cases", {})


def _contests(row: Row) -> Tests:
    if row.get("input_file") or row.get("output_file"):
        raise RewardError(f"a program of this row (CodeContests) reads {row.get('input_file')!r}, no input; leave it out")
    cases: list[Pair | Call | Asserts] = []
    for name in ("public_tests", "private_tests", "generated_tests"):
        tests = _json(row.get(name, {"input": [], "output": []}), name, Mapping)
        _known(tests, "input output", f'column "{name}"')
        cases += _in_and_out({"inputs": tests.get("input"), "outputs": tests.get("output")}, f'column "{name}"', "tokens").cases
    return Tests(tuple(cases))


def _synthetic(row: Row) -> Tests:
    task, info = row["task_type"], _json(row["verification_info"], "verification_info", Mapping)
    if task != "verifiable_code":
        better = {"verifiable_math": "the reward math", "code_output_prediction": "the reward exact_match"}.get(task, "a judge")
        raise RewardError(f'task_type "{task}" (SYNTHETIC) is not judged by tests of code; use {better}, or leave the row out')
    _known(info, "language test_cases", "verification_info")
    if info.get("language") != "python":
        raise RewardError(f'language "{info.get("language")}" (SYNTHETIC) has no judge here; leave out rows other than python')
    tests = _values(info["test_cases"], "test_cases", {}, "stripped")
    return Tests(tests.cases, prelude=True)


def _truth(row: Row) -> Tests:
    place = _json(row["reward_model"], "reward_model", Mapping) if "reward_model" in row else row
    truth = place.get("ground_truth")
    return _values(_json(truth, "ground_truth"), "ground_truth", row)


def _codeforces(row: Row) -> Tests:
    for name, why in {
        "interaction_format": "is interactive", "generated_checker": "is judged by a checker", "input_file": "reads a file",
    }.items():  # fmt: skip
        if row.get(name):
            raise RewardError(f"a problem of this row (Codeforces) {why} ({name}), which is not carried out; leave it out")
    return _values(_json(row["official_tests"], "official_tests"), "official_tests", {})


LAYOUTS: dict[str, str | Callable[[Row], Tests]] = {
    "plus_input": "outputs of HumanEval+ and MBPP+ are in a pickled cache, which is never read",
    "instruct_prompt test": "BigCodeBench needs its packages and a pickled cache, which is never read",
    "FAIL_TO_PASS": "SWE rows need a container for each repository, which the sandbox is not",
    "inputs outputs func_name": "cells of rStar-Coder are not documented",
    "test entry_point": _human_eval,
    "test_list": _mbpp,
    "test": _pytest,
    "test_code": _pytest,
    "input_output": lambda row: _in_and_out(_json(row["input_output"], "input_output", Mapping), 'column "input_output"'),
    "public_test_cases": _live,
    "public_tests": _contests,
    "verification_info task_type": _synthetic,
    "official_tests": _codeforces,
    "reward_model": _truth,
    "ground_truth": _truth,
}
"""Published layouts, or why they are refused, by the columns that show them; the most particular first."""


def prints(given: str, wanted: str, rule: str) -> bool:
    """Whether a program's output is what a data set expects.

    ``lines``: equal without space at the ends of lines (ours). ``stripped``: without space around them (SYNTHETIC-1).
    ``decimal``: then words equal as decimals too (LiveCodeBench). ``close``: without empty lines, numbers within 1e-5 of the
    expected one's size, order kept (APPS, TACO, Eurus-2). ``tokens``: words, whatever their case and lines, numbers within 1e-5
    (CodeContests).
    """
    texts = (given.lower(), wanted.lower()) if rule == "tokens" else (given.rstrip(), wanted.rstrip())
    if rule == "lines":
        one, other = ([line.rstrip() for line in text.splitlines()] for text in texts)
        return one == other
    if rule == "tokens":
        one, other = ([text] for text in texts)
    else:
        one, other = ([line.strip() for line in text.strip().splitlines() if rule != "close" or line.strip()] for text in texts)
    if rule == "stripped" or len(one) != len(other):
        return one == other
    number, near = _NEAR[rule]
    return all(_same_words(a.split(), b.split(), number, near) for a, b in zip(one, other, strict=True))


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

"""Judges code by one test without letting it judge itself: the main program of a sandbox, with the standard library alone.

The tested code runs in a child process, forked before the test is read; ``crossing.py`` is the line between them. The test runs
here, with builtins and modules of this process. The verdict goes to a pipe that the child does not have. A test that ends
without an error has passed only if it asserted something: what it asserts is counted by a rewritten syntax tree.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import ctypes
import importlib
import inspect
import json
import os
import socket
import sys
import types
import unittest
from typing import Any

from penstock.rewards import pytests
from penstock.rewards.crossing import Judging, Linked, Remote, Tested, Unsupported, is_remote

_NOTES = "__noted__"
_IMPORTS = (ast.Import, ast.ImportFrom)
_MISSING = (
    "a test imports {name}, which tests do not have: the option packages adds folders to import from, and the tested code is "
    "the module solution, in a process of its own, where nothing can be replaced (mocked)"
)


def parsed(code: str) -> ast.Module | None:
    """The syntax tree of Python code; None of what is none, or longer than an answer is."""
    try:
        return ast.parse(code) if len(code) <= 200_000 else None
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None


def named(call: ast.AST) -> str:
    """The last name of what an expression calls, "" where it calls nothing by name."""
    function = call.func if isinstance(call, ast.Call) else None
    return function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""


def functions_of(tree: ast.Module) -> list[str]:
    """The tests that pytest would find in a file: functions ``test…``, and ``CLASS.METHOD``."""
    found = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            found.append(node.name)
        elif isinstance(node, ast.ClassDef) and (node.name.startswith("Test") or "TestCase" in map(_last, node.bases)):
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
            found += [f"{node.name}.{each.name}" for each in methods if each.name.startswith("test")]
    return found


def _last(node: ast.expr) -> str:
    return ast.unparse(node).rpartition(".")[2].replace("IsolatedAsyncio", "")


def free_names(tree: ast.Module) -> set[str]:
    """Names that a test uses and neither defines nor imports; those imported from ``solution`` too."""
    used, defined, asked = set[str](), set[str](), set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else defined).add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.arg):
            defined.add(node.arg)
        elif isinstance(node, ast.ImportFrom) and node.module == "solution":
            asked |= {each.name for each in node.names} - {"*"}
        elif isinstance(node, _IMPORTS):
            defined |= {(each.asname or each.name).partition(".")[0] for each in node.names}
    return (used - defined) | asked


def bound_names(tree: ast.Module) -> set[str]:
    """Names that a test gives a meaning to itself, which its ``from solution import *`` does not change."""
    found = set[str]()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, _IMPORTS) and getattr(node, "module", "") != "solution":
            found |= {(each.asname or each.name).partition(".")[0] for each in node.names}
    return found


def helpers_of(given: str) -> dict[str, Any]:
    """The functions that code given with a task defines with a body, by name. It is the data set's, not the answer's."""
    tree, space = parsed(given), dict[str, Any]()
    whole = [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and _has_body(node)] if tree else []
    if whole:
        exec(given, space)
    return {name: space[name] for name in whole}


def _has_body(node: ast.FunctionDef) -> bool:
    return any(not (isinstance(each, ast.Pass) or (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)))
               for each in node.body)  # fmt: skip


def _innermost(tree: ast.Module) -> set[str]:
    """Names of calls within which nothing is called: of ``abs(sum(1, 2) - 3)`` the test is about ``sum``."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    within = [
        any(isinstance(each, ast.Call) for part in (*node.args, *node.keywords) for each in ast.walk(part)) for node in calls
    ]
    return {node.func.id for node, outer in zip(calls, within, strict=True) if not outer}  # type: ignore[attr-defined]


class _Counting(ast.NodeTransformer):
    """Notes as they happen: ``held``, asserts that held, calls named assert…, blocks of ``raises`` and decisions to fail; and
    ``met``, loops with asserts, which may have nothing to go through.
    """

    def __init__(self, tree: ast.Module) -> None:
        self._own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}

    def _asserts(self, node: ast.AST) -> bool:
        name = named(node)
        return (name.startswith("assert") and name not in self._own) or name in ("raises", "fail")

    def _may_fail(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Raise | ast.Assert) or (isinstance(node, ast.Expr) and self._asserts(node.value))

    def may_assert(self, node: ast.AST) -> bool:
        """Whether a part of a test may find something wrong by itself."""
        called = isinstance(node, ast.Call) and (self._asserts(node) or named(node) == "warns")
        return called or isinstance(node, ast.Raise | ast.Assert)

    def visit_Assert(self, node: ast.Assert) -> Any:
        return [node, *_note("held")]

    def visit_Expr(self, node: ast.Expr) -> Any:
        if isinstance(node.value, ast.Call) and ast.unparse(node.value.func) in ("unittest.main", "pytest.main"):
            return ast.Pass()  # its functions are called one by one
        return [node, *_note("held")] if self._asserts(node.value) else node

    def visit_With(self, node: ast.With) -> Any:
        self.generic_visit(node)
        return [node, *_note("held")] if any(self._asserts(item.context_expr) for item in node.items) else node

    def visit_If(self, node: ast.If) -> Any:
        decides = any(map(_fails, [*node.body, *node.orelse]))
        self.generic_visit(node)
        return [*_note("held"), node] if decides else node

    def visit_For(self, node: ast.For) -> Any:
        asserts = any(map(self._may_fail, node.body))
        self.generic_visit(node)
        return [*_note("met"), node] if asserts else node

    def visit_Try(self, node: ast.Try) -> Any:
        wanted = any(map(self._may_fail, [*node.body, *node.orelse]))  # then the error that it catches is what it wants
        self.generic_visit(node)
        for handler in node.handlers:
            caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type] if handler.type else []
            kinds = set(map(ast.unparse, caught)) or {"BaseException"}
            if wanted and not kinds & {"Exception", "BaseException", "AssertionError"}:
                handler.body[:0] = _note("held")
        return node


def _note(what: str) -> list[ast.stmt]:
    return ast.parse(f"{_NOTES}.add('{what}')").body


def _fails(node: ast.AST) -> bool:
    """Whether a statement fails for certain, so that what decides about it is what is tested."""
    false = isinstance(node, ast.Assert) and isinstance(node.test, ast.Constant) and not node.test.value
    return false or isinstance(node, ast.Raise) or (isinstance(node, ast.Expr) and named(node.value) == "fail")


class Judge:
    """One test over what the tested code defines."""

    def __init__(self, line: Judging) -> None:
        self._line, self._notes = line, set[str]()
        sent = line.receive()
        self._names = {name: line.decode(value) for name, value in sent.items() if name.isidentifier() and name[0] != "_"}
        functions = {vars(value)["_number"] for name, value in self._linked() if not name[0].isupper()}
        for name, value in self._linked():
            vars(value)["_class"] = name[0].isupper() and vars(value)["_number"] not in functions

    def _linked(self) -> list[tuple[str, Any]]:
        return [(name, value) for name, value in self._names.items() if isinstance(value, Remote)]

    def _space(self, tree: ast.Module, given: str) -> tuple[dict[str, Any], str]:
        """What a test sees: of the tested code, names that neither the judge nor the test has; and what the code ``given`` with
        the task defines whole. And the verdict on a test that sees nothing of the answer's, empty for others."""
        free = free_names(tree)
        owners = {each.value for each in ast.walk(tree) if isinstance(each, ast.Attribute)}
        alone = {each.id for each in ast.walk(tree) if isinstance(each, ast.Name) and each not in owners}
        modules = free & sys.stdlib_module_names - alone  # used as modules alone
        # A function under test may have a builtin's name (MBPP has sum); so it is where a test is about nothing else.
        asked = any("solution" in ast.unparse(each) for each in ast.walk(tree) if isinstance(each, _IMPORTS))
        about = asked or free - set(dir(builtins)) - modules
        hidden = set(dir(builtins)) - (set() if about else _innermost(tree)) | modules | bound_names(tree)
        helpers = helpers_of(given)
        own = {name: value for name, value in self._names.items() if name not in hidden | helpers.keys()}
        unseen = "" if about or own.keys() & free else "failed" if _innermost(tree) & free else "nothing"
        solution: Any = types.ModuleType("solution")
        vars(solution).update(self._names, __all__=list(own))
        sys.modules.update({"solution": solution, "pytest": pytests.module(), "unittest.mock": None})  # type: ignore[dict-item]
        imported = {name: importlib.import_module(name) for name in modules}
        return {**imported, **own, **helpers, "__name__": "tests", _NOTES: self._notes}, unseen

    def code(self, code: str, only: str, given: str = "") -> str:
        """``passed``, ``skipped``, or ``nothing`` where nothing was asserted; raises where it fails. ``given``: code with the
        task, whose helpers are not the answer's to define."""
        tree = ast.parse(code)
        (space, unseen), counting = self._space(tree, given), _Counting(tree)
        if unseen or not any(counting.may_assert(node) for node in ast.walk(tree)):
            return unseen or "nothing"
        tree = ast.fix_missing_locations(counting.visit(tree))
        try:
            exec(compile(tree, "tests.py", "exec"), space)
            if only:
                self._function(space, *only.split("."))
        except unittest.SkipTest:
            return "skipped"
        return "passed" if "held" in self._notes else "failed" if "met" in self._notes else "nothing"

    def _function(self, space: dict[str, Any], name: str, method: str = "") -> None:
        found = space[name]
        if isinstance(found, type) and issubclass(found, unittest.TestCase):
            unittest.TestSuite([found(method)]).debug()
            return
        instance = found() if method else None
        function = getattr(instance, method) if method else found
        for arguments in pytests.cases(found, function):
            with contextlib.ExitStack() as stack:
                for each in ("setup_class", "setup_method", "setup") if method else ("setup_function",):
                    hook = getattr(instance, each, None) if method else space.get(each)
                    if hook is not None:
                        hook(*([function] if inspect.signature(hook).parameters else []))
                given = pytests.arguments(function, arguments, lambda name: getattr(instance, name, space.get(name)), stack)
                result = function(**given)
                if inspect.iscoroutine(result):
                    importlib.import_module("asyncio").run(result)

    def call(self, name: str, arguments: list[Any], wanted: Any, rule: str) -> str:
        """Whether a call gives what is wanted, by one of the rules of :func:`same`."""
        if rule == "wrapped" and len(arguments) == 1:
            arguments = [_numbered(arguments[0])]
            wanted = [_numbered(each) for each in wanted] if isinstance(wanted, list) else _numbered(wanted)
        return "passed" if same(settled(self._line.ask("find", name)(*arguments)), wanted, rule) else "failed"


def _numbered(value: Any) -> Any:
    """A dictionary whose keys JSON has made texts of numbers, with numbers."""
    try:
        return {int(key): each for key, each in value.items()} if isinstance(value, dict) else value
    except ValueError:
        return value


def settled(value: Any) -> Any:
    """An answer's value as it is now, asked for once: what is compared twice cannot be something else the second time."""
    if isinstance(value, Linked) and vars(value)["_base"]:
        value = vars(value)["_line"].ask("content", value)
    if isinstance(value, dict):
        return {key: settled(one) for key, one in value.items()}
    return type(value)(map(settled, value)) if type(value) in (list, tuple, set) else value


def same(value: Any, wanted: Any, rule: str) -> bool:
    """Whether a call's value is what a data set expects.

    ``printed``: the texts that printing both gives (SYNTHETIC-1). ``exact``: equal, where a tuple is a list (LiveCodeBench).
    ``wrapped``: the expected value may be in a list of its own too, and tuples in a list are lists (APPS).
    """
    if rule == "printed":
        return str(value).strip() == str(wanted).strip()
    value = list(value) if isinstance(value, tuple) else value
    golds = [wanted, *(wanted[:1] if isinstance(wanted, list) and rule == "wrapped" else [])]
    if value in golds or rule == "exact":
        return value in golds
    if isinstance(value, list) and all(isinstance(each, tuple) for each in value):
        value = [list(each) for each in value]
    return value in golds


def main() -> None:
    """Read the pieces of ``solution.json``, fork, then read the test from the standard input."""
    sys.set_int_max_str_digits(0)
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # not dumpable: no process of this user may look into this one through /proc
    with open("solution.json", encoding="utf-8") as file:
        pieces = json.load(file)
    ours, theirs = socket.socketpair()
    null = os.open(os.devnull, os.O_RDWR)
    if os.fork() == 0:
        for number in range(3):
            os.dup2(null, number)
        kept = theirs.detach()
        os.dup2(kept, 3)
        os.closerange(4, 4096)
        with contextlib.suppress(BaseException):
            Tested(socket.socket(fileno=3)).serve(pieces)
        os._exit(0)
    theirs.close()
    sys.path[:] = [path for path in sys.path if path and path != os.getcwd()]  # the child may write modules there
    test = json.load(sys.stdin)
    verdicts = os.dup(1)
    os.dup2(null, 1)

    class Line(Judging):
        def ended(self) -> bytes:  # the tested code is gone: nothing that a test catches
            os.write(verdicts, json.dumps({"verdict": "failed"}).encode())
            os._exit(0)

    try:
        judge = Judge(Line(ours))
        answer = {"verdict": judge.code(**test) if "code" in test else judge.call(**test)}
    except Unsupported as error:
        answer = {"verdict": "unsupported", "why": str(error)}
    except BaseException as error:
        answer = {"verdict": "failed"}
        if isinstance(error, ModuleNotFoundError) and not is_remote(error):
            answer = {"verdict": "unsupported", "why": _MISSING.format(name=error.name)}
    os.write(verdicts, json.dumps(answer).encode())
    os._exit(0)

"""Code as an answer, judged by the prompt's tests in a sandbox. No verdict is made where the tested code could make it."""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markdown_it import MarkdownIt

from penstock.core.errors import RewardError, SpecError
from penstock.rewards.assertions import parsed
from penstock.rewards.code_tests import Asserts, Case, Pair, prints, read_tests
from penstock.sandbox import Limits, Program, open_sandbox

if TYPE_CHECKING:
    from penstock.core.types import Sample

_HARNESS = {f"penstock/rewards/{name}.py": Path(__file__).with_name(f"{name}.py").read_bytes()
            for name in ("assertions", "crossing", "pytests")}  # fmt: skip
_START = "from penstock.rewards.assertions import main; main()"
LEAST_MB = 64
"""Mebibytes of memory: a test of a small program was seen to run in 48, with Python 3.11 in the jail."""
_NOTHING = (
    "nothing was asserted, so that any answer would pass: {where}; write assert f(1) == 2, call the functions that assert "
    "(those named test… are called), and give HumanEval's check its column entry_point"
)
# Without these rules a fence counts wherever it is: far to the right of a list's text, or right after a tag like </think>.
_READER = MarkdownIt("commonmark").disable(["code", "html_block", "reference", "lheading", "inline"])
_PYTHON = re.compile(r"\W*(?:i?python|py)[\d.]*(?![\w+#])", re.IGNORECASE)
_THOUGHT = re.compile(r"\A\s*<think>.*?(?:</think>|\Z)|\A.*?</think>[ \t]*$", re.DOTALL | re.MULTILINE)
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_FENCE = re.compile(r"^([^\n`~]*[^\s`~>])[ \t]*(```+|~~~+)[ \t]*((?:[a-z]*py[a-z0-9.]*)?)[ \t]*$", re.IGNORECASE | re.MULTILINE)
"""A fence at the end of a line of text or code, where Markdown knows none."""
_LAZY = re.compile(r"^(?=[ \t]*(?:```|~~~))", re.MULTILINE)
"""The beginning of a line with a fence; after an empty line no paragraph can swallow it."""


class CodeReward:
    """How many of a row's tests a completion's code passes: its last block of Python, or the whole of it where it has no block.

    The row's ``column`` holds the tests, or its columns are a published layout (docs/data_and_rewards.md). ``give`` is ``all``
    (1 if all pass, else 0) or ``fraction``. Each test is a program of its own, bounded by ``limit`` seconds and ``memory_mb``;
    ``sandbox`` and ``packages`` are :func:`~penstock.sandbox.open_sandbox`'s, ``processes`` programs run at once. An async
    reward function of one sample.
    """

    def __init__(
        self, deadline: float, *, column: str = "tests", sandbox: str = "jail", give: str = "all", limit: float = 5.0,
        memory_mb: int = 512, packages: Sequence[str] = (), processes: int | None = None,
    ) -> None:  # fmt: skip
        numbers = isinstance(limit, int | float) and limit > 0 and isinstance(memory_mb, int) and processes != 0
        if not numbers or not isinstance(column, str):
            found = f"limit={limit!r}, memory_mb={memory_mb!r}, processes={processes!r}, column={column!r}"
            raise SpecError(f"reward code: {found}; give positive numbers, and a column's name")
        if give not in ("all", "fraction"):
            raise SpecError(f'reward code: give="{give}" is unknown; use all or fraction')
        if memory_mb < LEAST_MB:
            raise SpecError(
                f"reward code: memory_mb={memory_mb} is too little for Python and the judge; use {LEAST_MB} at least"
            )
        self._column, self._fraction = column, give == "fraction"
        seconds = min(limit, deadline)
        limits = Limits(seconds=seconds, cpu_seconds=int(seconds) + 1, memory_bytes=memory_mb * 2**20)
        self._sandbox = open_sandbox(sandbox, size=processes, limits=limits, packages=tuple(packages))

    async def __call__(self, sample: Sample, columns: Mapping[str, Any]) -> float:
        """0 to 1; a program that fails, hangs or is ended passes nothing.

        Raises:
            RewardError: the row has no tests, or tests that cannot be read or carried out, or that assert nothing.
            SandboxError: the sandbox failed, so that nothing is known of the program.
        """
        tests = read_tests(columns, self._column)
        code = find_code(sample.text, tests.names)
        if not code.strip():
            return 0.0
        if self._fraction:
            verdicts = await asyncio.gather(*(self._verdict(tests.before, code, case) for case in tests.cases))
        else:
            verdicts = []
            for case in tests.cases:
                verdicts.append(await self._verdict(tests.before, code, case))
                if verdicts[-1] == "failed":  # the first failure decides
                    return 0.0
        counted = [verdict == "passed" for verdict in verdicts if verdict != "skipped"]
        if not counted:
            raise RewardError(_NOTHING.format(where="all tests of the row are skipped"))
        return sum(counted) / len(counted)

    async def _verdict(self, before: str, code: str, case: Case) -> str:
        """``passed``, ``failed`` or ``skipped``."""
        if isinstance(case, Pair):
            started = f"exec({before!r})\nexec(compile({code!r}, 'main.py', 'exec'))" if before else code
            outcome = await self._sandbox.run(Program(code=started, stdin=case.given))
            return "passed" if outcome.ok and prints(outcome.stdout, case.wanted, case.rule) else "failed"
        pieces = [before + code] if parsed(code) is None else [before, code]  # what is no code goes on where a prompt ends
        files = {**_HARNESS, "solution.json": json.dumps(pieces).encode()}
        given = {"given": before} if isinstance(case, Asserts) and before else {}
        program = Program(code=_START, stdin=json.dumps(dataclasses.asdict(case) | given), files=files)
        try:
            answer = json.loads((await self._sandbox.run(program)).stdout)
        except ValueError:  # it was ended
            return "failed"
        if answer["verdict"] == "unsupported":
            raise RewardError(f"a test cannot be carried out: {answer['why']}")
        if answer["verdict"] == "nothing":
            assert isinstance(case, Asserts)
            raise RewardError(_NOTHING.format(where=case.only or case.code.strip()[-80:]))
        return str(answer["verdict"])

    def close(self) -> None:
        """End the sandbox's processes."""
        self._sandbox.close()


def find_code(text: str, names: Collection[str] = ()) -> str:
    """The last block of Python that defines one of the ``names``, or the last at all; the whole text where it has no block.

    Blocks may be unclosed, in lists and quotes, and are marked as Python; or as nothing, if they are Python and no data. What
    comes before the end of the model's thoughts is none of the answer.
    """
    text = _THOUGHT.sub("", text.replace("\r\n", "\n"), count=1)
    if tagged := _ANSWER.findall(text):
        text = tagged[-1]
    found: list[str] = []
    for written in (text, _LAZY.sub("\n", text), _LAZY.sub("\n", _FENCE.sub(r"\1\n\2\3", text))):
        blocks = _blocks(written)
        found = [block for block in blocks if any(_defines(name, block) for name in names)] or blocks or found
        if found and parsed(found[-1]) is not None:
            break
    inline = re.fullmatch(r"\s*(`{1,3})(?:python\s|py\s)?([^`]+)\1\s*", text)
    return found[-1] if found else inline[2] if inline else text


def _defines(name: str, code: str) -> bool:
    return bool(re.search(rf"^\s*(?:async )?(?:def|class) +{re.escape(name)}\b|^{re.escape(name)} *[:=]", code, re.MULTILINE))


def _blocks(text: str) -> list[str]:
    """The blocks that may be the answer; of those without a mark the last, where no block is Python for certain."""
    fences = [token for token in _READER.parse(text) if token.type == "fence" and token.content.strip()]
    marked = [token.content for token in fences if _PYTHON.match(token.info)]
    bare = [token.content for token in fences if not token.info.strip()]
    return marked or list(filter(_does, bare)) or bare[-1:]


def _does(code: str) -> bool:
    """Whether it is Python that does something, which no output or input of a program does."""
    tree = parsed(code)
    idle = (ast.Constant, ast.Name, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.UnaryOp, ast.BinOp, ast.Attribute)
    return tree is not None and any(not (isinstance(each, ast.Expr) and isinstance(each.value, idle)) for each in tree.body)

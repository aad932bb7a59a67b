"""Code as an answer, judged by the prompt's tests in a sandbox. No verdict is made where the tested code could make it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.core.errors import RewardError, SpecError
from penstock.sandbox import Limits, Program, open_sandbox

if TYPE_CHECKING:
    from penstock.core.types import Sample

_BLOCK = re.compile(r"```(?:python|py|python3)?[ \t]*\n(.*?)(?:\n```|\Z)", re.DOTALL)
_HARNESS = Path(__file__).with_name("assertions.py")


class CodeReward:
    """How many of a prompt's tests a completion's last code block passes, or the whole completion where it has no block.

    The row's ``column`` holds the tests, as values or as JSON: ``{"input": …, "output": …}`` pairs of standard input and
    output (lists ``inputs`` and ``outputs`` too), or pieces of code with assertions. ``give`` is ``all`` (1 if all pass, else
    0) or ``fraction``. ``limit`` seconds and ``memory_mb`` bound each run; ``sandbox`` and ``packages`` are
    :func:`~penstock.sandbox.open_sandbox`'s, ``processes`` programs run at once. An async reward function of one sample.
    """

    def __init__(
        self, deadline: float, *, column: str = "tests", sandbox: str = "jail", give: str = "all", limit: float = 5.0,
        memory_mb: int = 512, packages: Sequence[str] = (), processes: int | None = None,
    ) -> None:  # fmt: skip
        if give not in ("all", "fraction"):
            raise SpecError(f'reward code: give="{give}" is unknown; use all or fraction')
        self._column, self._fraction = column, give == "fraction"
        seconds = min(limit, deadline)
        limits = Limits(seconds=seconds, cpu_seconds=int(seconds) + 1, memory_bytes=memory_mb * 2**20)
        self._sandbox = open_sandbox(sandbox, size=processes, limits=limits, packages=tuple(packages))

    async def __call__(self, sample: Sample, columns: Mapping[str, Any]) -> float:
        """0 to 1; a program that fails, hangs or is ended passes nothing.

        Raises:
            RewardError: the row has no tests, or tests that cannot be read or carried out.
            SandboxError: the sandbox failed, so that nothing is known of the program.
        """
        pairs, assertions = read_tests(columns, self._column)
        code = find_code(sample.text)
        if not code.strip():
            return 0.0
        passed = await self._pairs(code, pairs)
        if assertions and (self._fraction or passed == len(pairs)):
            passed += await self._assertions(code, assertions)
        share = passed / (len(pairs) + len(assertions))
        return share if self._fraction else float(share == 1)

    async def _pairs(self, code: str, pairs: Sequence[tuple[str, str]]) -> int:
        async def passes(pair: tuple[str, str]) -> bool:
            outcome = await self._sandbox.run(Program(code=code, stdin=pair[0]))
            return outcome.ok and _lines(outcome.stdout) == _lines(pair[1])

        if self._fraction:
            return sum(await asyncio.gather(*map(passes, pairs)))
        for count, pair in enumerate(pairs):  # the first failure decides
            if not await passes(pair):
                return count
        return len(pairs)

    async def _assertions(self, code: str, assertions: Sequence[str]) -> int:
        program = Program(
            code=_HARNESS.read_text(encoding="utf-8"), stdin=json.dumps(assertions), files={"solution.py": code.encode()}
        )
        lines = (await self._sandbox.run(program)).stdout.splitlines()
        for line in lines:
            if line.startswith("unsupported: "):
                raise RewardError(f"a test cannot be carried out: {line.removeprefix('unsupported: ')}")
        return sum(line == "1" for line in lines[: len(assertions)])

    def close(self) -> None:
        """End the sandbox's processes."""
        self._sandbox.close()


def find_code(text: str) -> str:
    """The last fenced block of a text, also one that is cut off; the whole text where there is none."""
    blocks = _BLOCK.findall(text)
    return blocks[-1] if blocks else text


def read_tests(columns: Mapping[str, Any], column: str) -> tuple[list[tuple[str, str]], list[str]]:
    """The pairs of input and output, and the assertions, of a row.

    Raises:
        RewardError: there are none, or they have another form.
    """
    tests: Any = columns.get(column)
    if isinstance(tests, str) and tests.lstrip()[:1] in ("[", "{"):
        with contextlib.suppress(ValueError):  # a piece of code may begin with a bracket too
            tests = json.loads(tests)
    if isinstance(tests, Mapping) and {"inputs", "outputs"} <= tests.keys():
        if len(tests["inputs"]) != len(tests["outputs"]):
            raise RewardError(f'column "{column}" has {len(tests["inputs"])} inputs and {len(tests["outputs"])} outputs')
        tests = [{"input": given, "output": wanted} for given, wanted in zip(tests["inputs"], tests["outputs"], strict=True)]
    listed = list(tests) if isinstance(tests, list | tuple) else [tests]
    pairs = [(str(test["input"]), str(test["output"])) for test in listed if _is_pair(test)]
    assertions = [test for test in listed if isinstance(test, str) and test.strip()]
    if not listed or len(pairs) + len(assertions) != len(listed):
        raise RewardError(
            f'column "{column}" holds no tests; give a list of {{"input": …, "output": …}} or of code with assertions, '
            f"or name another column; columns there are: {', '.join(map(str, columns))}"
        )
    return pairs, assertions


def _is_pair(test: Any) -> bool:
    return isinstance(test, Mapping) and {"input", "output"} <= test.keys()


def _lines(text: str) -> list[str]:
    """Lines without space at their ends, and without empty ones at the end of the text."""
    return [line.rstrip() for line in text.rstrip().splitlines()]

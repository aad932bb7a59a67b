"""Code judged by tests: what passes, what does not, and verdicts that the tested code tries to make itself."""

# ruff: noqa: E501 - programs of one line each

from __future__ import annotations

import asyncio
import contextlib
import sys

import pytest
from code_examples import judging
from reward_examples import make_group, make_sample, score

from penstock.config.run import RewardSpec
from penstock.core.errors import RewardError, SpecError
from penstock.rewards.code import CodeReward
from penstock.rewards.runner import Mixture

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the jail needs Linux")
PAIRS = [{"input": "1 2\n", "output": "3\n"}, {"input": "-5 5", "output": "0"}]
ADDS = "a, b = map(int, input().split())\nprint(a + b)"


judged = pytest.fixture(scope="module")(judging)

DEFINES = (
    "LIMIT = 3\ndef double(x): return x * 2\nclass Stack:\n    def __init__(self): self.items = []\n"
    "    def push(self, x): self.items.append(x); return self"
)
ASSERTED = ["assert double(2) == 4", "assert double([1]) == [1, 1] and double('a') == 'aa'", "assert LIMIT == 3",
            "s = Stack()\ns.push((1, 2)).push({'k': {3}})\nassert s.items == [(1, 2), {'k': {3}}] and len(s.items) == 2"]  # fmt: skip
RAISED = "try:\n    f()\nexcept ValueError as error:\n    assert str(error) == 'no'\nelse:\n    assert False"
JUDGED = {
    "a program that answers every input": (f"Here:\n```python\n{ADDS}\n```\nDone.", PAIRS, "all", 1.0),
    "space at the ends of lines and of the output": ("print('3  ');print()", [{"input": "", "output": "3"}], "all", 1.0),
    "one wrong answer fails all": ("print(3)", PAIRS, "all", 0.0),
    "one wrong answer costs its fraction": ("print(3)", PAIRS, "fraction", 0.5),
    "the right output and an exit code": ("print(3)\nraise SystemExit(1)", PAIRS[:1], "all", 0.0),
    "the right output and an error": ("print(3)\n1 / 0", PAIRS[:1], "all", 0.0),
    "the right output and a signal": ("print(3)\nimport os; os.kill(os.getpid(), 9)", PAIRS[:1], "all", 0.0),
    "assertions over what the code defines": (DEFINES, ASSERTED, "all", 1.0),
    "each assertion for itself": (
        "def f(x): return x", ["assert f(1) == 1", "assert f(1) == 2", "assert f(2) == 2"], "fraction", 2 / 3,
    ),
    "a list that is changed in place": ("def f(x): x.sort()", ["a = [3, 1]\nf(a)\nassert a == [1, 3]"], "all", 1.0),
    "exceptions of the code reach the test": ("def f(): raise ValueError('no')", [RAISED], "all", 1.0),
    "a function with a checker as of HumanEval": (
        "def add(a, b): return a + b", ["def check(candidate):\n    assert candidate(2, 3) == 5\ncheck(add)"], "all", 1.0,
    ),
    "an answer without code": ("", PAIRS, "all", 0.0),
}  # fmt: skip


@pytest.mark.parametrize("case", JUDGED)
def test_code_is_worth_what_its_tests_say(judged, case):
    code, tests, give, worth = JUDGED[case]
    assert judged(code, tests, give) == pytest.approx(worth)


NOTHING = {
    "definitions alone": "def check(candidate):\n    assert candidate(1) == 2",
    "a number": "3",
    "a comparison without assert": "f(1) == 2",
    "a comparison without assert next to one with it": "assert f(1) == 2\nf(2) == 3",
    "comparisons in a value": "same = f(1) == 2 and f(2) == 3",
    "a test that only calls": "def test_it():\n    f(1)",
    "all are skipped": "import pytest\n@pytest.mark.skip(reason='slow')\ndef test_it():\n    assert f(1) == 2",
    "all skip": "import unittest\nclass TestF(unittest.TestCase):\n    @unittest.skip('no')\n    def test_it(self): self.assertEqual(f(1), 2)",
    "skips when it runs": "import pytest\ndef test_it():\n    pytest.skip('no')\n    assert f(1) == 2",
    "an assert in a branch that is not taken": "if f(1) == 99:\n    assert f(2) == 3",
    "an assert whose failure is swallowed": "try:\n    assert f(1) == 99\nexcept Exception:\n    pass",
    "a class without a method that is called": "class Helper:\n    def check(self): assert f(1) == 2",
    "a helper that asserts nothing": "def assert_it(x): pass\nassert_it(f(1))",
    "an error that any error is": "try:\n    f(None)\n    assert False\nexcept Exception:\n    pass",
}


@pytest.mark.parametrize("name", NOTHING)
def test_a_test_that_asserts_nothing_is_an_error_of_the_row(judged, name):
    with pytest.raises(RewardError, match="assert"):
        judged("def f(x): return x + 1", NOTHING[name])


ASSERTING = {
    "an assert": "assert f(1) == 2",
    "a function that is called": "def test_it():\n    assert f(1) == 2\ntest_it()",
    "a function that is not called": "def test_it():\n    assert f(1) == 2",
    "a coroutine": "import asyncio\nasync def test_it():\n    await asyncio.sleep(0)\n    assert f(1) == 2",
    "a checker that is called": "def check(candidate):\n    assert candidate(1) == 2\ncheck(f)",
    "a decision to raise": "if f(1) != 2:\n    raise ValueError",
    "a decision to fail": "if f(1) != 2:\n    assert False, 'no'",
    "a decision to fail as pytest does": "import pytest\nif f(1) != 2:\n    pytest.fail('no')",
    "an error that must come": "try:\n    f('a')\n    assert False\nexcept TypeError:\n    pass",
    "unittest": "import unittest\nclass Cases(unittest.TestCase):\n    def test_it(self): self.assertEqual(f(1), 2)",
    "unittest with parts": "import unittest\nclass TestF(unittest.TestCase):\n    def test_it(self):\n        for i in range(3):\n            with self.subTest(i=i): self.assertEqual(f(i), i + 1)\nunittest.main()",
    "pytest's raises": "import pytest\ndef test_it():\n    with pytest.raises(TypeError):\n        f('a')",
    "one of two is skipped": "import pytest\ndef test_a():\n    assert f(1) == 2\n@pytest.mark.skipif(True, reason='no')\ndef test_b():\n    assert f(1) == 3",
    "a list that is gone through": "for given, wanted in [(1, 2), (2, 3)]:\n    assert f(given) == wanted",
    "a helper of its own": "def same(a, b):\n    assert a == b\ndef test_it():\n    same(f(1), 2)",
    "a module that the test imports itself": "import math\nassert math.isclose(f(1), 2)",
    "a module that nobody imports": "assert math.isclose(f(1), 2)",
}  # fmt: skip


@pytest.mark.parametrize("name", ASSERTING)
def test_a_test_that_asserts_passes_right_code_alone(judged, name):
    assert judged("def f(x): return x + 1", ASSERTING[name]) == 1.0
    assert judged("def f(x): return 0", ASSERTING[name]) == 0.0
    assert judged("g = 1", ASSERTING[name]) == 0.0


def test_a_list_that_should_have_been_gone_through_and_is_empty_fails(judged):
    test = "for got, wanted in zip(f(1), [1, 2]):\n    assert got == wanted"
    assert (judged("def f(x): return [1, 2]", test), judged("def f(x): return []", test)) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("test", "said"),
    [
        ("import not_there\nassert f(1) == 2", "imports not_there"),
        ("from unittest.mock import patch\nassert f(1) == 2", "unittest.mock"),
        ("import pytest\ndef test_it(monkeypatch):\n    assert f(1) == 2", 'fixture "monkeypatch"'),
        ("import pytest\ndef test_it():\n    with pytest.warns(UserWarning):\n        f(1)", "pytest.warns"),
        ("class Own(f):\n    pass\nassert Own", "derives a class"),
    ],
    ids=["a package", "mocks", "a fixture", "warnings", "a derived class"],
)
def test_what_a_test_needs_and_is_not_there_is_an_error_of_the_row(judged, test, said):
    with pytest.raises(RewardError, match=said):
        judged("def f(x): return x + 1", test)


HANGS = "def f(x):\n    while x: pass\n    return 0"


@pytest.mark.parametrize(
    "tests", [["assert f(1) == 0", "assert f(0) == 0"], ["assert f(0) == 0", "assert f(1) == 0"]], ids=["first", "last"]
)
def test_a_test_that_hangs_takes_nothing_with_it_wherever_it_is(tests):
    with contextlib.closing(CodeReward(60.0, give="fraction", limit=0.5, processes=2)) as made:
        assert asyncio.run(made(make_sample(HANGS), {"tests": tests})) == 0.5
        functions = "\n".join(f"def test_{number}():\n    {each}" for number, each in enumerate(tests))
        assert asyncio.run(made(make_sample(HANGS), {"test": functions})) == 0.5


@pytest.mark.parametrize("memory", [64, 128, 192, 256, 320])
def test_little_memory_is_enough_for_small_programs(memory):
    with contextlib.closing(CodeReward(60.0, memory_mb=memory, processes=1)) as made:
        assert asyncio.run(made(make_sample("def f(x): return 0"), {"tests": ["assert f(0) == 0"]})) == 1.0


def test_less_memory_than_python_needs_is_refused():
    with pytest.raises(SpecError, match="64 at least"):
        CodeReward(60.0, memory_mb=63)


def test_a_test_that_passes_a_function_is_an_error_and_no_failure(judged):
    with pytest.raises(RewardError, match="passes function"):
        judged("def f(g): return g(1)", ["assert f(lambda x: x) == 1"])


def test_a_run_names_it_code_and_a_sandbox_that_fails_marks_the_sample():
    spec = RewardSpec(function="code", options={"sandbox": "http://127.0.0.1:1"})
    (sample,) = score(Mixture((spec,)), make_group("print(3)", columns={"tests": PAIRS})).samples
    assert "RewardError" in sample.error
    assert "127.0.0.1:1" in sample.error


def test_unknown_options_name_the_known_ones():
    with pytest.raises(SpecError, match="use column, sandbox, give"):
        Mixture((RewardSpec(function="code", options={"language": "c"}),))
    with pytest.raises(SpecError, match="use all or fraction"):
        Mixture((RewardSpec(function="code", options={"give": "some"}),))


@pytest.mark.parametrize("wrong", [{"limit": "5"}, {"limit": 0}, {"processes": 0}, {"column": 3}])
def test_options_of_another_kind_are_refused(wrong):
    with pytest.raises(SpecError, match="give positive numbers, and a column's name"):
        CodeReward(30.0, **wrong)

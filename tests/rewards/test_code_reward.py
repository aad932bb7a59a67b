"""Code judged by tests: what passes, what does not, and verdicts that the tested code tries to make itself."""

# ruff: noqa: E501 - programs of one line each

from __future__ import annotations

import asyncio
import contextlib
import sys

import pytest
from reward_examples import make_group, make_sample, score

from penstock.config.run import RewardSpec
from penstock.core.errors import RewardError, SpecError
from penstock.rewards.code import CodeReward, find_code, read_tests
from penstock.rewards.runner import Mixture

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the jail needs Linux")
PAIRS = [{"input": "1 2\n", "output": "3\n"}, {"input": "-5 5", "output": "0"}]
ADDS = "a, b = map(int, input().split())\nprint(a + b)"


@pytest.fixture(scope="module")
def judged():
    """Score one completion by tests; the sandboxes of a module are shared by mode."""
    made = {give: CodeReward(60.0, give=give, limit=10.0, processes=2) for give in ("all", "fraction")}
    runner = asyncio.Runner()

    def once(code, tests, give="all"):
        return runner.run(made[give](make_sample(code), {"tests": tests}))

    yield once
    for each in made.values():
        each.close()
    runner.close()


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


SEARCH = """
import base64, gc
found, kram = False, "8 == )1(f tressa"
for each in gc.get_objects():
    for value in each.values() if type(each) is dict else each if type(each) in (list, tuple) else ():
        if type(value) in (str, bytes):
            text = value if type(value) is str else value.decode("latin1")
            try:
                text += base64.b64decode(value).decode("latin1")
            except ValueError:
                pass
            found = found or kram[::-1] in text
def f(x):
    return 8 if found else 0
"""
FORGERIES = {
    "prints what a judge would": "print('1\\n1\\npassed'); f = 5",
    "ends at once": "import os; print('1'); os._exit(0)",
    "ends in the call": "def f(x):\n    import os; os._exit(0)",
    "leaves in the call": "def f(x): raise SystemExit(0)",
    "is equal to everything": "class E:\n    def __eq__(self, o): return True\n    def __bool__(self): return True\ndef f(x): return E()",
    "is a number equal to everything": "class E(int):\n    def __eq__(self, o): return True\n    __hash__ = int.__hash__\ndef f(x): return E(1)",
    "is a list equal to everything": "class E(list):\n    def __eq__(self, o): return True\ndef f(x): return E()",
    "is not a number": "def f(x): return float('nan')",
    "changes the judge's builtins": "import builtins\nbuiltins.AssertionError = StopIteration\nbuiltins.all = lambda x: True\ndef f(x): return 0",
    "defines builtins of its own": "def all(x): return True\ndef isinstance(*a): return True\nclass AssertionError: pass\ndef f(x): return 0",
    "defines a module of the library": "class math:\n    isclose = lambda *a: True\ndef f(x): return 0",
    "writes a module of the library": "open('math.py', 'w').write('def isclose(*a): return True')\nopen('json.py', 'w').write('')\ndef f(x): return 0",
    "writes to every descriptor": "import os\nfor n in range(64):\n    try: os.write(n, b'1\\n1\\n')\n    except OSError: pass\ndef f(x): return 0",
    "finds the judge among its frames": "import sys, gc\nframe = sys._getframe()\nwhile frame: frame.f_globals['judge'] = None; frame = frame.f_back\ndef f(x): return 0",
    "kills its parent": "import os\nprint(1)\nos.kill(os.getppid(), 9)\ndef f(x): return 0",
    "reads the tests": "import sys\ntext = sys.stdin.read()\ndef f(x): return 7 if 'assert' in text or text else 0",
    "looks for the tests in its memory": SEARCH,
    "answers before it is asked": "import os\nfor n in range(3, 9):\n    try: os.write(n, b'{\"f\": 1}\\n' + b'{\"value\": 7, \"arguments\": [\"tuple\", 1]}\\n' * 9)\n    except OSError: pass\ndef f(x): return 0",
    "ends the judge's loop": "def f(x): raise StopIteration",
    "names itself among the judge's": "def f(x): return 0\nRemote = judge = os = space = verdicts = None",
}  # fmt: skip


@pytest.mark.parametrize("forgery", FORGERIES)
def test_no_verdict_is_made_by_the_tested_code(judged, forgery):
    tests = [
        "assert f(1) == 8",
        "import math\nassert math.isclose(f(1), 8)",
        "assert all(f(i) == 8 for i in range(2))",
        "assert all(map(lambda i: f(i) == 8, range(2)))",
    ]
    assert judged(FORGERIES[forgery], tests, "fraction") == 0.0


def test_a_hanging_program_fails_in_time_and_what_passed_before_counts_as_a_fraction(judged):
    code = "def f(x):\n    while x: pass\n    return 0"
    with contextlib.closing(CodeReward(60.0, give="fraction", limit=1.0, processes=1)) as made:
        passed = asyncio.run(made(make_sample(code), {"tests": ["assert f(0) == 0", "assert f(1) == 0"]}))
    assert passed == 0.5


def test_a_test_that_passes_a_function_is_an_error_and_no_failure(judged):
    with pytest.raises(RewardError, match="passes function"):
        judged("def f(g): return g(1)", ["assert f(lambda x: x) == 1"])


@pytest.mark.parametrize("tests", [None, [], [3], {"a": 1}, "", [{"input": "x"}], {"inputs": ["a"], "outputs": []}])
def test_rows_without_readable_tests_are_errors(tests):
    with pytest.raises(RewardError, match='column "tests"'):
        read_tests({"tests": tests}, "tests")


def test_tests_are_read_from_json_and_from_lists_of_inputs_and_outputs():
    assert read_tests({"tests": '{"inputs": ["1"], "outputs": [2]}'}, "tests") == ([("1", "2")], [])
    assert read_tests({"tests": '["assert f(1)"]'}, "tests") == ([], ["assert f(1)"])
    assert read_tests({"tests": "[f(1)] == [2] or fail"}, "tests") == ([], ["[f(1)] == [2] or fail"])


def test_the_last_block_counts_also_one_that_is_cut_off():
    assert find_code("```python\na\n```\ntext\n```\nb\n```") == "b"
    assert find_code("```py\na\nb") == "a\nb"
    assert find_code("x = 1") == "x = 1"


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

"""Rows as published data sets have them: right code passes, wrong code does not, and what cannot be carried out is refused by name."""

# ruff: noqa: E501 - rows as they are published

from __future__ import annotations

import base64
import json
import sys

import pytest
from code_examples import judging

from penstock.core.errors import RewardError
from penstock.rewards.code_tests import Call, Pair, prints, read_tests

linux = pytest.mark.skipif(sys.platform != "linux", reason="the jail needs Linux")
judged = pytest.fixture(scope="module")(judging)

HUMAN_EVAL = {
    "task_id": "HumanEval/23",
    "prompt": '\n\ndef strlen(string: str) -> int:\n    """ Return length of given string\n    >>> strlen(\'\')\n    0\n    """\n',
    "entry_point": "strlen",
    "canonical_solution": "    return len(string)\n",
    "test": "\n\nMETADATA = {\n    'author': 'jt',\n    'dataset': 'test'\n}\n\n\ndef check(candidate):\n    assert candidate('') == 0\n    assert candidate('x') == 1\n",
}
HELPED = {
    "prompt": 'from typing import List\n\ndef twice(x):\n    return 2 * x\n\ndef doubled(xs: List[int]) -> List[int]:\n    """ Doubles all. """\n',
    "entry_point": "doubled",
    "test": "def check(candidate):\n    assert candidate([1, 2]) == [2, 4]\n",
}
MBPP = {
    "task_id": 126, "text": "Write a python function to find the sum of common divisors of two given numbers.",
    "code": "", "test_setup_code": "", "challenge_test_list": [],
    "test_list": ["assert sum(10,15) == 6", "assert sum(100,150) == 93", "assert sum(4,6) == 3"],
}  # fmt: skip
DIVISORS = "def sum(a, b):\n    total = 0\n    for i in range(1, min(a, b) + 1):\n        if a % i == 0 and b % i == 0:\n            total += i\n    return total"
TREE = {
    "text": "Write a function to find the height.", "challenge_test_list": ["assert height(Node(1)) == 1"],
    "test_setup_code": "root = Node(1)\r\nroot.left = Node(2)\r\nroot.right = Node(3)\r\nroot.left.left = Node(4)", "test_list": ["assert (height(root)) == 3"],
}  # fmt: skip
NODES = "class Node:\n    def __init__(self, data):\n        self.data, self.left, self.right = data, None, None\ndef height(n):\n    return 0 if n is None else 1 + max(height(n.left), height(n.right))"
SANITIZED = {
    "prompt": "Write a function.",
    "test_imports": ["import math"],
    "test_list": ["assert math.isclose(area(2), 12.566370614359172, rel_tol=0.001)"],
}
ADD = "def add(a, b): return a + b"
LEET = "class Solution:\n    def add(self, nums: List[int], k: int) -> int:\n        return sum(nums) + k"
STDIN = "a, b = map(int, input().split())\nprint(a + b)"
KODCODE = {
    "style": "instruct", "question": "…", "solution": ADD, "test_info": [{"function_name": "add"}],
    "test": "import pytest\nfrom solution import add\n\ndef test_ints():\n    assert add(1, 2) == 3\n\n@pytest.mark.parametrize('a, b, c', [(1, 1, 2), ('a', 'b', 'ab')])\ndef test_many(a, b, c):\n    assert add(a, b) == c\n\ndef test_error():\n    with pytest.raises(TypeError, match='unsupported'):\n        add(1, 'a')\n\nclass TestFloats:\n    def setup_method(self):\n        self.x = 0.1\n    def test_it(self):\n        assert add(self.x, 0.2) == pytest.approx(0.3)\n",
}  # fmt: skip
FIXTURES = "import pytest\nfrom solution import add\n@pytest.fixture\ndef two():\n    yield 2\ndef test_it(two):\n    assert add(two, two) == 4"
UNIT = "import unittest\nclass TestAdd(unittest.TestCase):\n    def setUp(self): self.one = 1\n    def test_a(self): self.assertEqual(add(self.one, 2), 3)\n    def test_b(self):\n        with self.assertRaises(TypeError): add(1, 'a')\nif __name__ == '__main__':\n    unittest.main()"


def synthetic(*cases, language="python"):
    return {"task_type": "verifiable_code", "verification_info": repr({"language": language, "test_cases": list(cases)})}


LIVE = {
    "question_content": "…", "starter_code": "", "metadata": json.dumps({"func_name": "add"}),
    "public_test_cases": json.dumps([{"input": "[1, 2]\n3", "output": "6", "testtype": "functional"}]),
    "private_test_cases": json.dumps([{"input": "[]\n3", "output": "3", "testtype": "functional"}]),
}  # fmt: skip
LIVE_STDIN = {"metadata": "{}", "public_test_cases": json.dumps([{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}])}
CONTESTS = {
    "public_tests": {"input": ["1 2\n"], "output": ["3\n"]}, "private_tests": {"input": [], "output": []},
    "generated_tests": {"input": ["2 2\n"], "output": ["4\n"]}, "time_limit": None, "input_file": "", "output_file": "",
}  # fmt: skip

ROWS = {
    "HumanEval, the whole function": (HUMAN_EVAL, "def strlen(string):\n    return len(string)", "def strlen(string):\n    return 0"),
    "HumanEval, a continuation": (HUMAN_EVAL, "    return len(string)\n", "    return 0\n"),
    "HumanEval, no function": (HUMAN_EVAL, "    return len(string)", "x = 1"),
    "HumanEval, helpers of the prompt": (HELPED, "```python\ndef doubled(xs: List[int]) -> List[int]:\n    return [twice(x) for x in xs]\n```", "```python\ndef doubled(xs): return xs\n```"),
    "HumanEval under chat": ({**HUMAN_EVAL, "prompt": [{"role": "user", "content": "…"}]}, "def strlen(s): return len(s)", "def strlen(s): return 0"),
    "MBPP, a builtin's name": (MBPP, DIVISORS, "def sum(a, b): return 6"),
    "MBPP, setup and challenge": (TREE, NODES, NODES.replace("1 + max", "max")),
    "MBPP sanitized": (SANITIZED, "def area(r): return 3.14159265 * r * r", "def area(r): return 12"),
    "APPS, a call": ({"input_output": json.dumps({"fn_name": "add", "inputs": [[1, 2], [3, 4]], "outputs": [3, 7]})}, ADD, "def add(a, b): return 3"),
    "APPS, wrapped": ({"input_output": json.dumps({"fn_name": "add", "inputs": [[1, 2]], "outputs": [[3]]})}, ADD, "def add(a, b): return 4"),
    "APPS, pairs as tuples": ({"input_output": json.dumps({"fn_name": "f", "inputs": [[2]], "outputs": [[[[1, 2], [3, 4]]]]})}, "def f(x): return [(1, 2), (3, 4)]", "def f(x): return [(1, 2)]"),
    "APPS, numbers as keys": ({"input_output": json.dumps({"fn_name": "f", "inputs": [[{"1": 5}]], "outputs": [5]})}, "def f(d): return d[1]", "def f(d): return d['1']"),
    "TACO, a method": ({"input_output": json.dumps({"fn_name": "add", "inputs": [[[1, 2], 3]], "outputs": [6]})}, LEET, LEET.replace("+ k", "- k")),
    "APPS, input and output": ({"input_output": json.dumps({"inputs": ["1 2\n"], "outputs": ["3\n"]})}, STDIN, "print(4)"),
    "APPS, lists of lines": ({"input_output": json.dumps({"inputs": [["1 2", "3"]], "outputs": [["3", "0.5"]]})}, f"{STDIN}\nprint(0.50000001)", f"{STDIN}\nprint(0.6)"),
    "LiveCodeBench, functional": (LIVE, LEET, LEET.replace("sum(nums)", "6 - k")),
    "LiveCodeBench, stdin": (LIVE_STDIN, STDIN, "print(3.5)"),
    "KodCode": (KODCODE, ADD, "def add(a, b): return 3"),
    "KodCode, fixtures": ({"test": FIXTURES}, ADD, "def add(a, b): return 3"),
    "KodCode, unittest": ({"test": UNIT}, ADD, "def add(a, b): return 3"),
    "KodCode, the older column": ({"test_code": "from solution import add\ndef test_it():\n    assert add(1, 2) == 3"}, ADD, "def sub(a, b): return 3"),
    "SYNTHETIC-1, a call": (synthetic({"type": "function_call", "fn_name": "add", "input": [1, 2], "output": 3}), ADD, "def add(a, b): return 4"),
    "SYNTHETIC-1, any class": (synthetic({"type": "function_call", "fn_name": "add", "input": [1, 2], "output": "3"}), "class Adder:\n    def add(self, a, b): return a + b", "class Adder: pass"),
    "SYNTHETIC-1, stdin": (synthetic({"type": "stdin_stdout", "fn_name": None, "input": "1 2", "output": " 3 "}), STDIN, "print(3.0)"),
    "Eurus-2, stdin": ({"ability": "code", "reward_model": {"style": "rule", "ground_truth": json.dumps({"inputs": ["1 2"], "outputs": ["3"]})}}, STDIN, "print(4)"),
    "Eurus-2, arguments as lines of JSON": ({"reward_model": {"ground_truth": json.dumps({"fn_name": "add", "inputs": ["1\n2"], "outputs": ["3"]})}}, ADD, "def add(a, b): return 12"),
    "PRIME's ground truth alone": ({"ground_truth": json.dumps({"fn_name": "add", "inputs": ['"1"\n"2"'], "outputs": ['"12"']})}, ADD, "def add(a, b): return 12"),
    "DeepCoder, dictionary": ({"tests": json.dumps({"fn_name": "add", "inputs": [[1, 2]], "outputs": [[3]]})}, ADD, "def add(a, b): return 4"),
    "DeepCoder, LiveCodeBench's": ({"tests": json.dumps([{"input": "[1, 2]\n3", "output": "6", "testtype": "functional", "metadata": {"func_name": "add"}}])}, LEET, "class Solution: pass"),
    "DeepCoder, stdin": ({"tests": json.dumps([{"input": "1 2", "output": "3", "testtype": "stdin", "metadata": {"func_name": None}}])}, STDIN, "print('three')"),
    "DeepCoder, PrimeIntellect's": ({"tests": [{"type": "function_call", "fn_name": "add", "input": [1, 2], "output": [3]}]}, ADD, "def add(a, b): return 4"),
    "DeepCoder, Codeforces'": ({"tests": [{"input": "1 2", "output": "3"}]}, STDIN, "print(4)"),
    "CodeContests": (CONTESTS, STDIN, "print(3)"),
    "Codeforces": ({"official_tests": [{"input": "1 2", "output": "3"}], "input_mode": "stdio", "interaction_format": None, "generated_checker": None}, STDIN, "print(4)"),
    "HumanEval's check in a column of one's own": ({"tests": "def check(candidate):\n    assert candidate(1, 2) == 3", "entry_point": "add"}, ADD, "def add(a, b): return 4"),
    "HumanEval's check in a column of one's own, a continuation": ({"tests": "def check(candidate):\n    assert candidate(1, 2) == 3", "entry_point": "add", "prompt": 'def add(a, b):\n    """ Adds. """\n'}, "    return a + b", "    return 4"),
    "a function that a test calls": ({"tests": "def test_it():\n    assert add(1, 2) == 3"}, ADD, "def add(a, b): return 4"),
}  # fmt: skip


@linux
@pytest.mark.parametrize("name", ROWS)
def test_right_code_passes_and_wrong_code_does_not(judged, name):
    row, right, wrong = ROWS[name]
    assert (judged(right, **row), judged(wrong, **row), judged("y = 1", **row)) == (1.0, 0.0, 0.0)


def ground(**truth):
    return {"reward_model": {"ground_truth": json.dumps(truth)}}


REFUSED = {
    "HumanEval+": ({"prompt": "", "entry_point": "f", "test": "x", "base_input": [], "plus_input": []}, "pickled cache"),
    "BigCodeBench": ({"instruct_prompt": "", "test": "x", "entry_point": "task_func"}, "BigCodeBench"),
    "LiveCodeBench, pickled": ({**LIVE, "private_test_cases": base64.b64encode(b"x").decode()}, "pickle"),
    "LiveCodeBench without a name": ({**LIVE, "metadata": "{}"}, "func_name"),
    "Codeforces, interactive": ({"official_tests": [], "interaction_format": "…"}, "interactive"),
    "Codeforces with a checker": ({"official_tests": [], "generated_checker": "…"}, "checker"),
    "SWE": ({"FAIL_TO_PASS": "[]", "patch": "", "test_patch": ""}, "container"),
    "SYNTHETIC-1, mathematics": ({"task_type": "verifiable_math", "verification_info": "{}"}, "the reward math"),
    "SYNTHETIC-1, Rust": (synthetic({"type": "stdin_stdout", "input": "", "output": "1"}, language="rust"), "rust"),
    "CodeContests, a file": ({**CONTESTS, "input_file": "in.txt"}, "in.txt"),
    "mathematics among code": ({"reward_model": {"style": "rule", "ground_truth": "42"}}, "reward math"),
    "no tests": ({"prompt": "x", "solution": "y"}, 'column "tests" holds no tests'),
    "an empty list": ({"tests": []}, "no tests"),
    "no inputs": (ground(inputs=[], outputs=[]), "no tests"),
    "an empty text": ({"input_output": ""}, "input_output"),
    "an unknown key": ({"tests": [{"input": "1", "output": "2", "checker": "x", "weight": 2}]}, "unknown keys checker, weight"),
    "an unknown key of APPS": ({"input_output": json.dumps({"inputs": ["1"], "outputs": ["2"], "method": "f"})}, "unknown keys method"),
    "an unknown type": ({"tests": [{"input": "1", "output": "2", "type": "interactive"}]}, "interactive"),
    "a number for an output": ({"tests": [{"input": "1", "output": 2}]}, "2 is no text"),
    "a number for an input": ({"tests": [{"input": 1, "output": "2"}]}, "1 is no text"),
    "a bool for outputs": ({"tests": {"inputs": ["1"], "outputs": True}}, "lists of one length"),
    "a bool for an output": ({"tests": {"inputs": ["1"], "outputs": [True]}}, "True is no text"),
    "nothing for an output": ({"tests": [{"input": "1", "output": None}]}, "None is no text"),
    "numbers in lines": ({"tests": [{"input": [1, 2], "output": "3"}]}, "no list of lines"),
    "fewer outputs": ({"tests": {"inputs": ["1", "2"], "outputs": ["1"]}}, "lists of one length"),
    "an argument that is none": (ground(fn_name="f", inputs=[1], outputs=[1]), "lines of JSON"),
    "arguments that are no JSON": (ground(fn_name="f", inputs=["abc"], outputs=["1"]), "lines of JSON"),
    "a test that is no Python": ({"tests": ["assert f( == 1"]}, "no Python"),
    "a number for a test": ({"tests": [3]}, "3 is no test"),
    "half a pair": ({"tests": [{"input": "x"}]}, "input and output"),
    "a dictionary that is none": ({"tests": {"a": 1}}, "unknown keys a"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_carried_out_is_refused_by_name(name):
    row, said = REFUSED[name]
    with pytest.raises(RewardError, match=said):
        read_tests(row, "tests")


def test_keys_that_a_table_filled_with_nothing_are_none():
    tests = read_tests({"tests": [{"input": "1", "output": "2", "fn_name": None, "weight": None}]}, "tests")
    assert tests.cases == (Pair("1", "2"),)


def test_one_layout_has_two_codings_of_arguments():
    eurus = read_tests(ground(fn_name="add", inputs=["1\n2"], outputs=["3"]), "tests")
    apps = read_tests(ground(fn_name="add", inputs=[[1, 2]], outputs=[[3]]), "tests")
    assert eurus.cases == (Call("add", [1, 2], 3, "wrapped"),)
    assert apps.cases == (Call("add", [1, 2], [3], "wrapped"),)


@pytest.mark.parametrize("row", [{"tests": [{"input": "1", "output": "1"}]}, {"mine": [{"input": "1", "output": "1"}]}])
def test_a_named_column_comes_before_published_ones(row):
    (name,) = row
    assert read_tests({**row, **MBPP}, name).cases == (Pair("1", "1"),)


OUTPUT = [
    ("lines", "3  \n\n", "3", True), ("lines", "3\n4", "3 4", False), ("lines", " 3", "3", False), ("lines", "3.0", "3", False),
    ("lines", "", "", True), ("lines", "1\n\n2", "1\n2", False),
    ("stripped", "  3 \n 4\n", "3\n4", True), ("stripped", "3.0", "3", False),
    ("close", "0.30000001", "0.3", True), ("close", "0.31", "0.3", False), ("close", "2 1", "1 2", False), ("close", "1\n\n2", "1\n2", True),
    ("close", "YES", "yes", False), ("close", "1 2", "1\n2", False), ("close", "nan", "nan", True), ("close", "1", "", False),
    ("decimal", "0.30", "0.3", True), ("decimal", "0.30000001", "0.3", False), ("decimal", "YES", "yes", False), ("decimal", "1e2", "100", True),
    ("decimal", "1\n2", "1 2", False),
    ("tokens", "YES\n1.000001", "yes 1", True), ("tokens", "1.1", "1", False), ("tokens", "a b", "a", False), ("tokens", "", "1", False),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "given", "wanted", "same"), OUTPUT)
def test_outputs_are_compared_as_each_data_set_says(rule, given, wanted, same):
    assert prints(given, wanted, rule) is same

"""Programs that want a reward which they did not earn: none gains, whichever way a test compares."""

# ruff: noqa: E501 - programs of one line each

from __future__ import annotations

import sys

import pytest
from code_examples import judging

from penstock.core.errors import RewardError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the jail needs Linux")
judged = pytest.fixture(scope="module")(judging)

FORMS = """
import fractions, math, operator, statistics
ways = [
    lambda: f(1) == 8, lambda: 8 == f(1), lambda: f(1) in [8], lambda: f(1) in {8}, lambda: {8: True}.get(f(1)),
    lambda: [f(1)] == [8], lambda: {"a": f(1)} == {"a": 8}, lambda: (f(1), f(2)) == (8, 8), lambda: not (f(1) != 8),
    lambda: abs(f(1) - 8) < 1e-6, lambda: -1e-6 < 8 - f(1) < 1e-6, lambda: math.isclose(f(1), 8), lambda: round(f(1)) == 8,
    lambda: all(f(i) == 8 for i in range(2)), lambda: all(map(lambda i: f(i) == 8, range(2))), lambda: int(f(1)) == 8,
    lambda: sorted([f(1)]) == [8], lambda: max(f(1), 7) == 8, lambda: sum([f(1)]) == 8, lambda: len([f(1)]) == 1 and f(1) == 8,
    lambda: isinstance(f(1), int) and f(1) == 8, lambda: str(f(1)) == "8", lambda: f"{f(1)}" == "8", lambda: operator.eq(f(1), 8),
    lambda: 8 <= f(1) <= 8, lambda: fractions.Fraction(8) == f(1), lambda: statistics.mean([f(1)]) == 8,
    lambda: f(1).startswith("8"), lambda: f(1).count(8) == 1, lambda: f(1).issubset({8}), lambda: repr(f(1)) == "8",
    lambda: f(1) ^ 8 == 0, lambda: f(1) % 8 == 0 and f(1) // 8 == 1, lambda: f(1).index(8) == 0, lambda: next(iter(f(1))) == 8,
]
gained = []
for number, way in enumerate(ways):
    try:
        if way():
            gained.append(number)
    except Exception:
        pass
assert gained
"""

NEEDLE = "needle = ''.join(('gai', 'ned.app', 'end'))\n"
SEARCH = (
    NEEDLE
    + """
import base64, gc
found = False
for each in gc.get_objects():
    for value in each.values() if type(each) is dict else each if type(each) in (list, tuple) else ():
        if type(value) in (str, bytes) and value != needle:
            text = value if type(value) is str else value.decode("latin1")
            try:
                text += base64.b64decode(value).decode("latin1")
            except ValueError:
                pass
            found = found or needle in text
def f(x):
    return 8 if found else 0
"""
)
PATCH = "import builtins\nbuiltins.{0} = lambda *a, **k: True\ndef f(x): return 0"
OWN = "def {0}(*a, **k): return True\ndef f(x): return 0"
ALWAYS = "class E:\n    def {0}(self, *a): return {1}\ndef f(x): return E()"
FRAME = "import sys\ndef f(x):\n    frame = sys._getframe()\n    while frame:\n        {0}\n        frame = frame.f_back\n    return 0"
PROGRAMS = {
    # builtins and modules that judge
    **{f"replaces builtins.{name}": PATCH.format(name) for name in ("abs", "isinstance", "sorted", "len", "round", "sum", "all", "any", "max", "map", "str", "int", "repr", "range")},
    **{f"defines {name}": OWN.format(name) for name in ("abs", "isinstance", "sorted", "len", "round", "sum", "all", "map", "str", "enumerate", "__import__", "__eq__")},
    "replaces AssertionError": "import builtins\nbuiltins.AssertionError = StopIteration\ndef f(x): return 0",
    "defines AssertionError": "class AssertionError(BaseException): pass\ndef f(x): raise AssertionError",
    "replaces __import__": "import builtins\nbuiltins.__import__ = lambda *a, **k: None\ndef f(x): return 0",
    "replaces math.isclose": "import math\nmath.isclose = lambda *a, **k: True\ndef f(x): return 0",
    "defines a module of the library": "class math:\n    isclose = lambda *a: True\ndef f(x): return 0",
    "replaces a module of the library": "import sys, types\nsys.modules['math'] = types.SimpleNamespace(isclose=lambda *a: True)\nimport math\ndef f(x): return 0",
    "writes modules of the library": "for name in ('math', 'operator', 'json', 'unittest', 'pytest', 'fractions', 'penstock'):\n    open(name + '.py', 'w').write('def __getattr__(n): return lambda *a, **k: True')\ndef f(x): return 0",
    "replaces operator.eq": "import operator\noperator.eq = operator.__eq__ = lambda *a: True\ndef f(x): return 0",
    "installs an import hook": "import sys\nclass Hook:\n    def find_spec(self, name, path=None, target=None):\n        import types; sys.modules[name] = types.SimpleNamespace(isclose=lambda *a: True)\nsys.meta_path.insert(0, Hook())\ndef f(x): return 0",
    "sends builtins of its own": "__builtins__ = {'abs': lambda x: 0, 'all': lambda x: True}\ndef f(x): return 0",
    "sends names with underscores": "__name__ = 'tests'\n__noted__ = gained = ways = [1]\n__import__ = None\ndef f(x): return 0",
    "names itself among the judge's": "def f(x): return 0\nRemote = judge = Judge = os = space = verdicts = solution = pytest = True",
    "is a module": "import math as f",
    "is a class that makes anything": "class f:\n    def __new__(cls, x): return object()",
    "is equal as a metaclass": "class M(type):\n    def __eq__(s, o): return True\n    __hash__ = type.__hash__\nclass E(metaclass=M): pass\ndef f(x): return E",
    # objects that compare
    **{f"has {name}": ALWAYS.format(name, value) for name, value in {"__eq__": True, "__ne__": False, "__bool__": True, "__contains__": True, "__lt__": True, "__le__": True, "__ge__": True, "__sub__": 0, "__rsub__": 0, "__abs__": 0, "__xor__": 0, "__mod__": 0, "startswith": True, "count": 1, "issubset": True, "index": 0, "__hash__": 8, "__float__": 1e300, "__round__": 7, "__index__": 7, "__int__": 7}.items()},
    "has everything": "class E:\n    def __eq__(s, o): return True\n    def __ne__(s, o): return False\n    def __sub__(s, o): return s\n    __rsub__ = __sub__\n    def __abs__(s): return s\n    def __lt__(s, o): return True\n    __le__ = __ge__ = __gt__ = __lt__\n    def __hash__(s): return hash(8)\n    def __iter__(s): return iter([s])\n    def __getattr__(s, n): return lambda *a: True\n    def __bool__(s): return True\ndef f(x): return E()",
    "is a number equal to everything": "class E(int):\n    def __eq__(self, o): return True\n    def __sub__(self, o): return 0\n    __rsub__ = __sub__\n    __hash__ = int.__hash__\ndef f(x): return E(1)",
    "is a float equal to everything": "class E(float):\n    def __eq__(self, o): return True\n    __hash__ = float.__hash__\ndef f(x): return E(1)",
    "is a text equal to everything": "class E(str):\n    def __eq__(self, o): return True\n    __hash__ = str.__hash__\n    def startswith(self, o): return True\ndef f(x): return E('x')",
    "is a list equal to everything": "class E(list):\n    def __eq__(self, o): return True\n    def count(self, o): return 1\n    def index(self, o): return 0\n    def __contains__(self, o): return True\ndef f(x): return E()",
    "is a tuple equal to everything": "class E(tuple):\n    def __eq__(self, o): return True\n    __hash__ = tuple.__hash__\ndef f(x): return E()",
    "is a dictionary equal to everything": "class E(dict):\n    def __eq__(self, o): return True\n    def __missing__(self, k): return True\ndef f(x): return E()",
    "is a set with everything": "class E(set):\n    def __eq__(self, o): return True\n    def issubset(self, o): return True\n    def __le__(self, o): return True\ndef f(x): return E({1})",
    "is a decimal equal to everything": "import decimal\nclass E(decimal.Decimal):\n    def __eq__(self, o): return True\n    def __sub__(self, o): return 0\n    __hash__ = decimal.Decimal.__hash__\ndef f(x): return E(1)",
    "is a fraction equal to everything": "import fractions\nclass E(fractions.Fraction):\n    def __eq__(self, o): return True\n    __hash__ = fractions.Fraction.__hash__\ndef f(x): return E(1)",
    "is a date equal to everything": "import datetime\nclass E(datetime.date):\n    def __eq__(self, o): return True\ndef f(x): return E(2000, 1, 1)",
    "is mock.ANY": "from unittest.mock import ANY\ndef f(x): return ANY",
    "is a MagicMock": "from unittest.mock import MagicMock\nf = MagicMock()",
    "lies about its class": "class E:\n    __class__ = int\n    def __eq__(self, o): return True\ndef f(x): return E()",
    "lies about its type's name": "class int_(int):\n    def __eq__(s, o): return True\nint_.__name__ = int_.__qualname__ = 'int'\nint_.__module__ = 'builtins'\ndef f(x): return int_(3)",
    "is an enum equal to everything": "import enum\nclass E(enum.IntEnum):\n    A = 3\n    def __eq__(s, o): return True\n    __hash__ = int.__hash__\ndef f(x): return E.A",
    "is not a number": "def f(x): return float('nan')",
    "is infinite": "def f(x): return float('inf')",
    "is a generator without end": "def f(x):\n    while True: yield 0",
    "is a named tuple with a lie": "import collections\nclass E(collections.namedtuple('E', 'a')):\n    def __eq__(s, o): return True\n    __hash__ = tuple.__hash__\ndef f(x): return E(1)",
    "makes sums of objects": "class E:\n    def __add__(s, o): return 8\n    __radd__ = __add__\ndef f(x): return E()",
    # endings
    "leaves in the call": "def f(x): raise SystemExit(0)",
    "leaves by sys.exit": "import sys\ndef f(x): sys.exit(0)",
    "leaves at once": "import sys\nsys.exit(0)",
    "ends in the call": "def f(x):\n    import os; os._exit(0)",
    "ends at once": "import os; print('1'); os._exit(0)",
    "ends at exit": "import atexit, os\natexit.register(lambda: os._exit(0))\ndef f(x): return 0",
    "ends by a signal": "import os, signal\ndef f(x): os.kill(os.getpid(), signal.SIGTERM)",
    "ends the judge's loop": "def f(x): raise StopIteration",
    "ends a generator": "def f(x): raise GeneratorExit",
    "interrupts": "def f(x): raise KeyboardInterrupt",
    "skips": "import unittest\ndef f(x): raise unittest.SkipTest",
    "raises what is not supported": "class Unsupported(Exception): pass\ndef f(x): raise Unsupported('no')",
    "imports what is not there": "def f(x):\n    import not_there_at_all",
    "asserts nothing itself": "def f(x): assert True",
    "recurses": "def f(x): return f(x)",
    # printing and writing
    "prints what a judge would": "print('{\"verdict\": \"passed\"}'); f = 5",
    "prints in the call": "def f(x):\n    print('{\"verdict\": \"passed\"}', flush=True)\n    return 0",
    "writes to every descriptor": "import os\nfor n in range(64):\n    try: os.write(n, b'{\"verdict\": \"passed\"}\\n')\n    except OSError: pass\ndef f(x): return 0",
    "opens its parent's output": "import os\ndef f(x):\n    for n in range(64):\n        try: os.write(os.open(f'/proc/{os.getppid()}/fd/{n}', os.O_WRONLY), b'{\"verdict\": \"passed\"}')\n        except OSError: pass\n    return 0",
    "writes its parent's memory": "import os\ndef f(x):\n    try: open(f'/proc/{os.getppid()}/mem', 'r+b').write(b'8')\n    except OSError: pass\n    return 0",
    "answers before it is asked": "import os\nfor n in range(3, 9):\n    try: os.write(n, b'{\"f\": 1}\\n' + b'{\"value\": 7, \"printed\": \"\"}\\n' * 99)\n    except OSError: pass\ndef f(x): return 0",
    "sends names that are none": "import os\nos.write(3, b'{\"f\": [\"object\", 0], \"__builtins__\": {}, \"a b\": 1, \"__noted__\": 1}\\n')\ndef f(x): return 0",
    "sends a type for a function": "import os\nos.write(3, b'{\"f\": [\"type\", \"type\"]}\\n')\ndef f(x): return 0",
    "sends a builtin for a function": "import os\nos.write(3, b'{\"f\": [\"type\", \"print\"]}\\n')\ndef f(x): return 0",
    "sends nonsense": "import os\nos.write(3, b'nonsense\\n')\ndef f(x): return 0",
    "sends a value nested without end": "def f(x):\n    a = []\n    a.append(a)\n    return a",
    "writes the file of its answer": "open('solution.json', 'w').write('[]')\nopen('tests.py', 'w').write('')\ndef f(x): return 0",
    # looking
    "reads the tests from its input": "import sys\ntext = sys.stdin.read()\ndef f(x): return 8 if text else 0",
    "reads the tests from the files": NEEDLE + "import glob\ntext = ''.join(open(n).read() for n in glob.glob('**/*', recursive=True) if n.endswith(('.py', '.json')))\ndef f(x): return 8 if needle in text else 0",
    "looks for the tests in its memory": SEARCH,
    "looks through the frames": FRAME.format("x = 8 if any('8 == f' in repr(v) for v in frame.f_locals.values()) and False else 0"),
    "changes globals of all frames": FRAME.format("frame.f_globals['abs'] = lambda y: 0; frame.f_globals['judge'] = None"),
    "changes builtins of all frames": FRAME.format("frame.f_builtins['isinstance'] = lambda *a: True; frame.f_builtins['abs'] = lambda y: 0"),
    "sends a name through its frame's line": "import sys\nframe = sys._getframe(1)\nframe.f_locals['self'].send({'f': 1, '__builtins__': {'abs': 0}})\ndef f(x): return 0",
    "sends a value through its frame's line": "import sys\ndef f(x):\n    frame = sys._getframe(1)\n    frame.f_locals['self'].send({'value': True, 'printed': '', 'verdict': 'passed'})\n    return 0",
    "replaces the line's coding": "import sys\nline = sys._getframe(1).f_locals['self']\ntype(line).encode = lambda s, v: ['object', 0, 'int', 7]\ndef f(x): return 0",
    "replaces the harness": "import sys\nfor name, module in list(sys.modules.items()):\n    if 'penstock' in name:\n        for each in list(vars(module)):\n            if not each.startswith('__'): setattr(module, each, None)\ndef f(x): return 0",
    "traces": "import sys\nsys.settrace(lambda *a: None)\nsys.setprofile(lambda *a: None)\ndef f(x): return 0",
    "replaces all functions that it finds": "import gc, types\nfor each in gc.get_objects():\n    if isinstance(each, types.FunctionType) and each.__name__ in ('same', 'code', 'decode', 'judge'):\n        each.__code__ = (lambda *a, **k: True).__code__\ndef f(x): return 0",
    "writes an int by ctypes": "import ctypes\nctypes.c_long.from_address(id(0) + 24).value = 8\ndef f(x): return 7",
    "replaces a type's slot by ctypes": "import ctypes\nprobe = ctypes.py_object.from_address(id(int.__dict__) + 16).value\nprobe['__custom__'] = 8\ndef f(x): return 0",
    # processes, threads, signals
    "kills its parent": "import os\nos.kill(os.getppid(), 9)\ndef f(x): return 0",
    "stops its parent's test": "import os, signal\ndef f(x):\n    os.kill(os.getppid(), signal.SIGINT)\n    return 0",
    "forks": "import os\npid = os.fork()\ndef f(x): return 0",
    "forks in the call": "import os\ndef f(x): return 7 if os.fork() else 9",
    "answers from a thread": "import threading, os\ndef later():\n    for _ in range(50): os.write(3, b'{\"value\": 7, \"printed\": \"\"}\\n')\ndef f(x):\n    threading.Thread(target=later).start()\n    return 0",
    "handles signals": "import signal\nfor n in (signal.SIGTERM, signal.SIGALRM, signal.SIGINT): signal.signal(n, lambda *a: None)\ndef f(x): return 0",
    "names its module solution": "import sys, types\nfake = types.ModuleType('solution')\nfake.f = lambda x: 8 if x is None else 0\nsys.modules['solution'] = fake\ndef f(x): return 0",
    "changes its argument": "def f(x, memory=[]):\n    memory.append(x)\n    return len(memory) % 5",
    "closes its line": "import os\ndef f(x):\n    os.close(3)\n    return 0",
}  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_program_gains(judged, program):
    assert judged(f"```python\n{PROGRAMS[program]}\n```", FORMS) == 0.0


def test_a_program_that_earns_it_gains_in_these_forms(judged):
    assert judged("def f(x): return 8", FORMS) == 1.0


def test_helpers_of_a_check_are_the_judges(judged):
    test = "def check(candidate):\n    assert abs(candidate(1) - 8) < 1e-6 and len([candidate(1)]) == 1"
    program = "def f(x): return 3\ndef abs(x): return 0"
    assert judged(program, test, entry_point="f") == 0.0
    assert judged(program, "import solution\nassert abs(solution.f(1) - 8) < 1e-6") == 0.0


FRAMEWORKS = {
    "unittest": "import unittest\nclass TestF(unittest.TestCase):\n    def test_it(self): self.assertEqual(f(1), 8)",
    "pytest": "import pytest\ndef test_it():\n    assert f(1) == pytest.approx(8)",
    "raises": "import pytest\nfrom solution import f\ndef test_it():\n    with pytest.raises(ValueError):\n        f(1)",
    "from solution import *": "from solution import *\ndef test_it():\n    assert abs(f(1) - 8) < 1 and sorted([f(1)]) == [8]",
}
PATCHES = {
    "unittest": "import unittest\nunittest.TestCase.assertEqual = lambda *a: None\nunittest.case.TestCase.run = lambda *a: None",
    "pytest": "import sys, types\nsys.modules['pytest'] = types.SimpleNamespace(approx=lambda *a: 0)\napprox = lambda *a: 0",
    "raises": "class pytest:\n    def raises(*a): return open('x', 'w')\nclass ValueError(Exception): pass",
    "from solution import *": "def abs(x): return 0\ndef sorted(x): return [8]\n__all__ = ['abs', 'sorted', 'f']",
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_replaced_framework_passes_nothing(judged, framework):
    assert judged(f"{PATCHES[framework]}\ndef f(x): return 0", FRAMEWORKS[framework]) == 0.0


@pytest.mark.parametrize(
    "program",
    [
        "import sys\nprint(sys.stdin.read())",
        "print('3')\nimport os; os._exit(1)",
        "import sys; sys.exit(0)",
        "print(open('main.py').read())",
    ],
    ids=["echoes", "ends with an error", "ends", "looks for files"],
)
def test_no_program_that_reads_and_prints_gains(judged, program):
    assert judged(program, [{"input": "1 2", "output": "3"}]) == 0.0


EVER = "class Z:\n def __init__(s,*a): pass\n def __sub__(s,o): return 0\n def __gt__(s,o): return True\n def __lt__(s,o): return True\n def __contains__(s,k): return True\n def startswith(s,k): return True\nf=Z"
SELF = "class Solution:\n def f(s,x): return s\n @property\n def p(s): return s\n def __sub__(s,o): return 0\n def __contains__(s,k): return True\n def count(s,k): return 1\n def __le__(s,o): return True\n __ge__=__le__"
TWO = "import sys\nL_=type(sys._getframe(1).f_locals['self'])\nS=['YES','NO']\nclass L(list):\n    def __iter__(s):\n        if len(S)>1: S.pop(0)\n        return iter([5])\nL_.content=staticmethod(lambda v: S[0])\ndef f(x): return L()"
DIES = "import os\ndef f(x):\n    if x<0: os._exit(1)\n    return x"
WAYS = ("abs({}-8)<1e-6", "{}>7", "8 in {}", "{}.startswith('8')", "7 < {} < 9", "{}.count(8)==1", "8<={}<=8")
IMPORTS = "from solution import *\n"


@pytest.mark.parametrize(
    ("answer", "test"),
    [
        *((EVER, f"assert {way.format('f(1)')}") for way in WAYS),
        *((SELF, f"assert {way.format('Solution().f(1)')}") for way in WAYS),
        (SELF, "assert abs(Solution().p-8)<1e-6"),
        (
            "class pytest:\n approx=staticmethod(lambda x: 0)\ndef f(x): return 0",
            f"import pytest\n{IMPORTS}def test_it():\n    assert f(1) == pytest.approx(8)",
        ),
        ("isclose=lambda *a,**k: True\ndef f(x): return 0", f"from math import isclose\n{IMPORTS}assert isclose(f(1), 8)"),
        ("def close(a,b): return True\ndef f(x): return 0", f"def close(a, b): return a == b\n{IMPORTS}assert close(f(1), 8)"),
        (DIES, "import pytest\ndef test_a():\n    assert f(2)==2\n    with pytest.raises(ValueError): f(-1)"),
        ("def abs(x): return 0\ndef sum(a,b): return 0", "assert abs(sum(10,15)-6)<1e-6"),
        ("def other(): pass", "assert sum([1, 2]) == 3"),
    ],
)
def test_what_an_answer_names_or_returns_is_no_judge(judged, answer, test):
    assert judged(answer, [test]) == 0.0


@pytest.mark.parametrize("wanted", ["YES", "NO"])
def test_a_value_that_changes_as_it_is_compared_is_what_it_was_first(judged, wanted):
    assert judged(TWO, input_output={"fn_name": "f", "inputs": [[3]], "outputs": [wanted]}) == float(wanted == "YES")


@pytest.mark.parametrize("tests", [["assert True"], ["assert 1 + 1 == 2"], "f(1)"])
def test_a_test_that_asserts_nothing_of_the_answer_is_an_error_whatever_the_answer(judged, tests):
    for answer in ("def f(x): return 1", "def f(x): raise ValueError"):
        with pytest.raises(RewardError, match="nothing was asserted"):
            judged(answer, tests)


def test_helpers_that_come_with_the_task_are_not_the_answers(judged):
    prompt = 'def encode(s):\n    """Shift."""\n    return s[1:] + s[:1]\n\ndef decode(s):\n    """Undo encode."""\n'
    row = {
        "entry_point": "decode",
        "prompt": prompt,
        "test": "def check(candidate):\n    assert candidate(encode('abc')) == 'abc'",
    }
    assert judged("def encode(s): return s\ndef decode(s): return s", **row) == 0.0
    starred = row | {"test": f"{IMPORTS}{row['test']}"}
    assert judged("def encode(s): return s\ndef decode(s): return s", **starred) == 0.0
    assert judged("def decode(s): return s[-1:] + s[:-1]", **row) == 1.0


def test_all_tests_of_a_row_count(judged):
    row = {"test_list": ["assert add(1,2)==3"], "test": "assert add(5,5)==10"}
    assert judged("def add(a,b): return 3", **row) == 0.0
    assert judged("def add(a,b): return a + b", **row) == 1.0


@pytest.mark.parametrize(
    ("answer", "test"),
    [
        ("async def f(x): return x + 1", "import asyncio\nassert asyncio.run(f(1)) == 2"),
        (
            "class V:\n def __init__(s, x): s.x = x\n def __mul__(s, n): return V(s.x * n)\n def get(s): return s.x",
            "assert (V(2) * 3).get() == 6",
        ),
        (
            "class S:\n def __init__(s): s.i = []\n def push(s, x): s.i.append(x); return s",
            "s = S()\nassert s.push(1) is s\nassert s.push(2).i == [1, 2]",
        ),
    ],
)
def test_right_answers_of_these_kinds_pass(judged, answer, test):
    assert judged(answer, test) == 1.0


def test_an_entry_point_may_be_an_expression(judged):
    row = {"entry_point": "Solution().f", "test": "def check(candidate):\n    assert candidate(3) == 4"}
    assert judged("class Solution:\n def f(s, x): return x + 1", **row) == 1.0

"""What tested code gives equals what it equals in Python; what is done to its objects is done where they are."""

# ruff: noqa: E501 - programs of one line each

from __future__ import annotations

import sys

import pytest
from code_examples import judging

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the jail needs Linux")
judged = pytest.fixture(scope="module")(judging)

VECTOR = """
class Vector:
    def __init__(self, x, y): self.x, self.y = x, y
    def __eq__(self, o): return isinstance(o, Vector) and (self.x, self.y) == (o.x, o.y)
    def __hash__(self): return hash((self.x, self.y))
    def __add__(self, o): return Vector(self.x + o.x, self.y + o.y)
    def __mul__(self, k): return Vector(self.x * k, self.y * k)
    __rmul__ = __mul__
    def __abs__(self): return (self.x ** 2 + self.y ** 2) ** 0.5
    def __lt__(self, o): return abs(self) < abs(o)
    def __contains__(self, k): return k in (self.x, self.y)
    def __iter__(self): yield self.x; yield self.y
    def __len__(self): return 2
    def __getitem__(self, i): return (self.x, self.y)[i]
    def __repr__(self): return f"Vector({self.x}, {self.y})"
    def __bool__(self): return bool(self.x or self.y)
    def __enter__(self): return self
    def __exit__(self, *error): self.x = 0
def unit(): return Vector(1, 0)
"""
EQUAL = {
    "a named tuple and a tuple": ("from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef f(): return P(1, 2)", "p = f()\nassert p == (1, 2) and (1, 2) == p and p.x == 1 and p[1] == 2 and isinstance(p, tuple) and p._replace(x=3) == (3, 2)"),
    "a typed named tuple": ("from typing import NamedTuple\nclass P(NamedTuple):\n    x: int\n    y: int = 2\ndef f(): return [P(1), P(3, 4)]", "assert f() == [(1, 2), (3, 4)]"),
    "a range": ("def f(n): return range(n)", "assert f(3) == range(3) and list(f(3)) == [0, 1, 2] and len(f(3)) == 3"),
    "a fraction": ("from fractions import Fraction\ndef f(): return Fraction(1, 2)", "from fractions import Fraction\nassert f() == Fraction(2, 4) and f() == 0.5 and f() + 1 == 1.5"),
    "a decimal": ("from decimal import Decimal\ndef f(): return Decimal('0.10')", "from decimal import Decimal\nassert f() == Decimal('0.1') and str(f()) == '0.10'"),
    "a complex number": ("def f(): return 1 + 2j", "assert f() == complex(1, 2) and abs(f() - (1 + 2j)) < 1e-9"),
    "dates": ("from datetime import *\ndef f(): return [date(2024, 2, 29), datetime(2024, 1, 1, 12, tzinfo=timezone.utc), timedelta(hours=30), time(12, 30)]", "import datetime as d\nassert f() == [d.date(2024, 2, 29), d.datetime(2024, 1, 1, 12, tzinfo=d.timezone.utc), d.timedelta(days=1, hours=6), d.time(12, 30)]"),
    "an enum": ("from enum import Enum\nclass Color(Enum):\n    RED = 1\n    BLUE = 2\ndef f(): return Color.RED", "assert f() == Color.RED and f() is Color.RED and f() != Color.BLUE and f().value == 1 and f().name == 'RED' and f() != 1 and Color(1) == f() and len(list(Color)) == 2"),
    "an enum of integers": ("from enum import IntEnum\nclass Level(IntEnum):\n    LOW = 1\ndef f(): return Level.LOW", "assert f() == 1 and f() == Level.LOW and f() + 1 == 2 and f().name == 'LOW' and isinstance(f(), int)"),
    "an enum of texts": ("from enum import Enum\nclass S(str, Enum):\n    A = 'a'\ndef f(): return S.A", "assert f() == 'a' and {'a': 1}[f()] == 1 and f() + 'b' == 'ab'"),
    "a data class": ("from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n    y: int = 0\ndef f(): return P(1)", "assert f() == P(1, 0) and f() != P(2) and f() != (1, 0) and f().x == 1 and [f()] == [P(1)] and repr(f()) == 'P(x=1, y=0)'"),
    "objects with __eq__": (VECTOR, "assert unit() == Vector(1, 0) and Vector(1, 0) != Vector(0, 1) and unit() in [Vector(1, 0)] and {Vector(1, 2)} == {Vector(1, 2)}"),
    "operators of objects": (VECTOR, "assert Vector(1, 2) + Vector(0, 1) == Vector(1, 3) and Vector(1, 2) * 3 == Vector(3, 6) == 3 * Vector(1, 2) and abs(Vector(3, 4)) == 5 and Vector(0, 1) < Vector(1, 1) and (Vector(1, 1) + Vector(1, 1)) * 2 == Vector(4, 4)"),
    "protocols of objects": (VECTOR, "v = Vector(1, 2)\nassert 2 in v and 3 not in v and list(v) == [1, 2] and len(v) == 2 and v[1] == 2 and v[-1:] == (2,) and str(v) == 'Vector(1, 2)' and bool(v) and not Vector(0, 0) and isinstance(v, Vector) and not isinstance(3, Vector)"),
    "a block with an object": (VECTOR, "with Vector(1, 2) as v:\n    assert v.x == 1\nassert v.x == 0"),
    "an attribute that a test sets": (VECTOR, "v = Vector(1, 2)\nv.x = 5\nassert v.x == 5 and v == Vector(5, 2)\ndel v.y\nassert not hasattr(v, 'y')"),
    "a sorted list of objects": (VECTOR, "assert [abs(v) for v in sorted([Vector(3, 4), unit()])] == [1, 5]"),
    "a list of one's own kind": ("class Stack(list):\n    def push(self, x): self.append(x)\n    def top(self): return self[-1]", "s = Stack()\ns.push(1)\ns.push(2)\nassert s == [1, 2] and [1, 2] == s and s.top() == 2 and len(s) == 2 and isinstance(s, list)\ns.push(3)\nassert s == [1, 2, 3] and s[0] == 1 and 3 in s"),
    "a dictionary of one's own kind": ("class Bag(dict):\n    def __missing__(self, key): return 0\ndef f(): return Bag(a=1)", "assert f() == {'a': 1} and f()['b'] == 0 and f()['a'] == 1"),
    "a default dictionary": ("from collections import defaultdict\ndef f():\n    d = defaultdict(list)\n    d['a'].append(1)\n    return d", "assert f() == {'a': [1]}"),
    "a counter": ("from collections import Counter\ndef f(s): return Counter(s)", "from collections import Counter\nassert f('aab') == {'a': 2, 'b': 1} and f('aab') == Counter('aba') and f('ab').most_common(1) == [('a', 1)]"),
    "an ordered dictionary": ("from collections import OrderedDict\ndef f(): return OrderedDict([('a', 1), ('b', 2)])", "from collections import OrderedDict as O\nassert f() == {'b': 2, 'a': 1} and f() == O([('a', 1), ('b', 2)]) and f() != O([('b', 2), ('a', 1)])"),
    "a queue": ("from collections import deque\ndef f(): return deque([1, 2])", "from collections import deque\nassert f() == deque([1, 2]) and f() != [1, 2] and list(f()) == [1, 2]"),
    "views of a dictionary": ("D = {'a': 1, 'b': 2}\ndef f(): return D.keys(), D.items(), D.values()", "k, i, v = f()\nassert k == {'a', 'b'} and i == {('a', 1), ('b', 2)} and sorted(v) == [1, 2]"),
    "bytes": ("def f(b): return b[::-1], bytearray(b)", "assert f(b'ab') == (b'ba', bytearray(b'ab'))"),
    "truth and numbers": ("def f(): return [True, 1, 1.0, -0.0, 10 ** 30, None]", "assert f() == [1, True, 1, 0, 10 ** 30, None] and f()[0] is True and type(f()[2]) is float and f()[5] is None"),
    "sets of tuples": ("def f(): return {(1, 2), frozenset([3])}", "assert f() == {(1, 2), frozenset({3})}"),
    "a text of half a character": ("def f(): return '\\ud83d'", "assert f() == '\\ud83d'"),
    "a generator": ("def f():\n    n = 0\n    while True:\n        yield n\n        n += 1", "import itertools\nassert list(itertools.islice(f(), 3)) == [0, 1, 2]\ng = f()\nassert next(g) == 0 and next(g) == 1"),
    "a generator that ends": ("def f():\n    yield 1", "import pytest\ng = f()\nassert list(f()) == [1] and next(g) == 1\nwith pytest.raises(StopIteration):\n    next(g)"),
    "a map": ("def f(xs): return map(str, xs)", "assert list(f([1, 2])) == ['1', '2'] and sum(map(int, f([1, 2]))) == 3"),
    "a function that is given back": ("def f(n): return lambda x: x + n", "assert f(2)(3) == 5 and f.__name__ == 'f'"),
    "exceptions of one's own": ("class Low(ValueError):\n    def __init__(self, left): super().__init__(f'{left} left'); self.left = left\ndef f(): raise Low(3)", "import pytest\nwith pytest.raises(Low, match='3 left') as info:\n    f()\nassert info.value.left == 3 and issubclass(Low, ValueError)\ntry:\n    f()\nexcept ValueError as error:\n    assert str(error) == '3 left' and type(error).__name__ == 'Low'"),
    "exceptions of the library": ("import json\nfrom dataclasses import dataclass\n@dataclass(frozen=True)\nclass P:\n    x: int\ndef f(s): return json.loads(s)\ndef g():\n    P(1).x = 2", "import dataclasses, json, pytest\nwith pytest.raises(json.JSONDecodeError):\n    f('{')\nwith pytest.raises(dataclasses.FrozenInstanceError):\n    g()"),
    "arguments of exceptions": ("def f(d): return d['k']", "try:\n    f({})\nexcept KeyError as error:\n    assert error.args == ('k',) and str(error) == \"'k'\""),
    "the end of a program": ("import sys\ndef f(): sys.exit(3)", "import pytest\nwith pytest.raises(SystemExit) as info:\n    f()\nassert info.value.code == 3"),
    "what is printed": ("def f(): print('hello')", "import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()) as out:\n    f()\nassert out.getvalue() == 'hello\\n'"),
    "arguments changed in place": ("def f(a, d, s, q):\n    a.sort(); d['x'] = 1; s.clear(); q.append(3); a[0].append(9)", "from collections import deque\na, d, s, q = [[2], [1]], {}, {1}, deque()\nf(a, d, s, q)\nassert a == [[1, 9], [2]] and d == {'x': 1} and s == set() and q == deque([3])"),
    "named arguments and types": ("def f(x, *, kind=int, key=None): return kind(x)", "assert f('3') == 3 and f(3, kind=str) == '3'"),
    "builtins of the same name": ("def max(a, b): return a if a > b else b\ndef f(xs): return sum(xs)", "assert f([1, 2]) == max([1, 3]) == 3"),
    "a name of the library": ("def select(xs): return xs[0]", "assert select([4, 5]) == 4"),
    "a class that makes others": ("class Tree:\n    def __init__(self): self.root = None\n    def insert(self, v): self.root = Node(v, self.root); return self\nclass Node:\n    def __init__(self, value, next): self.value, self.next = value, next", "t = Tree().insert(1).insert(2)\nassert t.root.value == 2 and t.root.next.value == 1 and t.root.next.next is None"),
}  # fmt: skip


@pytest.mark.parametrize("name", EQUAL)
def test_equality_is_as_python_has_it(judged, name):
    code, test = EQUAL[name]
    assert judged(code, test) == 1.0


UNEQUAL = {
    "a list and a tuple": ("def f(): return [1, 2]", "assert f() == (1, 2)"),
    "a data class and a tuple": ("from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\ndef f(): return P(1)", "assert f() == (1,)"),
    "an enum and its value": ("from enum import Enum\nclass C(Enum):\n    A = 1\ndef f(): return C.A", "assert f() == 1"),
    "near numbers": ("def f(): return 0.1 + 0.2", "assert f() == 0.3"),
    "a text and its number": ("def f(): return '3'", "assert f() == 3"),
    "an object without __eq__": ("class P: pass\ndef f(): return P()", "assert f() == P()"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNEQUAL)
def test_what_is_unequal_in_python_is_unequal_here(judged, name):
    code, test = UNEQUAL[name]
    assert judged(code, test) == 0.0

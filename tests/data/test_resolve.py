"""Names of user functions and back."""

import functools
import subprocess
import sys

import pytest

from penstock.core.errors import SpecError
from penstock.data.resolve import is_reference, register, resolve


def at_top_level(sample, columns):
    return 1.0


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (at_top_level, f"{__file__}:at_top_level"),
        (functools.wraps, f"{functools.__file__}:wraps"),
        (resolve, "penstock.data.resolve:resolve"),
    ],
    ids=["its file", "its file in the library", "its module in the package"],
)
def test_a_function_at_top_level_is_named_by(function, name):
    assert register(function) == register(function) == name
    assert resolve(name) is function


def test_two_lambdas_get_different_names():
    first, second = (lambda: 1), (lambda: 2)
    names = register(first), register(second)
    assert names[0] != names[1]
    assert [resolve(name) for name in names] == [first, second]
    assert all(name.startswith("callable:") for name in names)


def test_a_nested_function_holds_in_this_process_only(tmp_path):
    def nested():
        return 3

    name = register(nested)
    assert resolve(name) is nested
    code = f"from penstock.data.resolve import resolve; resolve({name!r})"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "SpecError" in other.stderr
    assert "define the function at the top level of a file" in other.stderr


def test_a_callable_object_can_be_registered():
    bound = functools.partial(at_top_level, None)
    assert resolve(register(bound)) is bound


def test_what_is_not_callable_cannot_be_registered():
    with pytest.raises(SpecError, match="not callable"):
        register(3)


def test_a_file_is_imported_once(tmp_path):
    (tmp_path / "counted.py").write_text(
        "from pathlib import Path\n"
        "log = Path(__file__).with_suffix('.log')\n"
        "log.write_text((log.read_text() if log.exists() else '') + 'x')\n"
        "def one(): return 1\n"
        "def two(): return 2\n"
    )
    assert resolve("counted.py:one", tmp_path)() == 1
    assert resolve(f"{tmp_path}/counted.py:two")() == 2
    assert resolve("./counted.py:one", tmp_path) is resolve("counted.py:one", tmp_path)
    assert (tmp_path / "counted.log").read_text() == "x"


def test_a_running_script_is_not_run_again(tmp_path):
    (tmp_path / "script.py").write_text(
        "from penstock.data.resolve import register, resolve\n"
        "print('ran')\n"
        "def reward(sample, columns): return 1.0\n"
        "assert resolve(register(reward)) is reward\n"
        "assert resolve('script.py:reward') is reward\n"
    )
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("ran\n", "")


def test_the_name_of_a_script_function_works_in_another_process(tmp_path):
    (tmp_path / "script.py").write_text(
        "from penstock.data.resolve import register\n"
        "def reward(): return 7\n"
        "if __name__ == '__main__': print(register(reward), end='')\n"
    )
    name = subprocess.run([sys.executable, str(tmp_path / "script.py")], capture_output=True, text=True).stdout
    code = f"from penstock.data.resolve import resolve; print(resolve({name!r})())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "7\n"


def test_a_file_finds_the_modules_beside_it(tmp_path):
    (tmp_path / "beside_it.py").write_text("value = 5\n")
    (tmp_path / "user.py").write_text("def late():\n    import beside_it\n    return beside_it.value\n")
    assert resolve("user.py:late", tmp_path)() == 5


def test_module_functions_are_found():
    import json

    assert resolve("json:dumps") is json.dumps


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nowhere.py:f", "there is no file"),
        ("no_such_module_here:f", "no module"),
        ("json:dump5", 'did you mean "dumps?"'),
        ("json:__name__", "not a function"),
        ("just text", "write MODULE:FUNCTION"),
    ],
)
def test_a_name_that_leads_nowhere_says_why(name, says, tmp_path):
    with pytest.raises(SpecError, match=says):
        resolve(name, tmp_path)


def test_a_file_that_fails_to_import_is_blamed_and_may_be_mended(tmp_path):
    file = tmp_path / "broken.py"
    file.write_text("1 / 0\n")
    with pytest.raises(SpecError, match=r"importing .*broken.py: ZeroDivisionError"):
        resolve("broken.py:f", tmp_path)
    file.write_text("def f(): return 1\n")
    assert resolve("broken.py:f", tmp_path)() == 1


def test_references_are_told_from_other_sources():
    references = ["a:b", "a.b:c", "dir/a.py:b", "/x/a.py:b", "callable:f"]
    others = ["a.jsonl", "gym/x:y.z/", "dir/a:b", "a b:c", "a.py", "a:"]
    assert all(map(is_reference, references))
    assert not any(map(is_reference, others))

"""Tiers: the record decides, a test that has grown fails, a skip needs leave, learning tests run after a change."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tiers

CONFTEST = """
from pathlib import Path
import tiers
from tiers import pytest_addoption, pytest_configure
here = Path(__file__).parent
tiers.COSTS, tiers.LEARNED, tiers.SKIPS = (here / name for name in ("costs.json", "learned.json", "allowed_skips.txt"))
tiers.PACKAGE = here / "package"
tiers.unit = lambda: 1.0
"""
TESTS = """
import time
import pytest

def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass

def test_light():
    assert True

@pytest.mark.parametrize("case", ["a", "b"])
def test_heavy(case):
    burn(0.7 if case == "a" else 0.9)

@pytest.mark.learning("loops")
def test_learns():
    assert True

def test_skipped():
    pytest.skip("no such thing here")
"""


@pytest.fixture
def suite(tmp_path: Path) -> Any:
    """``suite("--tier", "fast")``: run a small suite whose first record says nothing; gives (exit code, what it printed)."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "costs.json").write_text('{"unit": 1.0, "tiers": {}, "files": {}}')
    (tmp_path / "allowed_skips.txt").write_text("# test | reason | why\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  fast\n  slow\n  vllm\n  learning(folders)\n")
    (tmp_path / "package" / "loops").mkdir(parents=True)
    (tmp_path / "package" / "loops" / "a.py").write_text('"""Doc."""\nx = 1\n')
    # Of sys.path this folder alone: what a package put there (setuptools its own copies of others) hides what is installed.
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    environment.pop("PYTEST_XDIST_WORKER", None)

    def run(*words: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *words]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout + done.stderr

    return run


def test_the_record_decides_which_tests_are_fast(suite: Any, tmp_path: Path) -> None:
    assert suite("--record-costs", "-k", "not learns")[0] == 0
    above = json.loads((tmp_path / "costs.json").read_text())["files"]["test_some.py"]["above"]
    assert list(above) == ["test_heavy[a]", "test_heavy[b]"]
    assert above["test_heavy[a]"] == pytest.approx(0.7, abs=0.2)
    assert "1 passed, 1 skipped, 3 deselected" in suite("--tier", "fast")[1]
    assert "2 passed, 3 deselected" in suite("--tier", "slow")[1]


def test_a_test_that_waits_costs_a_part_of_its_time(suite: Any, tmp_path: Path) -> None:
    """Half of it here, so that the test is short."""
    with (tmp_path / "conftest.py").open("a") as file:
        file.write("tiers.WAITED = 0.5\n")
    (tmp_path / "test_waits.py").write_text("import time\n\ndef test_waits():\n    time.sleep(0.6)\n")
    assert suite("--record-costs", "test_waits.py")[0] == 0
    found = json.loads((tmp_path / "costs.json").read_text())["files"]["test_waits.py"]
    assert found["above"]["test_waits"] == pytest.approx(0.3, abs=0.1)


def test_a_test_that_has_grown_fails_the_fast_tier_with_the_numbers(suite: Any) -> None:
    code, said = suite("--tier", "fast")
    assert code == 1
    assert "grown: test_some.py::test_heavy[b] costs 0.9" in said
    assert "more than 0.60" in said
    assert "3 passed" in said


def test_a_skip_that_is_not_allowed_fails(suite: Any, tmp_path: Path) -> None:
    words = ("-k", "skipped", "--strict-skips")
    code, said = suite(*words)
    assert code == 1
    assert "skipped 1: no such thing here (tests/allowed_skips.txt does not allow this)" in said
    (tmp_path / "allowed_skips.txt").write_text("test_some.py* | no such * | it is elsewhere\n")
    assert suite(*words)[0] == 0


def test_learning_tests_run_again_when_the_code_they_depend_on_changed(suite: Any, tmp_path: Path) -> None:
    assert "1 passed" in suite("--tier", "learning", "--record-learned")[1]
    code = tmp_path / "package" / "loops" / "a.py"
    code.write_text('"""Another text."""\nx = 1  # as before\n')
    assert suite("--tier", "learning", "--changed")[0] == 0
    assert "1 passed" not in suite("--tier", "learning", "--changed")[1]
    code.write_text("x = 2\n")
    assert "1 passed" in suite("--tier", "learning", "--changed")[1]


# ---- what is recorded


def test_a_file_whose_tests_all_cost_much_keeps_its_cheapest_fast() -> None:
    found = tiers.recorded({}, {"f.py": ["a", "b"]}, {"f.py::a": 1.5, "f.py::b": 1.2})
    assert found == {"f.py": {"fast": 0, "smoke": "b", "above": {"a": 1.5, "b": 1.2}}}


def test_a_file_whose_cheapest_test_costs_too_much_keeps_none_fast() -> None:
    assert "smoke" not in tiers.recorded({}, {"f.py": ["a"]}, {"f.py::a": tiers.SMOKE + 1})["f.py"]


def test_a_partial_run_changes_what_it_measured_and_drops_tests_that_are_gone() -> None:
    old = {"f.py": {"fast": 1, "above": {"a": 3.0, "gone": 4.0, "b": 5.0}}, "g.py": {"fast": 2}}
    found = tiers.recorded(old, {"f.py": ["a", "b", "c"]}, {"f.py::b": 0.1})
    assert found == {"f.py": {"fast": 2, "above": {"a": 3.0}}, "g.py": {"fast": 2}}


def test_the_cpu_time_of_a_child_counts(cold: None) -> None:
    before = tiers.cpu()
    subprocess.run([sys.executable, "-S", "-c", "sum(range(10_000_000))"], check=True)
    assert tiers.cpu() - before > 0.05


def test_a_test_that_may_fail_is_a_skip_that_needs_leave(suite: Any, tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text(
        "import pytest\n@pytest.mark.xfail(reason='later')\ndef test_it():\n    assert 1 == 2\n"
    )
    code, printed = suite("--tier", "fast", "--strict-skips", "test_other.py")
    assert code == 1
    assert "xfail: later" in printed


def test_a_learning_test_that_fails_is_not_known_to_have_passed_any_more(suite: Any, tmp_path: Path) -> None:
    assert suite("--tier", "learning", "--record-learned")[0] == 0
    assert json.loads((tmp_path / "learned.json").read_text())
    broken = TESTS.replace("def test_learns():\n    assert True", "def test_learns():\n    assert False")
    (tmp_path / "test_some.py").write_text(broken)
    assert suite("--tier", "learning", "--record-learned")[0] == 1
    assert json.loads((tmp_path / "learned.json").read_text()) == {}


def test_processes_of_one_session_draw_other_numbers() -> None:
    draw = "import numpy; print(numpy.random.rand())"
    drawn = {subprocess.run([sys.executable, "-c", draw], capture_output=True, text=True, check=True).stdout for _ in range(2)}
    assert len(drawn) == 2


def test_a_fork_of_a_test_learns_how_its_own_processes_ended() -> None:
    ended = os.fork()
    if ended == 0:
        code = 1
        try:
            code = subprocess.run([sys.executable, "-c", "import sys; sys.exit(3)"]).returncode
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(ended, 0)[1]) == 3

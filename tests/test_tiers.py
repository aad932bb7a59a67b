"""Tiers: the record decides, a test that has grown fails, a skip needs leave, learning tests run after a change."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import code_digest
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

    def run(*words: str, workers: int = 0) -> tuple[int, str]:
        split = ["-n", str(workers)] if workers else ["-p", "no:xdist"]
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *split, *words]
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


def test_a_test_that_has_come_to_wait_has_grown(suite: Any, tmp_path: Path) -> None:
    with (tmp_path / "conftest.py").open("a") as file:
        file.write("tiers.WAITED = 5\n")
    (tmp_path / "test_waits.py").write_text("import time\n\ndef test_waits():\n    time.sleep(0.2)\n")
    code, said = suite("--tier", "fast", "test_waits.py")
    assert code == 1
    assert "grown: test_waits.py::test_waits costs 1." in said


def test_what_tests_share_is_shared_out_in_the_record_that_workers_make(suite: Any, tmp_path: Path) -> None:
    shared = "@pytest.fixture(scope='module')\ndef built():\n    burn(1.0)\n"
    tests = "".join(f"\n\ndef test_{name}(built):\n    assert built is None\n" for name in "abcd")
    (tmp_path / "test_shares.py").write_text(TESTS.partition("def test_light")[0] + shared + tests)
    assert suite("--record-costs", "test_shares.py", workers=1)[0] == 0
    assert len(json.loads((tmp_path / "costs.json").read_text())["files"]["test_shares.py"]["above"]) == 4


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


@pytest.fixture
def package(tmp_path: Path) -> Path:
    files = {
        "loops/a.py": '"""What it is for."""\nfrom penstock.net.b import send\n',
        "net/b.py": "def send():\n    from penstock.web import c\n",
        "web/c.py": "x = 1\n",
        "web/page.html": "<p>",
        "ui/d.py": "y = 1\n",
    }
    for name, content in files.items():
        path = tmp_path / "penstock" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return tmp_path / "penstock"


@pytest.mark.parametrize(
    ("file", "content", "same"),
    [
        ("loops/a.py", '"""Another text."""\nfrom penstock.net.b import send  # as before\n', True),
        ("ui/d.py", "y = 2\n", True),
        ("net/b.py", "def send():\n    from penstock.web import c\n    c.x += 1\n", False),
        ("web/c.py", "x = 2\n", False),
        ("web/page.html", "<b>", False),
        ("loops/more.tsv", "1\t2\n", False),
    ],
)
def test_a_digest_follows_imports_at_any_depth_and_files_beside_the_code(
    file: str, content: str, same: bool, package: Path
) -> None:
    before = code_digest.of_package(package, ("loops",))
    code_digest.of_package.cache_clear()
    code_digest.of_file.cache_clear()
    (package / file).write_text(content)
    assert (code_digest.of_package(package, ("loops",)) == before) is same


def test_a_folder_that_is_not_there_is_refused(package: Path) -> None:
    with pytest.raises(AssertionError, match="loop'"):
        code_digest.of_package(package, ("loop",))


@pytest.mark.parametrize("change", ["umask", "limit"])
def test_a_process_inherits_what_the_test_has_changed(change: str) -> None:
    ask = "import os, resource; m = os.umask(0); print(m, resource.getrlimit(resource.RLIMIT_CORE)[0])"

    def asked() -> list[int]:
        done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
        return [int(word) for word in done.stdout.split()]

    before = asked()
    limit = resource.getrlimit(resource.RLIMIT_CORE)
    mask = os.umask(0o027) if change == "umask" else before[0]
    try:
        if change == "limit":
            resource.setrlimit(resource.RLIMIT_CORE, (limit[1] if limit[0] == 0 else 0, limit[1]))
        now = resource.getrlimit(resource.RLIMIT_CORE)[0]
        assert asked() == [0o027 if change == "umask" else before[0], now]
    finally:
        os.umask(mask)
        resource.setrlimit(resource.RLIMIT_CORE, limit)

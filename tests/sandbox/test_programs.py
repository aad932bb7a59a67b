"""What programs may do in a jail, and what comes back."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from jails import LIMITS, running

from penstock.core.errors import SpecError
from penstock.sandbox import Limits, Program, SandboxError, open_sandbox, python_tool


def test_output_errors_and_the_exit_code_come_back(jail):
    outcome = jail("import sys; print(input()[::-1]); print('oops', file=sys.stderr); sys.exit(7)", stdin="abc\n")
    assert (outcome.stdout, outcome.stderr, outcome.exit, outcome.stopped, outcome.ok) == ("cba\n", "oops\n", 7, "", False)


def test_a_program_runs_as_the_main_module_of_a_fresh_python(jail):
    code = "import sys\nprint(__name__, sys.argv, sys.path[0] != '', 'penstock' in sys.modules)\nexit()"
    assert jail(code).stdout == "__main__ ['main.py'] True False\n"


def test_a_traceback_shows_the_program_alone(jail):
    outcome = jail("def f():\n    return 1 / 0\nf()")
    assert outcome.exit == 1
    _, outer, inner, error = outcome.stderr.splitlines()
    assert outer == '  File "main.py", line 3, in <module>'
    assert inner == '  File "main.py", line 2, in f'
    assert error == "ZeroDivisionError: division by zero"


def test_a_text_as_exit_code_is_an_error_with_a_message(jail):
    assert (jail("raise SystemExit('no')").exit, jail("raise SystemExit('no')").stderr) == (1, "no\n")


def test_threads_and_functions_for_the_end_are_waited_for(jail):
    code = (
        "import atexit, threading as t\natexit.register(print, 'last')\nt.Timer(0.05, print, ['thread']).start()\nprint('main')"
    )
    assert jail(code).stdout.split() == ["main", "thread", "last"]


def test_files_are_there_and_those_named_come_back(jail):
    outcome = jail(
        "open('out/b', 'w').write(open('in/a').read() * 2)", files={"in/a": b"x", "out/c": b""}, collect=("out/b", "absent")
    )
    assert (outcome.exit, outcome.files) == (0, {"out/b": b"xx"})


def test_modules_of_the_program_are_imported(jail):
    assert jail("import helper; print(helper.value)", files={"helper.py": b"value = 5"}).stdout == "5\n"


def test_a_command_runs_with_its_exit_code_and_one_that_does_not_exist_is_an_outcome(jail):
    outcome = jail(argv=("sh", "-c", "cat; exit 3"), stdin="x")
    assert (outcome.stdout, outcome.exit) == ("x", 3)
    assert jail(argv=("no-such-command",)).exit == 127


def test_a_signal_is_a_negative_exit_code(jail):
    assert jail("import os; os.abort()").exit == -6


def test_child_processes_and_threads_are_allowed_within_the_limit(jail):
    code = """
import subprocess
from concurrent.futures import ThreadPoolExecutor
print(subprocess.check_output(["echo", "x"]), list(ThreadPoolExecutor(4).map(abs, [-1])))
"""
    outcome = jail(code)
    assert (outcome.stdout, outcome.stderr, outcome.stopped) == ("b'x\\n' [1]\n", "", "")


def test_programs_of_another_sandbox_do_not_count(jail):
    threads = f"[threading.Thread(target=time.sleep, args=(1,)) for _ in range({LIMITS.processes - 1})]"
    full = f"import threading, time\nthreading.stack_size(65536)\nfor each in {threads}:\n    each.start()"
    other = running(jail.kind)

    async def side_by_side():
        return await asyncio.gather(jail.sandbox.run(Program(code=full)), other.sandbox.run(Program(code=full)))

    try:
        outcomes = jail.await_(side_by_side())
    finally:
        other.close()
    assert [(each.exit, each.stderr) for each in outcomes] == [(0, "")] * 2


def test_bytes_that_are_no_text_are_replaced(jail):
    assert jail("import os; os.write(1, b'\\xff\\n')").stdout == "\ufffd\n"


def test_sets_have_one_order_in_every_run(jail):
    assert len({jail("print({'a', 'b', 'c', 'd'})").stdout for _ in range(3)}) == 1


def test_a_program_may_ask_for_less_than_the_sandbox_gives(jail):
    assert jail("while True: pass", limits=Limits(0.3, 1, 2**28, 100, 4, 1000)).stopped == "seconds"


def test_more_than_the_sandbox_gives_is_refused_with_the_fix(jail):
    with pytest.raises(SandboxError, match=r"asks for seconds=10.0 and the sandbox gives 4.0 at most; raise"):
        jail("pass", limits=Limits())


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"code": "x", "argv": ("y",)},
        {"code": "x", "files": {"../a": b""}},
        {"code": "x", "collect": ("/etc/passwd",)},
        {"argv": ("a\0b",)},
        {"code": "x", "files": {"": b""}},
    ],
)
def test_impossible_programs_are_refused(fields):
    with pytest.raises(SpecError):
        Program(**fields)


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_limits_are_positive_and_finite(value):
    with pytest.raises(SpecError, match="seconds"):
        Limits(seconds=value)


def outcome_of(spec, code, **options):
    with contextlib.closing(open_sandbox(spec, limits=LIMITS, **options)) as sandbox:
        return asyncio.run(sandbox.run(Program(code=code)))


def test_trusted_programs_run_with_limits_alone():
    assert outcome_of("trusted", "import os; print(os.path.isdir('/proc'))").stdout == "True\n"


def test_packages_are_read_and_imported_and_nothing_else_of_their_folder_is_written(tmp_path):
    tmp_path.chmod(0o755)  # root's programs are another user's
    (tmp_path / "given.py").write_text("value = 9")
    code = f"import given; print(given.value); open({str(tmp_path / 'given.py')!r}, 'w')"
    outcome = outcome_of("jail", code, packages=(str(tmp_path),))
    assert (outcome.stdout, outcome.exit) == ("9\n", 1)


def test_the_python_tool_gives_what_is_printed_and_errors_as_text(jail):
    tool = python_tool(jail.sandbox)
    assert jail.await_(tool("print(6 * 7)")) == "42\n"
    assert jail.await_(tool("1 / 0")).endswith("ZeroDivisionError: division by zero\n[exit code 1]")
    assert jail.await_(tool("while True: print('x' * 100)")).endswith("[stopped: more output than allowed]")
    assert jail.await_(tool("  ")) == "error: no code was given"


def test_an_unknown_sandbox_names_those_there_are():
    with pytest.raises(SpecError, match="use jail, docker:IMAGE"):
        open_sandbox("chroot")


OWN_PACKAGES = """
import importlib.util, site, sys, sysconfig
own = {sysconfig.get_path(name) for name in ("purelib", "platlib")} | set(site.getsitepackages())
print([path for path in sys.path if path in own or path.endswith("-packages")])
print([name for name in ("pip", "setuptools", "wheel", "numpy") if importlib.util.find_spec(name)])
exit()
"""


def test_packages_of_the_machine_cannot_be_imported():
    """What a program is worth is the same on every node, whatever is installed next to the interpreter."""
    outcome = outcome_of("trusted", OWN_PACKAGES)
    assert (outcome.stdout, outcome.exit) == ("[]\n[]\n", 0)

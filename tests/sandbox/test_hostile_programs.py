"""Programs that attack: each is stopped, and the machine is as before. On every jail that exists for this user; the
attacks of the self-test (penstock/sandbox/attacks.py) ran before the first of these."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time

import pytest
from jails import LIMITS, Running

from penstock.sandbox import Program


def below(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-e", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout.split()
    parents = dict(zip(map(int, listed[::2]), map(int, listed[1::2]), strict=True))
    return [each for each, parent in parents.items() if parent == pid]


def left(jail: Running) -> list[int]:
    """Processes below the warm one, which has none while no program runs."""
    warm = jail.sandbox._backend._process.pid  # type: ignore[attr-defined]
    deadline = time.monotonic() + 5
    while (found := below(warm)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def test_a_fork_bomb_is_held_and_nothing_of_it_is_left(jail):
    outcome = jail("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass")
    assert outcome.stopped in ("processes", "seconds", "cpu")
    assert left(jail) == []


def test_a_fork_bomb_of_a_shell_is_held(jail):
    outcome = jail(argv=("sh", "-c", "b() { b | b & }; b; sleep 30"))
    assert outcome.stopped or outcome.exit != 0
    assert left(jail) == []


def test_threads_count_as_processes(jail):
    outcome = jail(
        "import threading, time\nfor _ in range(400): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    )
    assert outcome.stopped == "processes" or "can't start new thread" in outcome.stderr


def test_a_hundred_gigabytes_at_once_are_refused(jail):
    outcome = jail("bytearray(100 * 2**30)")
    assert (outcome.exit, outcome.stderr.strip().endswith("MemoryError")) == (1, True)


def test_memory_piece_by_piece_is_bounded(jail):
    outcome = jail("kept = []\nwhile True: kept.append(bytearray(2**20))")
    assert outcome.stopped == "memory" or "MemoryError" in outcome.stderr


def test_memory_over_many_processes_is_bounded(jail):
    code = "import os, time\nfor _ in range(3): os.fork()\nkept = bytearray(b'x' * (100 * 2**20))\ntime.sleep(30)"
    assert jail(code).stopped == "memory"


def test_memory_outside_the_address_space_is_refused(jail):
    assert "PermissionError" in jail("import os; os.memfd_create('x')").stderr


@pytest.mark.parametrize(
    ("code", "stream"),
    [("while True: print('x' * 1000)", "stdout"), ("import os\nwhile True: os.write(2, b'y' * 4096)", "stderr")],
    ids=["output", "errors"],
)
def test_endless_output_is_cut_and_ends_the_program(jail, code, stream):
    outcome = jail(code)
    assert (outcome.stopped, len(getattr(outcome, stream))) == ("output", LIMITS.output_bytes)


def test_an_endless_loop_is_ended_by_its_processor_time(jail):
    outcome = jail("while True: pass")
    assert outcome.stopped in ("cpu", "seconds")
    assert outcome.exit < 0


def test_a_sleeper_that_ignores_every_signal_is_ended_by_the_clock(jail):
    code = """
import signal, time
for number in {*range(1, 32)} - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
time.sleep(60)
"""
    outcome = jail(code)
    assert (outcome.stopped, outcome.exit) == ("seconds", -signal.SIGKILL)


def test_a_file_of_ten_gigabytes_is_refused(jail):
    outcome = jail("f = open('big', 'wb')\nfor _ in range(10_000): f.write(bytes(2**20))")
    assert outcome.exit != 0 or outcome.stopped
    assert "File too large" in outcome.stderr or "No space left" in outcome.stderr or outcome.exit == -signal.SIGXFSZ


def test_many_files_are_bounded(jail):
    outcome = jail("for i in range(100_000): open(f'f{i}', 'wb').write(bytes(4096))")
    assert outcome.stopped == "files" or "No space left" in outcome.stderr


def test_folders_in_folders_without_end_are_bounded_and_removed(jail):
    outcome = jail("import os\nwhile True: os.mkdir('d'); os.chdir('d')")
    assert outcome.stopped in ("files", "seconds", "cpu") or "No space left" in outcome.stderr
    assert left(jail) == []


def test_files_of_the_machine_are_not_there(jail):
    proc = ["/proc/1/environ", "/proc/self/environ"]
    secrets = ["/etc/shadow", "/etc/passwd", "/root/.bashrc", "/root", *proc, "/sys", "/var/log"]
    code = f"""
import os
for path in {secrets!r}:
    try:
        os.listdir(path) if os.path.isdir(path) else open(path).read()
        print("read", path)
    except OSError:
        pass
"""
    assert jail(code).stdout == ""


def test_the_environment_holds_nothing_of_the_parent(jail, monkeypatch):
    monkeypatch.setenv("API_TOKEN", "secret")
    assert jail("import os; print(*sorted(os.environ))").stdout.split() == [
        "HOME", "LANG", "OMP_NUM_THREADS", "PATH", "PYTHONHASHSEED", "TMPDIR",
    ]  # fmt: skip


def test_symlinks_that_lead_out_pipes_folders_second_names_and_sparse_files_are_not_collected(jail, tmp_path):
    (tmp_path / "secret").write_text("secret")
    code = f"""
import os
os.symlink({str(tmp_path / "secret")!r}, "out.txt"), os.symlink({str(tmp_path)!r}, "linked")
os.mkfifo("pipe"), os.mkdir("folder"), open("a", "w").write("x"), os.link("a", "b")
open("sparse", "wb").truncate(8 * 2**20), open("small", "w").write("s")
"""
    refused = ("out.txt", "linked/secret", "pipe", "folder", "a", "absent", "sparse")
    outcome = jail(code, collect=("small", *refused))
    assert (outcome.exit, outcome.files) == (0, {"small": b"s"})


def test_a_child_that_left_the_session_dies_with_the_program(jail):
    code = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.close(1), os.close(2), time.sleep(60)
    os._exit(0)
print("done")
"""
    outcome = jail(code)
    assert (outcome.exit, outcome.stdout) == (0, "done\n")
    assert left(jail) == []


def test_a_double_fork_that_holds_the_output_does_not_delay_the_outcome(jail):
    outcome = jail("import os, time\nif os.fork() == 0:\n    if os.fork() == 0: time.sleep(60)\n    os._exit(0)\nprint('done')")
    assert (outcome.stdout, outcome.stopped) == ("done\n", "")
    assert outcome.seconds < LIMITS.seconds


def test_zombies_go_with_the_program(jail):
    outcome = jail("import os, time\nfor _ in range(10):\n    if os.fork() == 0: os._exit(0)\ntime.sleep(0.1); print('done')")
    assert outcome.stdout == "done\n"
    assert left(jail) == []


def test_the_first_process_and_the_keeper_cannot_be_killed(jail):
    code = "import os\nfor pid in (os.getppid(), 1, -1):\n    try: os.kill(pid, 9)\n    except OSError: pass"
    outcome = jail(code)
    # Signalling everything ends the program itself at most; what watches it goes on and answers.
    assert outcome.exit in (0, -signal.SIGKILL)
    assert jail("print('next')").stdout == "next\n"


def test_system_calls_of_other_architectures_and_new_ones_are_refused(jail):
    code = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
for number in (425, 435, 460, 321, 298, 272):  # io_uring_setup, clone3, one that is newer, bpf, perf_event_open, unshare
    ctypes.set_errno(0)
    libc.syscall(number, 0, 0, 0, 0, 0)
    print(ctypes.get_errno() in (errno.EPERM, errno.ENOSYS))
"""
    assert jail(code).stdout.split() == ["True"] * 6


def test_a_place_of_a_program_is_gone_after_it_and_empty_for_the_next(jail):
    outcome = jail(
        "import os; open('left', 'w'); os.access('/tmp', 2) and open(os.path.join('/tmp', 'left'), 'w').write('x');"
        "print(os.getcwd())"
    )
    assert not os.path.exists(outcome.stdout.strip() + "/left")
    assert jail("import os; print(os.listdir('.'))").stdout == "[]\n"


def test_programs_at_once_do_not_see_each_other(jail):
    code = "import os, time; open('m', 'w').write('{}'); time.sleep(0.2); print(open('m').read(), os.listdir('.'))"
    marks = [Program(code=code.format(i)) for i in range(6)]
    assert [outcome.stdout for outcome in jail.together(marks)] == [f"{i} ['m']\n" for i in range(6)]


def test_a_cancelled_call_ends_its_program(jail):
    async def cancelled() -> None:
        task = asyncio.ensure_future(jail.sandbox.run(Program(argv=("sleep", "60"))))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    jail.await_(cancelled())
    assert left(jail) == []


def test_a_thousand_at_once_all_come_to_an_outcome_and_the_good_ones_are_right(jail):
    kinds = [
        "print(6 * 7)",
        "while True: print('x' * 5000)",
        "import os\nwhile True: os.fork()",
        "bytearray(10**12)",
        "raise SystemExit(3)",
    ]
    outcomes = jail.together([Program(code=kinds[i % len(kinds)]) for i in range(1000)])
    assert [o.stdout for o in outcomes[::5]] == ["42\n"] * 200
    assert {o.stopped for o in outcomes[1::5]} == {"output"}
    assert {o.exit for o in outcomes[4::5]} == {3}
    assert left(jail) == []

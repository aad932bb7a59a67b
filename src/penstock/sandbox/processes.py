"""Processes and users of this machine: which run below a process, what they use, and how they are ended."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path


def free_users(size: int, pid: int) -> int:
    """The first of ``size`` user ids that no account is expected to have and no other sandbox uses: one block a warm process.

    The kernel counts processes by user, so two sandboxes with the same users would stop each other's programs. Where few ids
    exist, as in some containers, blocks come around again.
    """
    first, _, count = map(int, Path("/proc/self/uid_map").read_text().splitlines()[-1].split())
    blocks = max(1, count // 2 // size)
    return first + count - 1024 - size * (1 + pid % blocks)


def children(pid: int) -> list[int]:
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def descendants() -> list[int]:
    """The processes below this one, those that were adopted included."""
    found = children(os.getpid())
    for pid in found:
        for task in _tasks(pid):
            with contextlib.suppress(OSError):
                found += [int(each) for each in Path(f"/proc/{pid}/task/{task}/children").read_text().split()]
    return found


def _tasks(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def numbers_of(pid: int) -> dict[str, int]:
    """Numbers of a process: threads, and memory in kB."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split() for line in lines)
    return {pair[0][:-1]: int(pair[1]) for pair in pairs if pair[0] in ("Threads:", "RssAnon:", "RssShmem:")}


def end_descendants() -> None:
    """Kill every process below this one and wait for it; a process that dies leaves its children to this one."""
    while pids := descendants():
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, 0)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass

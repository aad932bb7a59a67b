"""What a sandbox runs and what came of it: plain values. That a program fails is an outcome, never an exception."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import PurePosixPath
from typing import Literal

from penstock.core.errors import PenstockError, SpecError

Stopped = Literal["", "seconds", "cpu", "memory", "output", "processes", "files"]


class SandboxError(PenstockError):
    """The sandbox itself cannot be used, is full, or lost a program: nothing is known of the program, and no score follows."""


@dataclass(frozen=True)
class Limits:
    """What one program may use; the programs of one sandbox may each ask for less than it gives, never for more.

    ``seconds`` is the wall-clock time from the program's start, ``cpu_seconds`` the processor time of each of its processes.
    ``memory_bytes`` bounds the address space of each process and what all of them hold together. ``output_bytes`` bounds
    standard output and standard error, each. ``processes`` counts threads too. ``file_bytes`` bounds all that it writes.
    """

    seconds: float = 10.0
    cpu_seconds: int = 10
    memory_bytes: int = 512 * 2**20
    output_bytes: int = 2**20
    processes: int = 32
    file_bytes: int = 64 * 2**20

    def __post_init__(self) -> None:
        for each in fields(self):
            if not 0 < getattr(self, each.name) < 2**62:
                raise SpecError(f"Limits.{each.name}={getattr(self, each.name)} must be positive and finite")

    def within(self, most: Limits) -> Limits:
        """These limits, where ``most`` allows them.

        Raises:
            SandboxError: one of them is above what the sandbox gives.
        """
        for each in fields(self):
            asked, given = getattr(self, each.name), getattr(most, each.name)
            if asked > given:
                raise SandboxError(
                    f"a program asks for {each.name}={asked} and the sandbox gives {given} at most; raise the sandbox's Limits"
                )
        return self


@dataclass(frozen=True)
class Program:
    """One program: Python ``code``, or an ``argv`` to execute. Exactly one of them.

    It runs in an empty folder that holds ``files`` (relative names) with ``stdin`` as its input; of what it leaves there, the
    regular files named in ``collect`` come back. ``limits`` None are the sandbox's own.
    """

    code: str = ""
    argv: tuple[str, ...] = ()
    stdin: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)
    collect: tuple[str, ...] = ()
    limits: Limits | None = None

    def __post_init__(self) -> None:
        if bool(self.code) == bool(self.argv):
            raise SpecError("a Program has either code or an argv, and exactly one of them")
        if any("\0" in text for text in (*self.argv, *self.files, *self.collect)):
            raise SpecError("a Program's argv and file names hold no NUL")
        for name in (*self.files, *self.collect):
            parts = PurePosixPath(name).parts
            if not parts or parts[0] == "/" or ".." in parts:
                raise SpecError(f"file {name!r} of a Program must lie in its own folder; use a relative name without ..")


@dataclass(frozen=True)
class Outcome:
    """What came of a program. ``exit`` is its exit code, or minus the signal that ended it.

    ``stopped`` names the limit for which it was ended, "" where it ended by itself. ``seconds`` is its wall-clock time. Text
    that is no UTF-8 has replacement characters. ``files`` has those of ``collect`` that are there as regular files.
    """

    exit: int
    stdout: str = ""
    stderr: str = ""
    stopped: Stopped = ""
    seconds: float = 0.0
    files: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with exit code 0: no proof of what it did, since a program may do that at any time."""
        return self.exit == 0 and not self.stopped

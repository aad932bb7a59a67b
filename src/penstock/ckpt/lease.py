"""Who may write a run: one process at a time, by a lease that lies with the run itself, in its folder and in its store.

A claim is a small file ``NNNNNN.json``, made only where there is none of that number; the largest number holds the run. Its
holder writes it again every few seconds. A claim that does not change for :data:`LEASE` seconds, as the one that waits measures
them, is of a process that is gone: no two clocks are ever compared. One that says that it ended, or whose process is not there
any more on the machine that asks, is free at once. Numbers come from the run alone, whatever began it: a shell, a job that was
started again, another job, another machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from penstock.ckpt.objects import Objects
from penstock.core.errors import CheckpointError

ATTEMPT = "PENSTOCK_ATTEMPT"
"""Environment variable that says that something starts the run again by itself (``penstock deploy`` sets it): it waits then."""
WAIT = 600.0
"""Seconds that such a start waits for the end of the process before, which may still save."""
LEASE = 45.0
"""Seconds without a sign of life after which a holder is gone."""
ASKING = 0.5
"""Seconds between two looks at a claim."""
TAKE_OVER = ", or take the run over from it with --take-over (in Python take_over=True), after which it writes no more"
_CLAIM = re.compile(r"(\d{6})(?:-\d{3})?\.json")
"""A claim's name; with a second number it is one from before claims were leases."""
_SIZE = 1024
"""Bytes of a claim in a folder, so that it is written over in one piece."""


class Claims(Protocol):
    """Where claims lie."""

    place: str
    beat: float
    """Seconds between two signs of life."""

    def numbers(self) -> list[int]:
        """The numbers of all claims, the newest last."""
        ...

    def read(self, number: int) -> bytes:
        """A claim as it is now; empty where it is gone."""
        ...

    def create(self, number: int, content: bytes) -> bool:
        """Make a claim; False where there is one."""
        ...

    def write(self, number: int, content: bytes) -> None:
        """Write one's own claim again."""
        ...

    def remove(self, number: int) -> None:
        """Remove an old claim, if it is there."""
        ...


class FolderClaims:
    """Claims in ``claims/`` of a run's folder, on a local disk or one that machines share.

    A claim is written over in place: machines that share a folder keep its list of names for up to a minute, but look at a
    file's content whenever it is opened.
    """

    beat = 5.0

    def __init__(self, run: Path) -> None:
        self.place, self.folder = str(run), run / "claims"

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}.json"

    def numbers(self) -> list[int]:
        return _numbers(path.name for path in self.folder.glob("*.json"))

    def read(self, number: int) -> bytes:
        with contextlib.suppress(FileNotFoundError):
            return self._path(number).read_bytes()
        return b""

    def create(self, number: int, content: bytes) -> bool:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            handle = os.open(self._path(number), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return False
        with open(handle, "wb") as file:
            file.write(content.ljust(_SIZE))
        return True

    def write(self, number: int, content: bytes) -> None:
        with open(self._path(number), "r+b", buffering=0) as file:
            file.write(content.ljust(_SIZE))

    def remove(self, number: int) -> None:
        self._path(number).unlink(missing_ok=True)


class StoreClaims:
    """Claims as ``attempts/`` of an object store that writes on a condition."""

    beat = 15.0

    def __init__(self, objects: Objects) -> None:
        self.place, self._objects = objects.url, objects

    def numbers(self) -> list[int]:
        return _numbers(name.rpartition("/")[2] for name in self._objects.sizes("attempts"))

    def read(self, number: int) -> bytes:
        with contextlib.suppress(FileNotFoundError):
            return self._objects.read(f"attempts/{number:06d}.json")
        return b""

    def create(self, number: int, content: bytes) -> bool:
        try:
            self._objects.write(f"attempts/{number:06d}.json", content, new=True)
        except FileExistsError:
            return False
        return True

    def write(self, number: int, content: bytes) -> None:
        self._objects.write(f"attempts/{number:06d}.json", content)

    def remove(self, number: int) -> None:
        self._objects.delete([f"attempts/{number:06d}.json"])


class Lease:
    """The right of this process to write a run, from :meth:`take` to :meth:`close`."""

    def __init__(
        self, claims: Claims, patience: float = 0.0, say: Callable[[str], None] | None = None, otherwise: str = TAKE_OVER
    ) -> None:
        """``patience``: seconds to wait for a holder that lives; ``say``: called once with what it waits for; ``otherwise``:
        what else than ending the holder would do."""
        self.claims, self.number, self._patience = claims, 0, patience
        self._say = say or (lambda text: print(f"penstock: {text}", file=sys.stderr, flush=True))
        self._about, self._or = this_process(), otherwise
        self.lost: CheckpointError | None = None
        """What says who took the run, once that was noticed."""
        self._beats, self._over, self._confirmed = 0, threading.Event(), _now()
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)

    def take(self) -> Lease:
        """Hold the run from here on; who held it before does not pass :meth:`check` any more.

        Raises:
            CheckpointError: a process that lives holds it; names its host, its number and since when.
        """
        deadline = time.monotonic() + (WAIT if ATTEMPT in os.environ else self._patience)
        while True:
            known = self.claims.numbers()
            if known:
                self._wait_for(known[-1], deadline)
            number = max(known, default=0) + 1
            if (self.claims.create(number, self._content()) or self._is_own(number)) and max(
                self.claims.numbers(), default=number
            ) == number:
                break
        self.number = number
        self._confirmed = _now()
        self._thread.start()
        with contextlib.suppress(Exception):  # they count no more
            for old in known[:-1]:
                self.claims.remove(old)
            for old in known[-1:]:
                _note(self.claims, old, self._about)
        return self

    def _is_own(self, number: int) -> bool:
        """Whether a claim is this one: a store may have made it, and its answer was lost on the way."""
        return read_claim(self.claims.read(number)).get("mark") == self._about["mark"]

    def check(self) -> None:
        """Raises CheckpointError where another process has taken the run."""
        newest = max(self.claims.numbers(), default=self.number)
        about = read_claim(self.claims.read(newest))
        about = about.get("taken", about)
        if newest > self.number or about.get("mark", self._about["mark"]) != self._about["mark"]:
            raise CheckpointError(
                f"{self.claims.place}: {described(about)} has taken this run over, so this process writes no more; nothing was "
                "changed since"
            )
        self._confirmed = _now()

    def is_held(self) -> bool:
        """Whether :meth:`check` passes now."""
        try:
            self.check()
        except (CheckpointError, OSError):
            return False
        return True

    def look(self) -> None:
        """:meth:`check` where there is a reason to: another claim was seen, or this process was stopped for a while."""
        if self.lost is not None:
            raise self.lost
        if _now() - self._confirmed > LEASE - 2 * self.claims.beat:
            with contextlib.suppress(OSError):  # a disk that is away; what it would hold is checked when it is written
                self.check()

    def close(self) -> None:
        """Give the run back, so that nobody has to wait for this process."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(self.claims.beat)
        if self.number:
            with contextlib.suppress(Exception):  # a store that is away: who comes next waits a little longer
                if self._is_own(self.number):
                    self.claims.write(self.number, self._content(ended=True))

    def _content(self, **more: Any) -> bytes:
        return json.dumps({**self._about, "beat": self._beats, **more}).encode()

    def _beat(self) -> None:
        while not self._over.wait(self.claims.beat):
            self._beats += 1
            try:
                self.check()
                self.claims.write(self.number, self._content())
            except CheckpointError as error:
                self.lost = error
                return
            except Exception:  # a disk or a store that is away; it may be back before the lease is over
                continue

    def _wait_for(self, number: int, deadline: float) -> None:
        """Until a claim's holder is gone, or the claim is not the last any more. Raises CheckpointError where it lives."""
        content, heard, silent = self.claims.read(number), False, True
        began = read = time.monotonic()
        while self.claims.numbers()[-1:] == [number]:
            about = read_claim(content)
            there = is_there(about)
            if about.get("ended") or there is False or (not there and read - began >= LEASE):
                return
            if (there or heard) and time.monotonic() >= deadline:
                raise CheckpointError(f"{self.claims.place}: {described(about)} is at work in it; end that process{self._or}")
            if silent:
                self._say(f"{self.claims.place}: {described(about)} has not said that it ended; waiting to see if it lives")
            silent = False
            time.sleep(ASKING)
            found, before, read = self.claims.read(number), read, time.monotonic()
            if found != content:
                content, began, heard = found, read, True
            elif (
                read - before > LEASE / 2
            ):  # this process stood still, or the store did: what the holder did meanwhile is unknown
                began = read


def free(claims: Claims) -> str:
    """Take a run away from the process that holds it, alive or not; gives the holder by name, empty where there was none.

    Waits until that process has ended, or can write no more: at most :data:`LEASE` seconds.
    """
    own = this_process()
    while True:
        last = max(claims.numbers(), default=0)
        about = read_claim(claims.read(last)) if last else {}
        if not last or about.get("ended"):
            return ""
        if claims.create(last + 1, json.dumps({**own, "beat": 0, "ended": True}).encode()):
            break
    began = time.monotonic()
    while time.monotonic() - began < LEASE and is_there(about) is not False:
        found = read_claim(claims.read(last))
        if found.get("ended"):
            break
        if "taken" not in found:  # not yet, or its holder wrote at the same time
            _note(claims, last, own)
        time.sleep(ASKING)
    return described(about)


def require_free(claims: Claims, patience: float = 0.0) -> None:
    """Wait until no process holds the run, where these claims can be read. Raises CheckpointError where one does, and still
    does after ``patience`` seconds."""
    try:
        Lease(claims, patience).take().close()
    except CheckpointError:
        raise
    except Exception:  # every store has errors of its own for being away; who writes asks again
        return


def _note(claims: Claims, number: int, taker: dict[str, Any]) -> None:
    """Write into a claim who has taken the run: its holder may not see for a minute that there is another claim."""
    claims.write(number, json.dumps({**read_claim(claims.read(number)), "taken": taker}).encode())


def _numbers(names: Iterable[str]) -> list[int]:
    return sorted(int(found[1]) for found in map(_CLAIM.fullmatch, names) if found)


def _now() -> float:
    """Seconds, those included in which the machine slept."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def read_claim(content: bytes) -> dict[str, Any]:
    """What a claim says; nothing where it is being written, or is damaged."""
    try:
        found = json.loads(content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def described(about: dict[str, Any]) -> str:
    """A holder by name: its process, host and start, by its own clock."""
    since = about.get("begun", about.get("time"))
    begun = f" (begun {datetime.fromtimestamp(since, UTC):%Y-%m-%d %H:%M} UTC by its clock)" if since else ""
    return f"process {about.get('process', '?')} on {about.get('host', 'a machine that it does not name')}{begun}"


def this_process() -> dict[str, Any]:
    """What tells this process from every other: host and its start, container, number and start of the process."""
    begun, process = round(time.time(), 3), os.getpid()
    return {"mark": secrets.token_hex(8), "begun": begun, **_machine(), "process": process, "started": _started(process)}


def is_there(about: dict[str, Any]) -> bool | None:
    """Whether a holder's process is on this machine and lives; None where that cannot be known from here."""
    here = _machine()
    if {name: about.get(name) for name in here} != here:
        return None
    started = _started(about["process"])
    if started == about["started"] == "there":  # without /proc another process may have the number by now
        return None
    return bool(about["started"]) and started == about["started"]


def _machine() -> dict[str, str]:
    boot, container = "", ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        container = os.readlink("/proc/self/ns/pid")
    return {"host": socket.gethostname(), "boot": boot, "container": container}


def _started(process: int) -> str:
    """When a process began, in ticks of the system (without ``/proc`` only that it is there); empty where it is not."""
    if not os.path.exists("/proc/self/stat"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, 0)
            return "there"
        return ""
    with contextlib.suppress(OSError, IndexError):
        fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace").rpartition(") ")[2].split()
        return "" if fields[0] in "ZX" else fields[19]
    return ""

"""Folders that weights pass through: each belongs to one living process, and what a dead one left behind is cleared away.

The owner holds a lock on a file in its folder. The system lets go of the lock when the process ends, however it ends, so a
folder whose lock can be taken has no owner any more.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
from pathlib import Path

from penstock.core.errors import WeightError
from penstock.core.files import lock

OWNER = "owner.lock"
PREFIX = "penstock-weights-"
"""Folders with this name and an owner file may be cleared away by anyone's start."""


def shared_folder(name: str, root: Path = Path("/dev/shm")) -> Path:
    """The folder of a run in shared memory; ``name`` tells runs of this machine apart.

    Raises:
        WeightError: this machine has no shared memory there.
    """
    if not root.is_dir():
        raise WeightError(f"{root} does not exist, so weights cannot go through shared memory; use the channel disk")
    return root / f"{PREFIX}{name}"


class OwnedFolder:
    """A folder that this process owns until :meth:`close`; others of the same user can read what lies in it."""

    def __init__(self, path: Path) -> None:
        """Make the folder; what dead owners left here and next to it is cleared away first.

        Raises:
            WeightError: another living process owns it, or it cannot be made.
        """
        self.path = path
        made = path.with_name(f".{path.name}.{os.getpid()}")  # locked before it has its name, so nobody clears it away
        try:
            clear_leftovers(path.parent)
            clear_if_dead(path)
            shutil.rmtree(made, ignore_errors=True)
            made.mkdir(mode=0o700, parents=True)
            self._lock = os.open(made / OWNER, os.O_RDWR | os.O_CREAT, 0o600)
            lock(self._lock)
            made.rename(path)
        except OSError as error:
            shutil.rmtree(made, ignore_errors=True)
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise WeightError(
                    f"{path}: another process publishes weights here; give each run a folder of its own"
                ) from error
            raise WeightError(f"{path}: the folder for weights cannot be made: {error}") from error

    def close(self) -> None:
        """Remove the folder with all that is in it."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(lock)


def shared_file(path: Path, length: int, advice: str = "") -> tuple[int, mmap.mmap]:
    """A new file of ``length`` bytes in shared memory: its handle, and its bytes. ``advice`` is for want of room.

    Raises:
        WeightError: the shared memory is too small.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.posix_fallocate(handle, 0, length)  # here, and not as a bus error in the middle of a copy
    except OSError as error:
        path.unlink(missing_ok=True)
        os.close(handle)
        raise WeightError(
            f"{path.parent}: no room for {length / 1e6:.0f} MB of weights: {error.strerror}; "
            f"enlarge the shared memory (in a container --shm-size){advice}"
        ) from error
    return handle, mmap.mmap(handle, length)


def clear_leftovers(root: Path) -> list[Path]:
    """Remove folders under ``root`` whose owners are dead; gives what was removed."""
    return [folder for folder in root.glob(f"{PREFIX}*") if clear_if_dead(folder)]


def clear_if_dead(folder: Path) -> bool:
    """Remove a folder whose owner is dead; gives whether that was so."""
    try:
        handle = os.open(folder / OWNER, os.O_RDWR)
    except OSError:  # no such folder, not one of ours, or another user's
        return False
    try:
        if not lock(handle) or not os.path.samestat(os.fstat(handle), os.stat(folder / OWNER)):
            return False
        shutil.rmtree(folder)
        return True
    except OSError:  # another start has cleared it meanwhile
        return False
    finally:
        os.close(handle)

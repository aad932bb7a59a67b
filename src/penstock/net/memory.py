"""Memory that is freed, for the next message or training step."""

from __future__ import annotations

import ctypes
import functools
import os
import platform

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1
"""Parameters of glibc's ``mallopt``."""


@functools.cache
def keep_freed_memory() -> bool:
    """Let the C library keep the blocks that arrays free, where it is glibc and the environment says nothing of it
    (``MALLOC_MMAP_THRESHOLD_``); gives whether it does.

    Usually it returns large blocks to the system, which zeroes every page again at the next use: 5 to 10% of a training
    step's processor time on a CPU, half of that of a message of a megabyte (docs/log.md). Kept are at most 512 MB at the
    heap's end.
    """
    if platform.libc_ver()[0] != "glibc" or "MALLOC_MMAP_THRESHOLD_" in os.environ:
        return False
    tune = ctypes.CDLL(None).mallopt
    return bool(tune(MMAP_THRESHOLD, 32 << 20) and tune(TRIM_THRESHOLD, 512 << 20))

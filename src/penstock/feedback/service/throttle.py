"""Growing waits after wrong passwords, for the name that was tried and for the address that tries."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from penstock.web.refusals import Refusal

NAME_FREE, ADDRESS_FREE = 5, 20
"""Wrong passwords in a row before waits begin. Several people may share an address."""
LONGEST_WAIT = 300.0
FORGET_SECONDS = 900.0
"""After so long without another one, wrong passwords are forgotten."""
MOST = 10_000
"""Names and addresses that are remembered; beyond them the ones that were quiet for longest are forgotten."""


class Throttle:
    """Counts wrong passwords. An attempt counts as wrong when it begins, so that many at once gain nothing."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._tries: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def begin(self, name: str, address: str) -> None:
        """Count an attempt. Raises Refusal (429) with the seconds to wait."""
        with self._lock:
            now = self._now()
            keys = self._keys(name, address)
            wait = max(self._until(key, free, now) - now for key, free in keys)
            if wait > 0:
                seconds = math.ceil(wait)
                raise Refusal(429, f"too many wrong passwords; try again in {seconds} s", code="too_many_attempts",
                              headers={"Retry-After": str(seconds)})  # fmt: skip
            for key, _ in keys:
                self._tries[key] = (self._count(key, now) + 1, now)
                self._tries.move_to_end(key)
            while len(self._tries) > MOST:
                self._tries.popitem(last=False)

    def succeeded(self, name: str, address: str) -> None:
        """The password was right: the name begins anew, and the address has one wrong one less."""
        with self._lock:
            (of_name, _), (of_address, _) = self._keys(name, address)
            self._tries.pop(of_name, None)
            count, last = self._tries.get(of_address, (0, 0.0))
            if count:
                self._tries[of_address] = (count - 1, last)

    def _until(self, key: str, free: int, now: float) -> float:
        count = self._count(key, now)
        over = count - free
        return now if over < 0 else self._tries[key][1] + min(LONGEST_WAIT, 2.0**over)

    def _count(self, key: str, now: float) -> int:
        count, last = self._tries.get(key, (0, 0.0))
        return count if now - last < FORGET_SECONDS else 0

    @staticmethod
    def _keys(name: str, address: str) -> tuple[tuple[str, int], tuple[str, int]]:
        return (f"name {name[:120]}", NAME_FREE), (f"address {address}", ADDRESS_FREE)

"""Growing waits after wrong passwords: for a name tried from one address, for an address, and for a name tried from everywhere.

A browser in which somebody has signed in before waits for its own wrong passwords alone, so that nobody locks another out by
trying their name. Counts are kept in the store, so that a restart forgets none and all processes count together. Who is not
signing in reads and writes nothing of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.feedback import schema
from penstock.feedback.database import Database
from penstock.feedback.service.secrets import hashed
from penstock.web.refusals import Refusal

HERE_FREE, ADDRESS_FREE, NAME_FREE = 5, 20, 60
"""Wrong passwords before waits begin: of a name from one address or known browser, in a row; of an address, which several
people may share; and of a name from everywhere, in an hour. One address alone, with its waits, stays below the last."""
HOUR = 3600.0
LONGEST_WAIT = 300.0
FORGET_SECONDS = 900.0
"""After so long without another one, wrong passwords are forgotten."""
MOST = 10_000
"""Names and addresses that are remembered; beyond them the ones that were quiet for longest are forgotten."""

table = schema.attempts


class Throttle:
    """Counts wrong passwords. An attempt counts as wrong when it begins, so that many at once gain nothing."""

    def __init__(self, database: Database, now: Callable[[], float], most: int = MOST) -> None:
        self._database, self._now, self._most = database, now, most

    def begin(self, name: str, address: str, browser: str = "") -> None:
        """Count an attempt. Raises Refusal (429) with the seconds to wait; then nothing is written.

        Args:
            browser: which one it is, of those in which ``name`` has signed in before; empty: none of them.
        """
        keys = self._keys(name, address, browser)
        with self._database.read() as connection:  # who is to wait does not take the others' turn to write
            self._require_turn(connection, keys)
        with self._database.write() as connection:
            now, known = self._now(), self._require_turn(connection, keys)
            connection.execute(table.delete().where(sa.or_(*(table.c.key == key for key in keys))))
            connection.execute(table.insert(), [{"key": key, "count": known[key][0] + 1, "last": now} for key in keys])
            self._forget(connection, now)

    def succeeded(self, name: str, address: str, browser: str = "") -> None:
        """The password was right: the name begins anew here, and the address and the hour have one wrong one less."""
        here, *wider = self._keys(name, address, browser)
        with self._database.write() as connection:
            connection.execute(table.delete().where(table.c.key == here))
            wrong = table.c.key.in_(wider) & (table.c.count > 0)
            connection.execute(table.update().where(wrong).values(count=table.c.count - 1))

    def _keys(self, name: str, address: str, browser: str) -> dict[str, int]:
        """What an attempt is counted for, and how many are free. Hashed: people type passwords where names belong."""
        name = name[:120]
        if browser:
            return {hashed(f"browser {browser} name {name}"): HERE_FREE}
        here, hour = f"address {address} name {name}", f"hour {self._now() // HOUR:.0f} name {name}"
        return {hashed(here): HERE_FREE, hashed(f"address {address}"): ADDRESS_FREE, hashed(hour): NAME_FREE}

    def _require_turn(self, connection: Connection, keys: dict[str, int]) -> dict[str, tuple[int, float]]:
        """The wrong passwords so far of each key, and when the last one was. Raises Refusal while one is to wait."""
        now = self._now()
        known = dict.fromkeys(keys, (0, now))
        for key, count, last in connection.execute(sa.select(table).where(sa.or_(*(table.c.key == key for key in keys)))):
            # A time to come was written under a clock that was put right since, or by one that is ahead of this one.
            if abs(now - last) < (FORGET_SECONDS if last <= now else LONGEST_WAIT):
                known[key] = count, min(last, now)
        over = [(count - keys[key], last) for key, (count, last) in known.items() if count >= keys[key]]
        ends = [last + min(LONGEST_WAIT, 2.0 ** min(wrong, 60)) for wrong, last in over]
        if max(ends, default=now) > now:
            seconds = math.ceil(max(ends) - now)
            raise Refusal(429, f"too many wrong passwords; try again in {seconds} s", code="too_many_attempts",
                          headers={"Retry-After": str(seconds)})  # fmt: skip
        return known

    def _forget(self, connection: Connection, now: float) -> None:
        connection.execute(table.delete().where(table.c.last <= now - FORGET_SECONDS))
        oldest = sa.select(table.c.last).order_by(table.c.last.desc()).offset(self._most - 1).limit(1)
        if (limit := connection.execute(oldest).scalar()) is not None:
            connection.execute(table.delete().where(table.c.last < limit))

"""Growing waits after wrong passwords, for the name that was tried and for the address that tries.

They are kept in the store, so that a restart forgets none and all processes count together. Who is not signing in reads and
writes nothing of it.
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

NAME_FREE, ADDRESS_FREE = 5, 20
"""Wrong passwords in a row before waits begin. Several people may share an address."""
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

    def begin(self, name: str, address: str) -> None:
        """Count an attempt. Raises Refusal (429) with the seconds to wait; then nothing is written."""
        keys = _keys(name, address)
        with self._database.read() as connection:  # who is to wait does not take the others' turn to write
            self._require_turn(connection, keys)
        with self._database.write() as connection:
            now, known = self._now(), self._require_turn(connection, keys)
            connection.execute(table.delete().where(sa.or_(*(table.c.key == key for key in keys))))
            connection.execute(table.insert(), [{"key": key, "count": known[key][0] + 1, "last": now} for key in keys])
            self._forget(connection, now)

    def succeeded(self, name: str, address: str) -> None:
        """The password was right: the name begins anew, and the address has one wrong one less."""
        of_name, of_address = _keys(name, address)
        with self._database.write() as connection:
            connection.execute(table.delete().where(table.c.key == of_name))
            wrong = (table.c.key == of_address) & (table.c.count > 0)
            connection.execute(table.update().where(wrong).values(count=table.c.count - 1))

    def _require_turn(self, connection: Connection, keys: dict[str, int]) -> dict[str, tuple[int, float]]:
        """The wrong passwords so far of each key, and when the last one was. Raises Refusal while one is to wait."""
        now = self._now()
        known = dict.fromkeys(keys, (0, now))
        for key, count, last in connection.execute(sa.select(table).where(sa.or_(*(table.c.key == key for key in keys)))):
            # A time to come was written under a clock that was put right since, or by one that is ahead of this one.
            if abs(now - last) < (FORGET_SECONDS if last <= now else LONGEST_WAIT):
                known[key] = count, min(last, now)
        wait = max(_until(count, keys[key], last, now) - now for key, (count, last) in known.items())
        if wait > 0:
            seconds = math.ceil(wait)
            raise Refusal(429, f"too many wrong passwords; try again in {seconds} s", code="too_many_attempts",
                          headers={"Retry-After": str(seconds)})  # fmt: skip
        return known

    def _forget(self, connection: Connection, now: float) -> None:
        connection.execute(table.delete().where(table.c.last <= now - FORGET_SECONDS))
        oldest = sa.select(table.c.last).order_by(table.c.last.desc()).offset(self._most - 1).limit(1)
        if (limit := connection.execute(oldest).scalar()) is not None:
            connection.execute(table.delete().where(table.c.last < limit))


def _until(count: int, free: int, last: float, now: float) -> float:
    over = count - free
    return now if over < 0 else last + min(LONGEST_WAIT, 2.0 ** min(over, 60))


def _keys(name: str, address: str) -> dict[str, int]:
    """What an attempt is counted for, and how many are free. Hashed: people type passwords where names belong."""
    return {hashed(f"name {name[:120]}"): NAME_FREE, hashed(f"address {address}"): ADDRESS_FREE}

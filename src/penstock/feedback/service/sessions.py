"""Who is signed in. A cookie holds a random id, the store its hash, so a copy of the store lets nobody in.

A new id is given at every sign-in and the old one ends; sessions live in the store, so a restart of the service ends none.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass

import sqlalchemy as sa

from penstock.feedback import rows, schema
from penstock.feedback.database import Database
from penstock.feedback.errors import NotAllowed
from penstock.feedback.records import Annotator
from penstock.feedback.service.secrets import hashed
from penstock.web.guard import same_secret

LONGEST_SECONDS, BROWSER_SECONDS = 7 * 24 * 3600.0, 365 * 24 * 3600.0
"""For which somebody stays signed in, and their browser known."""
MOST = 16
"""Sessions of one annotator; a new one ends the oldest."""

table = schema.sessions


@dataclass(frozen=True)
class Session:
    """Somebody signed in, by the id that their cookie holds."""

    id: str
    who: Annotator

    @property
    def csrf(self) -> str:
        """What a page of theirs must send with every act. It cannot be had without the id, and does not tell it."""
        return hmac.new(self.id.encode(), b"csrf", hashlib.sha256).hexdigest()


def browser_of(name: str, key: bytes) -> str:
    """What a browser keeps once ``name`` has signed in there, under the store's key: a random id that is bound to the name."""
    made = secrets.token_hex(16)
    return f"{made}.{_bound(made, name, key)}"


def known_browser(cookie: str, name: str, key: bytes) -> str:
    """The id in such a cookie; empty where ``name`` has not signed in in this browser."""
    made, _, proof = cookie.partition(".")
    return made if same_secret(proof, _bound(made, name, key)) else ""


def _bound(browser: str, name: str, key: bytes) -> str:
    return hmac.new(key, f"{browser}.{name}".encode("utf-8", "replace"), hashlib.sha256).hexdigest()


class Sessions:
    """The sessions of one store. ``now`` gives seconds."""

    def __init__(self, database: Database, now: Callable[[], float], seconds: float = LONGEST_SECONDS) -> None:
        self._database, self._now, self._seconds = database, now, seconds

    def begin(self, annotator: str, password: str = "") -> str:
        """Sign somebody in; gives the id for their cookie. Expired sessions leave, and beyond ``MOST`` the oldest.

        Args:
            password: the hash that their password was compared with. Comparing takes a while.

        Raises:
            NotAllowed: they have another password by now, or were switched off.
        """
        made, now = secrets.token_urlsafe(32), self._now()
        row = {"id": hashed(made), "annotator": annotator, "created": now, "expires": now + self._seconds}
        mine = table.c.annotator == annotator
        with self._database.write(head=False) as connection:
            who = rows.load_annotator(connection, annotator)
            if not who.enabled or who.password != password:
                raise NotAllowed(f"{annotator}: the password or the account was changed meanwhile; sign in again")
            connection.execute(table.delete().where(table.c.expires <= now))
            newest = sa.select(table.c.id).where(mine).order_by(table.c.created.desc()).offset(MOST - 1)
            old = list(connection.execute(newest).scalars())
            connection.execute(table.delete().where(table.c.id.in_(old)))
            connection.execute(table.insert(), row)
        return made

    def find(self, identity: str) -> Session | None:
        """The session of a cookie's id; None if there is none, it has ended, or its annotator is switched off."""
        query = sa.select(table.c.annotator).where(table.c.id == hashed(identity), table.c.expires > self._now())
        with self._database.read() as connection:
            annotator = connection.execute(query).scalar()
            if annotator is None:
                return None
            who = rows.load_annotator(connection, annotator)
        return Session(identity, who) if who.enabled else None

    def end(self, identity: str) -> None:
        with self._database.write(head=False) as connection:
            connection.execute(table.delete().where(table.c.id == hashed(identity)))

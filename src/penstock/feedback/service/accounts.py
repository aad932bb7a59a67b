"""Annotators as accounts: enrolled with an invite, which is good once and for some days, switched off and on."""

from __future__ import annotations

import re
import secrets
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from sqlalchemy.engine import Connection

from penstock.feedback import projects, rows, schema
from penstock.feedback.database import Database
from penstock.feedback.errors import FeedbackError, NotFound
from penstock.feedback.records import DEFAULT, Annotator, Role
from penstock.feedback.service.secrets import hashed

SHORTEST, LONGEST = 10, 1024
"""Characters of a password. SOURCE: NIST SP 800-63B: length is what counts, no rules on kinds of characters."""


class Passwords:
    """Makes and checks hashes. The defaults are RFC 9106's for little memory: 3 passes over 64 MiB, 4 lanes."""

    def __init__(self, passes: int = 3, memory_kib: int = 65536, lanes: int = 4) -> None:
        self._hasher = PasswordHasher(time_cost=passes, memory_cost=memory_kib, parallelism=lanes)
        self._nobody = self._hasher.hash("nobody has this password")

    def made(self, password: str) -> str:
        """A salted hash to keep. Raises FeedbackError: too short or too long."""
        if not SHORTEST <= len(password) <= LONGEST:
            raise FeedbackError(f"a password has {SHORTEST} to {LONGEST} characters; take a few words")
        return self._hasher.hash(_bytes(password))

    def same(self, kept: str, password: str) -> bool:
        """Whether the password is the one of a hash. An empty hash (nobody, no password yet) takes as long and is not."""
        try:
            return self._hasher.verify(kept or self._nobody, _bytes(password[:LONGEST])) and bool(kept)
        except (VerificationError, InvalidHashError):
            return False


def _bytes(password: str) -> bytes:
    """The same bytes for the same characters, however a keyboard composes them (Unicode form NFKC)."""
    return unicodedata.normalize("NFKC", password).encode()


INVITE_SECONDS = 7 * 24 * 3600.0
LONGEST_NAME = 60

table = schema.annotators


def require_short(name: str) -> None:
    """Refuse names that no list has room for. Raises FeedbackError."""
    if len(name) > LONGEST_NAME:
        raise FeedbackError(f"a name of {len(name)} characters; {LONGEST_NAME} is the most")


@dataclass(frozen=True)
class Accounts:
    """Accounts of one store; ``now`` gives seconds."""

    database: Database
    now: Callable[[], float]

    def enrol(self, name: str, role: Role, attributes: Mapping[str, str], project: str = DEFAULT) -> str:
        """Add a person, a member of a project; gives the secret of their invite, which is kept nowhere.

        Raises:
            FeedbackError: the name is taken, or a name, role or attribute that cannot be.
        """
        require_short(name)
        if len(attributes) > 20 or not all(isinstance(text, str) and len(text) <= 200 for text in attributes.values()):
            raise FeedbackError("attributes: give at most 20 texts of at most 200 characters, such as language or region")
        secret = self._secret()
        who = Annotator(name, role, "human", dict(attributes), invite=hashed(secret))
        with self.database.write() as connection:
            if rows.has(connection, table.c.name, name):
                raise FeedbackError(f"there is an annotator {name}; ask for a new invite of theirs, or take another name")
            rows.save_annotator(connection, who, self.now())
            projects.admit(connection, project, name)
        return secret

    def invite(self, name: str) -> str:
        """A new invite for somebody who is there; the old one is void, their password stays until it is used.

        Raises:
            NotFound: there is no person of that name.
        """
        secret = self._secret()
        with self.database.write() as connection:
            _change(connection, name, invite=hashed(secret))
        return secret

    def change(
        self, name: str, *, role: Role | None = None, password: str | None = None, quota: int | None = None,
        enabled: bool | None = None,
    ) -> None:  # fmt: skip
        """Give somebody another role, password's hash or most, or switch them off or on; another role or password, and being
        switched off, end their sessions. What is None stays.

        Raises:
            NotFound: there is no person of that name.
            FeedbackError: nobody would be an administrator any more.
        """
        given = {"role": role, "password": password, "quota": quota, "enabled": enabled}
        values = {field: value for field, value in given.items() if value is not None}
        Annotator(name, role or "annotator", quota=quota or 0)  # refuses what cannot be
        with self.database.write() as connection:
            admins = connection.execute(sa.select(table.c.name).where(table.c.role == "admin", table.c.enabled)).scalars().all()
            if list(admins) == [name] and (role not in (None, "admin") or enabled is False):
                raise FeedbackError(f"{name} is the only administrator; make another one first")
            _change(connection, name, **values)
            if role is not None or password is not None or enabled is False:
                _end_sessions(connection, name)

    def invited(self, secret: str) -> str:
        """Whose invite a secret is. Raises NotFound: nobody's, used already, or expired."""
        query = sa.select(table.c.name).where(table.c.invite == hashed(secret), table.c.enabled)
        with self.database.read() as connection:
            name = connection.execute(query).scalar() if self._alive(secret) else None
        if name is None:
            raise NotFound("this invitation does not exist, has been used, or has expired; ask for a new one")
        return name

    def redeem(self, secret: str, password: str) -> str:
        """Set a password's hash by an invite, which ends, as do all sessions of the old password; gives the name.

        Raises:
            NotFound: the invite is no good, or the second of two came too late.
        """
        name = self.invited(secret)
        mine = (table.c.name == name) & (table.c.invite == hashed(secret))
        with self.database.write() as connection:
            changed = connection.execute(table.update().where(mine).values(password=password, invite=""))
            if not changed.rowcount:
                raise NotFound("this invitation has been used; ask for a new one")
            _end_sessions(connection, name)
        return name

    def _secret(self) -> str:
        """A secret that says itself until when it is good; it is hashed as a whole, so that this cannot be changed."""
        return f"{int(self.now() + INVITE_SECONDS):x}-{secrets.token_urlsafe(24)}"

    def _alive(self, secret: str) -> bool:
        until = re.match(r"([0-9a-f]{1,12})-[\w\-]{32}\Z", secret)
        return until is not None and int(until[1], 16) > self.now()


def _change(connection: Connection, name: str, **values: Any) -> None:
    person = (table.c.name == name) & (table.c.nature == "human")
    if not connection.execute(table.update().where(person).values(**values)).rowcount:
        raise NotFound(f"there is no person {name!r:.60}; enrol them first")


def _end_sessions(connection: Connection, name: str) -> None:
    """In the transaction of what ends them: a crash between the two would leave them alive."""
    connection.execute(schema.sessions.delete().where(schema.sessions.c.annotator == name))

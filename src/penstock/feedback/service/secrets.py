"""The store's own random keys, and names of tasks that tell an annotator nothing.

A task is named by the hash of what it holds, so somebody who has the texts could compute which name a gold task or a certain
model's response would have. Annotators therefore see a handle: the name enciphered under the store's key, another one for
each annotator.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable

import sqlalchemy as sa

from penstock.feedback import schema
from penstock.feedback.database import Database
from penstock.feedback.errors import NotFound

ROUNDS = 4
"""Rounds of the cipher. SOURCE: Luby & Rackoff 1988: four rounds of a pseudorandom function make a strong permutation."""


def hashed(secret: str) -> str:
    """What the store keeps of a secret of at least 128 random bits: its SHA-256, in hex."""
    return hashlib.sha256(secret.encode()).hexdigest()


def store_key(database: Database, name: str) -> bytes:
    """The store's 256-bit key of a name, made when it is first asked for; the same in all processes, for ever."""
    table = schema.secrets
    query = sa.select(table.c.value).where(table.c.name == name)
    with database.write() as connection:
        found = connection.execute(query).scalar()
        if found is None:
            found = secrets.token_bytes(32)
            connection.execute(table.insert(), {"name": name, "value": found})
        return bytes(found)


class Handles:
    """Names of tasks (32 hex digits) to handles of the same form and back."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def handle(self, task: str, annotator: str) -> str:
        return self._enciphered(task, annotator, range(ROUNDS))

    def task(self, handle: str, annotator: str) -> str:
        """The task that a handle of this annotator stands for, whether or not there is such a task.

        Raises:
            NotFound: it has not the form of a handle.
        """
        if not re.fullmatch(r"[0-9a-f]{32}", handle):
            raise NotFound("there is no such task of yours; ask for the next one")
        found = self._enciphered(handle[16:] + handle[:16], annotator, reversed(range(ROUNDS)))  # a round undoes itself
        return found[16:] + found[:16]

    def _enciphered(self, name: str, annotator: str, rounds: Iterable[int]) -> str:
        left, right = name[:16], name[16:]
        for number in rounds:
            pad = hmac.new(self._key, f"{number}/{right}/{annotator}".encode(), "sha256").hexdigest()[:16]
            left, right = right, f"{int(left, 16) ^ int(pad, 16):016x}"
        return left + right

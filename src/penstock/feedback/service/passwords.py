"""Passwords: hashed with Argon2id, compared in a time that tells nothing of whether the name exists."""

from __future__ import annotations

import unicodedata

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from penstock.feedback.errors import FeedbackError

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

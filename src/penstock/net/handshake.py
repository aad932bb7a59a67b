"""How the two ends of a connection prove that they belong to one run. Neither sends the run's token: each signs the other's
fresh number with it.

Both halves are generators: they yield a message to send (None: none), are sent the message that came, and return their result
with a last message to send (None: none). An error as result is raised once the last message is sent. So the links of event
loops and those of threads share them.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Generator
from typing import Any, TypeVar

from penstock.core.errors import WireError
from penstock.net import wire

SECONDS = 5.0
"""How long the handshake may take."""

MAX_BYTES = 1024
"""A stranger can make us read no more than this."""

Result = TypeVar("Result")
Handshake = Generator[list[Any] | None, Any, tuple[Result | WireError, list[Any] | None]]


def server_half(token: str, here: str, peer: str) -> Handshake[tuple[str, str]]:
    """Gives (name, role) of who proved to know the token. ``here`` is our own name, ``peer`` the other's, for errors."""
    number = secrets.token_bytes(32)
    match (yield ["challenge", number, here]):
        case ["hello", str(name), str(role), bytes(theirs), bytes(proof)]:
            if hmac.compare_digest(proof, _proof(token, "hello", number, theirs, name, role)):
                return (name, role), ["welcome", _proof(token, "welcome", number, theirs, here)]
            return WireError(f'{peer} called itself {role} "{name}" and does not know the token of this run'), ["refused"]
    return WireError(f"{peer} sent something else than a greeting"), None


def client_half(token: str, name: str, role: str, peer: str) -> Handshake[str]:
    """Gives the name of a server that proved to know the token; ``name`` and ``role`` are our own."""
    match (yield None):
        case ["challenge", bytes(theirs), str(there)]:
            number = secrets.token_bytes(32)
        case _:
            return WireError(f"{peer} is no server of Penstock"), None
    match (yield ["hello", name, role, number, _proof(token, "hello", theirs, number, name, role)]):
        case ["welcome", bytes(proof)] if hmac.compare_digest(proof, _proof(token, "welcome", theirs, number, there)):
            return there, None
        case ["refused"]:
            return WireError(f"{there} at {peer} refused the token; it is not the one of that run"), None
    return WireError(f"{peer} does not know the token of this run; it is another run's server"), None


def _proof(token: str, *said: str | bytes) -> bytes:
    return hmac.digest(token.encode(), b"".join(wire.pack(list(said))), "sha256")

"""Who may speak to a server at all, what its secrets are, and how much of a body is read."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.requests import Request

from penstock.core.errors import DataError
from penstock.web.crowd import Bodies
from penstock.web.fields import object_of
from penstock.web.refusals import Refusal

SHORTEST = 16
"""Characters of a token or a key at least."""


@dataclass(frozen=True)
class BodyLimits:
    """What a client may send. Bytes and seconds."""

    body_bytes: int = 4 << 20
    body_seconds: float = 30.0
    """In which a body must have come, or the next part of a long one."""
    head_seconds: float = 10.0
    """In which a request's first lines must have come."""
    bodies: Bodies = field(default_factory=Bodies, compare=False)
    """Of all clients and of each."""


def require_own_host(headers: Mapping[str, str], local: bool) -> None:
    """Refuse requests of pages of other sites, and, where only this machine is served, other names than its own.

    A page elsewhere can make its own name point to this machine (DNS rebinding), so the address alone proves nothing.

    Raises:
        Refusal: with 421 for the name, 403 for the origin.
    """
    host = headers.get("host", "")
    if local and not is_loopback(name_of(host)):
        raise Refusal(421, f'this server answers to "127.0.0.1" and "localhost", not to "{host[:100]}"')
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != host:
        raise Refusal(403, "requests of pages of other sites are refused", code="foreign_origin")


def is_loopback(host: str) -> bool:
    """Whether a name or address is this machine's own, for itself alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def name_of(host: str) -> str:
    """The name in a Host header, without its port."""
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def bearer(headers: Mapping[str, str]) -> str:
    """The token of an ``Authorization: Bearer`` header; empty where there is none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def same_secret(given: str, secret: str) -> bool:
    """Compares in a time that tells nothing of the secret."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), secret.encode())


def read_secret(file: str) -> str:
    """The secret in a file, its first line.

    Raises:
        DataError: the file cannot be read, others on this machine may read it, or what is in it is too short or no plain text.
    """
    path = Path(file)
    try:
        if path.stat().st_mode & 0o077:
            raise DataError(f"{path}: others on this machine can read it; run: chmod 600 {path}")
        lines = path.read_text(encoding="ascii").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: a secret is plain ASCII text on one line; make one with: openssl rand -hex 32") from error
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}; make a secret with: (umask 077; openssl rand -hex 32 > {path})") from error
    secret = lines[0].strip() if lines else ""
    if len(secret) < SHORTEST or " " in secret or any(line.strip() for line in lines[1:]):
        raise DataError(
            f"{path}: a secret is one line of at least {SHORTEST} characters, no spaces; make one with openssl rand -hex 32"
        )
    return secret


async def parts(request: Request, limits: BodyLimits, most: int) -> AsyncIterator[bytes]:
    """A body as it comes, at most ``most`` bytes, each part within its deadline. Raises Refusal."""
    declared = request.headers.get("content-length", "0")
    too_large = Refusal(413, f"the body is larger than {most} bytes")
    if declared.isdigit() and int(declared) > most:
        raise too_large
    received, stream = 0, request.stream()
    while True:
        try:
            async with asyncio.timeout(limits.body_seconds):
                part = await anext(stream, None)
        except TimeoutError as error:
            raise _late(limits) from error
        if part is None:
            return
        received += len(part)
        if received > most:
            raise too_large
        if part:
            yield part


async def read_body(request: Request, limits: BodyLimits, most: int = 0) -> bytes:
    """A whole body of at most ``most`` bytes (0: what the limits say), whose room is taken until the request has ended.

    Raises Refusal, and ClientDisconnect where the client has left.
    """
    body, most = bytearray(), min(most or limits.body_bytes, limits.body_bytes)
    address = request.client.host if request.client else ""
    request.state.held.enter_context(limits.bodies.reserved(address, request.headers, most))
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for part in parts(request, limits, most):
                body += part
    except TimeoutError as error:
        raise _late(limits) from error
    return bytes(body)


async def read_json(request: Request, limits: BodyLimits, most: int = 0) -> dict[str, Any]:
    """The JSON object of a request. Raises Refusal, and ClientDisconnect where the client has left."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # browsers send other kinds across sites without asking
        raise Refusal(415, "send JSON, with the header Content-Type: application/json")
    body = await read_body(request, limits, most)
    async with limits.bodies.turn(len(body)):
        return object_of(body)


def _late(limits: BodyLimits) -> Refusal:
    return Refusal(408, f"the body did not come within {limits.body_seconds:g} s", headers={"Connection": "close"})

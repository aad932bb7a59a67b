"""Who may ask what of a server: hosts, origins, tokens; and how much of a body is read."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from starlette.requests import Request

from penstock.core.errors import DataError, SpecError
from penstock.serve.fields import object_of
from penstock.serve.refusals import Refusal
from penstock.serve.service import Limits

Right = Literal["anyone", "use", "change"]
"""What a route needs: nothing; the right to generate; the right to change weights and to pause."""
SHORTEST = 16
"""Characters of a token or a key at least."""


@dataclass(frozen=True)
class Access:
    """The secrets of a server, and where it listens.

    The token gives every right, the key only that to generate. Without a token nothing can be changed; without either,
    whoever reaches the server may generate, and only this machine reaches it.
    """

    host: str = "127.0.0.1"
    token: str = ""
    key: str = ""

    def __post_init__(self) -> None:
        if not self.local and not self.token:
            raise SpecError(f"--host {self.host} is open to other machines; give --token-file FILE, or leave --host out")

    @property
    def local(self) -> bool:
        """Whether only this machine reaches the server."""
        return is_loopback(self.host)

    def check(self, right: Right, headers: Mapping[str, str]) -> None:
        """Raises Refusal where a request with these headers does not have a right."""
        host = headers.get("host", "")
        if self.local and not is_loopback(_name_of(host)):  # a page that makes its own name point here is not the user
            raise Refusal(421, f'this server answers to "127.0.0.1" and "localhost", not to "{host[:100]}"')
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            raise Refusal(403, "requests of pages of other sites are refused", code="foreign_origin")
        if right == "anyone" or (right == "use" and not (self.token or self.key)):
            return
        if right == "change" and not self.token:
            raise Refusal(403, "this server was started without a token, so nothing can be changed; start it with --token-file")
        given = headers.get("authorization", "").partition(" ")
        mine = [secret for secret in (self.token, self.key if right == "use" else "") if secret]
        if given[0].lower() != "bearer" or not any(_same(given[2].strip(), secret) for secret in mine):
            raise Refusal(401, "send the right token: Authorization: Bearer TOKEN", code="invalid_api_key",
                          headers={"WWW-Authenticate": "Bearer"})  # fmt: skip


def is_loopback(host: str) -> bool:
    """Whether a name or address is this machine's own, for itself alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _name_of(host: str) -> str:
    """The name in a Host header, without its port."""
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def _same(given: str, secret: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), secret.encode())


def read_secret(file: str) -> str:
    """The secret in a file, its first line.

    Raises:
        DataError: the file cannot be read, or what is in it is too short or no plain text.
    """
    path = Path(file)
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: a secret is plain ASCII text on one line; make one with: openssl rand -hex 32") from error
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}; make a secret with: openssl rand -hex 32 > {path}") from error
    secret = lines[0].strip() if lines else ""
    if len(secret) < SHORTEST or " " in secret or any(line.strip() for line in lines[1:]):
        raise DataError(
            f"{path}: a secret is one line of at least {SHORTEST} characters, no spaces; make one with openssl rand -hex 32"
        )
    return secret


async def parts(request: Request, limits: Limits, most: int) -> AsyncIterator[bytes]:
    """A body as it comes, at most ``most`` bytes, each part within its deadline. Raises Refusal."""
    declared = request.headers.get("content-length", "0")
    too_large = Refusal(413, f"the body is larger than {most} bytes", headers={"Connection": "close"})
    if declared.isdigit() and int(declared) > most:
        raise too_large
    received, stream = 0, request.stream()
    while True:
        try:
            async with asyncio.timeout(limits.body_seconds):
                part = await anext(stream, None)
        except TimeoutError as error:
            raise Refusal(
                408, f"the body did not come within {limits.body_seconds:g} s", headers={"Connection": "close"}
            ) from error
        if part is None:
            return
        received += len(part)
        if received > most:
            raise too_large
        if part:
            yield part


def _late(limits: Limits) -> Refusal:
    return Refusal(408, f"the body did not come within {limits.body_seconds:g} s", headers={"Connection": "close"})


async def read_json(request: Request, limits: Limits) -> dict[str, Any]:
    """The JSON object of a request. Raises Refusal, and ClientDisconnect where the client has left."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # browsers send other kinds across sites without asking
        raise Refusal(415, "send JSON, with the header Content-Type: application/json")
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for part in parts(request, limits, limits.body_bytes):
                body += part
    except TimeoutError as error:
        raise Refusal(
            408, f"the body did not come within {limits.body_seconds:g} s", headers={"Connection": "close"}
        ) from error
    return object_of(body)

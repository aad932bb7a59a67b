"""Who may ask what of an inference server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from penstock.core.errors import SpecError
from penstock.web.guard import bearer, is_loopback, require_own_host, same_secret
from penstock.web.refusals import Refusal

Right = Literal["anyone", "use", "change"]
"""What a route needs: nothing; the right to generate; the right to change weights and to pause."""


@dataclass(frozen=True)
class Access:
    """The secrets of a server, and where it listens.

    The token gives every right, the key only that to generate. Without a token nothing can be changed; without either,
    any client that reaches the server may generate, and only this machine reaches it.
    """

    host: str = "127.0.0.1"
    token: str = ""
    key: str = ""
    behind_https: bool = False
    """A proxy in front, perhaps on this machine, speaks https and passes the Host header on."""

    def __post_init__(self) -> None:
        if not self.local and not self.token:
            raise SpecError(
                f"--host {self.host} is open to other machines; give --token-file FILE, or leave --host and --behind-https out"
            )

    @property
    def local(self) -> bool:
        """Whether only this machine reaches the server."""
        return is_loopback(self.host) and not self.behind_https

    def check(self, right: Right, headers: Mapping[str, str]) -> None:
        """Raises Refusal where a request with these headers does not have a right."""
        require_own_host(headers, self.local)
        if right == "anyone" or (right == "use" and not (self.token or self.key)):
            return
        if right == "change" and not self.token:
            raise Refusal(403, "this server was started without a token, so nothing can be changed; start it with --token-file")
        mine = [secret for secret in (self.token, self.key if right == "use" else "") if secret]
        if not any(same_secret(bearer(headers), secret) for secret in mine):
            raise Refusal(401, "send the right token: Authorization: Bearer TOKEN", code="invalid_api_key",
                          headers={"WWW-Authenticate": "Bearer"})  # fmt: skip

"""What a server says no with: a status and a body in the shape that OpenAI's clients read."""

from __future__ import annotations

from typing import Any

from penstock.core.errors import GenerationError, ModelError, PenstockError, SpecError, WeightError
from penstock.core.messages import MessageError


class Refusal(Exception):
    """A request that is not carried out. ``param`` names the field at fault, ``code`` is for programs."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = headers or {}

    @property
    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": KINDS[self.status], "param": self.param, "code": self.code}}


KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    421: "invalid_request_error",
    429: "rate_limit_error",
    500: "server_error",
    501: "invalid_request_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""The ``type`` of an error by its status."""


def refusal_of(error: Exception) -> Refusal:
    """What an error of ours is to a client: its own fault (400), a refused update (409), or ours (500)."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, MessageError):
        return Refusal(400, str(error), param=error.where)
    if isinstance(error, WeightError):
        return Refusal(409, str(error), code="weights_refused")
    if isinstance(error, GenerationError) and "the engine failed" in str(error):
        return Refusal(500, str(error))
    if isinstance(error, GenerationError | SpecError | ModelError):
        return Refusal(400, str(error))
    if isinstance(error, TimeoutError):
        return Refusal(504, "the request took longer than this server allows; ask for fewer tokens", code="timeout")
    if isinstance(error, PenstockError):
        return Refusal(500, str(error))
    return Refusal(500, f"{type(error).__name__} in the server; its log has more")

"""A request as its handler sees it, read and permitted, and what a handler gives back.

Handlers are plain functions that may block: the application runs them in threads, so that its event loop goes on answering.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import parse_qsl

from starlette.responses import Response

from penstock.feedback.records import Annotator
from penstock.feedback.service.sessions import Session
from penstock.web.fields import Fields
from penstock.web.refusals import Refusal

Right = Literal["anyone", "signed in", "adjudicator", "admin"]
Body = Literal["none", "json", "form"]
Pool = Literal["quick", "slow", "password", "product"]

ALLOWED: Mapping[str, frozenset[str]] = {
    "signed in": frozenset({"annotator", "adjudicator", "admin"}),
    "adjudicator": frozenset({"adjudicator", "admin"}),
    "admin": frozenset({"admin"}),
}
"""Roles by right."""

SESSION, FORM, BROWSER, PROJECT = "penstock_session", "penstock_form", "penstock_browser", "penstock_project"
"""Cookies: who is signed in; what the forms of who is not are bound to; who has signed in in this browser before; and which
project was open last."""


@dataclass(frozen=True)
class Call:
    """One request. ``fields`` are of its JSON object or form; ``name`` is what the path has for ``{…}``."""

    fields: Fields
    query: Mapping[str, str]
    headers: Mapping[str, str]
    cookies: Mapping[str, str]
    address: str
    name: str = ""
    session: Session | None = None
    holder: Any = None
    """What the route's guard gave."""

    @property
    def who(self) -> Annotator:
        """Who is signed in; routes with a right have somebody."""
        if self.session is None:
            raise signed_out()
        return self.session.who


SMALL, LARGE = 16 << 10, 2 << 20
"""Bytes of a body: of most routes, and of those that take texts."""


@dataclass(frozen=True)
class Route:
    """How a path is answered: by whom it may be used, what its body is and how long at most, and in which threads it runs.

    A ``page`` answers people: refusals are pages too, and who is signed out is sent to sign in. A ``guard`` lets in by what it
    finds in the headers, before the body is read, and raises Refusal.
    """

    handler: Callable[[Call], Response]
    right: Right = "signed in"
    body: Body = "none"
    pool: Pool = "quick"
    page: bool = False
    most: int = SMALL
    guard: Callable[[Mapping[str, str]], Any] | None = None


Routes = Mapping[str, Mapping[str, Route]]
"""Path to method to route. One ``{…}`` may be the last part of a path."""


def reply(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON answer. Half a surrogate pair, which UTF-8 has no form for, travels escaped."""
    return Response(json.dumps(value, allow_nan=False), status, dict(headers or {}), "application/json")


def signed_out() -> Refusal:
    return Refusal(401, "sign in first", code="signed_out")


def form_of(body: bytes) -> dict[str, Any]:
    """The fields of a form. Raises Refusal for what no browser sends: other bytes than UTF-8, fields twice, many fields."""
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, strict_parsing=bool(body), errors="strict", max_num_fields=16)
    except ValueError as error:
        raise Refusal(400, "the body is not a form") from error
    if len(dict(pairs)) != len(pairs):
        raise Refusal(400, "the form has a field twice")
    return dict(pairs)

"""The service's ASGI application: finds the route of a path, checks who may use it, runs its handler in a thread.

Whatever is answered carries the content policy: nothing of another host, no script or style but the page's own files.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from penstock.feedback import errors
from penstock.feedback.service.adjudicate import Adjudicate
from penstock.feedback.service.admin import Admin
from penstock.feedback.service.annotate import Annotate
from penstock.feedback.service.calls import ALLOWED, SESSION, Call, Pool, Route, Routes, form_of, reply, signed_out
from penstock.feedback.service.context import Context
from penstock.feedback.service.pages import Pages, message
from penstock.feedback.service.sessions import Session
from penstock.web.fields import Fields
from penstock.web.files import POLICY
from penstock.web.guard import read_body, read_json, require_own_host, same_secret
from penstock.web.refusals import Refusal

HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with no-referrer, browsers send "Origin: null" with our own forms
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Sent with everything; a route may say otherwise."""
THREADS: Mapping[Pool, int] = {"quick": 16, "slow": 1, "password": 2, "product": 4}
"""Handlers at work at once. Passwords take 64 MiB each; exports and reports wait for each other, products for products, votes
for none of them."""
FORM_BYTES = 16 << 10

log = logging.getLogger("penstock.feedback")

NOT_FOUND = Refusal(404, "there is no such task, event or person", code="not_found")
REFUSALS: Mapping[type[errors.FeedbackError], Refusal] = {
    errors.NotFound: NOT_FOUND,
    errors.NotAllowed: Refusal(403, "this is not open to you", code="not_allowed"),
    errors.AlreadyAnswered: Refusal(409, "you have answered this task already; undo that first", code="already_answered"),
    errors.SeatTaken: Refusal(409, "others have taken all seats of this task; ask for the next one", code="seat_taken"),
    errors.KeyReused: Refusal(409, "this key named another act; make a new key for each act", code="key_reused"),
    errors.NothingToUndo: Refusal(409, "there is nothing to take back", code="nothing_to_undo"),
}
"""What the store's refusals are to a client. The store's own words name tasks by their real names, so they stay here."""


class App:
    """The application over one store. :meth:`close` ends its threads."""

    def __init__(self, context: Context, *more: Routes) -> None:
        """``more``: routes beside those of people, such as those of products."""
        self.context = context
        parts: list[Routes] = [*(part(context).routes() for part in (Pages, Annotate, Admin, Adjudicate)), *more]
        self.routes: dict[str, Mapping[str, Route]] = {path: methods for part in parts for path, methods in part.items()}
        self._pools = {name: ThreadPoolExecutor(count, f"feedback-{name}") for name, count in THREADS.items()}

    def close(self) -> None:
        for pool in self._pools.values():
            pool.shutdown(cancel_futures=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        pattern, name, methods = self._found(scope["path"])
        route = methods.get(scope["method"])
        try:
            response = await self._answer(Request(scope, receive), pattern, name, route, methods)
        except ClientDisconnect:
            return
        except Exception as error:
            response = self._refused(error, route, scope)
        for header, value in HEADERS.items():
            response.headers.setdefault(header, value)
        await response(scope, receive, send)

    def _found(self, path: str) -> tuple[str, str, Mapping[str, Route]]:
        """The pattern of a path, what stands in it for ``{…}``, and its methods; none for an unknown path."""
        if path in self.routes and "{" not in path:
            return path, "", self.routes[path]
        folder, _, last = path.rpartition("/")
        for pattern, methods in self.routes.items():
            if last and pattern.endswith("}") and pattern.rpartition("/")[0] == folder:
                return pattern, last, methods
        return "an unknown path", "", {}

    async def _answer(
        self, request: Request, pattern: str, name: str, route: Route | None, methods: Mapping[str, Route]
    ) -> Response:
        headers = request.headers
        require_own_host(headers, self.context.settings.local)
        if not methods:
            raise Refusal(404, "there is nothing here", code="not_found")
        if route is None:
            allowed = ", ".join(methods)
            raise Refusal(405, f"{pattern} takes {allowed}, not {request.method[:20]}", headers={"Allow": allowed})
        cookies = request.cookies
        if route.right != "anyone" and SESSION not in cookies:
            raise signed_out()  # before its body is read
        call = Call(
            fields=Fields(await self._fields(request, route)),
            query=dict(request.query_params),
            headers=headers,
            cookies=cookies,
            address=self._address(request),
            name=name,
        )
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pools[route.pool], self._handled, route, call)

    async def _fields(self, request: Request, route: Route) -> dict[str, Any]:
        limits = self.context.settings.limits
        if route.body == "json":
            return await read_json(request, limits)
        if route.body == "form":
            kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/x-www-form-urlencoded":
                raise Refusal(415, "send a form, with the header Content-Type: application/x-www-form-urlencoded")
            return form_of(await read_body(request, replace(limits, body_bytes=FORM_BYTES)))
        return {}

    def _handled(self, route: Route, call: Call) -> Response:
        """In a thread: who is it, may they, and then the handler."""
        session = self._session(call.cookies.get(SESSION, ""))
        if route.right != "anyone":
            if session is None:
                raise signed_out()
            if route.body != "none":
                given = call.fields.text("csrf", "") if route.body == "form" else call.headers.get("x-csrf-token", "")
                if not same_secret(given, session.csrf):
                    raise Refusal(403, "the CSRF token is missing or not of this session; load the page again", code="csrf")
            if session.who.role not in ALLOWED[route.right]:
                raise Refusal(403, f"this is for the role {route.right}; you are {session.who.role}", code="not_allowed")
        return route.handler(replace(call, session=session))

    def _session(self, identity: str) -> Session | None:
        if not 20 <= len(identity) <= 100:
            return None
        with self.context.store.database.read() as connection:
            return self.context.sessions.find(connection, identity)

    def _address(self, request: Request) -> str:
        """Where the client is: behind a proxy of ours what that one wrote last, otherwise the other end of the connection."""
        if self.context.settings.forwarded:
            hops = ",".join(request.headers.getlist("x-forwarded-for")).split(",")
            if hops[-1].strip():
                return block_of(hops[-1].strip())
        return block_of(request.client.host) if request.client else ""

    def _refused(self, error: Exception, route: Route | None, scope: Scope) -> Response:
        refusal = refusal_of(error)
        if refusal.status >= 500:
            where = "a page" if route is None else getattr(route.handler, "__qualname__", "a handler")
            log.error("%s failed", where, exc_info=error)  # never the path: an invitation's secret stands in one
        if route is not None and route.page:
            if refusal.code == "signed_out":
                return RedirectResponse("/sign-in", 303)
            return message(refusal)
        if route is None and scope["method"] == "GET" and "text/html" in Headers(scope=scope).get("accept", ""):
            return message(refusal)
        return reply(refusal.body, refusal.status, refusal.headers)


def block_of(address: str) -> str:
    """An address as tries are counted for it: of IPv6 the first 64 bits, since one customer has all the others."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address[:100]
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped:  # how a socket for both names who comes by IPv4
        return str(found.ipv4_mapped)
    return str(found) if found.version == 4 else str(ipaddress.ip_network((found, 64), strict=False))


def refusal_of(error: Exception) -> Refusal:
    """What an error is to a client: its own fault, or ours."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, errors.StoreUnavailable):
        return Refusal(
            503, "the store does not answer; try again, with the same key: nothing is saved twice", headers={"Retry-After": "2"}
        )
    if isinstance(error, errors.FeedbackError):
        return REFUSALS.get(type(error)) or Refusal(400, str(error))
    return Refusal(500, "something failed in the service; its log has more")

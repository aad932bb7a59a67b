"""The service's ASGI application: finds the route of a path, checks who may use it, runs its handler in a thread.

Whatever is answered carries the content policy: nothing of another host, no script or style but the page's own files.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from penstock.feedback import errors
from penstock.feedback.service.adjudicate import Adjudicate
from penstock.feedback.service.admin import Admin
from penstock.feedback.service.annotate import Annotate
from penstock.feedback.service.calls import ALLOWED, SESSION, Call, Pool, Route, Routes, form_of, signed_out
from penstock.feedback.service.context import Context
from penstock.feedback.service.pages import Pages, message
from penstock.feedback.service.sessions import Session
from penstock.web.app import App
from penstock.web.fields import Fields
from penstock.web.files import HEADERS
from penstock.web.guard import read_body, read_json, require_own_host, same_secret
from penstock.web.refusals import Refusal

THREADS: Mapping[Pool, int] = {"quick": 16, "slow": 1, "password": 2, "product": 4}
"""Handlers at work at once. Passwords take 64 MiB each; exports and reports wait for each other, products for products, votes
for none of them."""

T = TypeVar("T")

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


class FeedbackApp(App[Route]):
    """The application over one store. :meth:`close` ends its threads."""

    headers = HEADERS | {"Referrer-Policy": "same-origin"}  # with no-referrer, our own forms send "Origin: null"
    log = logging.getLogger("penstock.feedback")

    def __init__(self, context: Context, *more: Routes) -> None:
        """``more``: routes besides those of people, such as those of products."""
        self.context, self.forwarded, self.https = context, context.settings.forwarded, context.settings.https
        parts: list[Routes] = [*(part(context).routes() for part in (Pages, Annotate, Admin, Adjudicate)), *more]
        super().__init__({path: methods for part in parts for path, methods in part.items()})
        self._pools = {name: ThreadPoolExecutor(count, f"feedback-{name}") for name, count in THREADS.items()}

    def answered(self, path: str, status: int, seconds: float) -> None:
        self.context.metrics.count(path, status, seconds)

    def close(self) -> None:
        for pool in self._pools.values():
            pool.shutdown(cancel_futures=True)

    async def permit(self, request: Request, route: Route | None) -> None:
        """Who is it, and may they: before anything that they send is read."""
        require_own_host(request.headers, self.context.settings.local)
        request.state.session = request.state.holder = None
        if route is not None and route.guard is not None:
            request.state.holder = await self._in_thread("quick", route.guard, request.headers)
        if route is None or (SESSION not in request.cookies and route.right == "anyone"):
            return
        identity = request.cookies.get(SESSION, "")
        find = self.context.sessions.find
        session = await self._in_thread("quick", find, identity) if 20 <= len(identity) <= 100 else None
        request.state.session = session
        if route.right == "anyone":
            return
        if session is None:
            raise signed_out()
        if route.body == "json":
            require_csrf(request.headers.get("x-csrf-token", ""), session)
        if session.who.role not in ALLOWED[route.right]:
            raise Refusal(403, f"this is for the role {route.right}; you are {session.who.role}", code="not_allowed")

    async def answer(self, request: Request, route: Route) -> Response:
        session: Session | None = request.state.session
        fields = Fields(await self._fields(request, route))
        if route.right != "anyone" and route.body == "form" and session is not None:
            require_csrf(fields.text("csrf", ""), session)
        call = Call(
            fields=fields,
            query=dict(request.query_params),
            headers=request.headers,
            cookies=request.cookies,
            address=request.client.host if request.client else "",
            name=next(iter(request.path_params.values()), ""),
            session=session,
            holder=request.state.holder,
        )
        return await self._in_thread(route.pool, route.handler, call)

    async def _in_thread(self, pool: Pool, function: Callable[..., T], *given: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pools[pool], function, *given)

    async def _fields(self, request: Request, route: Route) -> dict[str, Any]:
        limits = self.context.settings.limits
        if route.body == "json":
            return await read_json(request, limits, route.most)
        if route.body == "form":
            kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/x-www-form-urlencoded":
                raise Refusal(415, "send a form, with the header Content-Type: application/x-www-form-urlencoded")
            return form_of(await read_body(request, limits, route.most))
        return {}

    def refused(self, refusal: Refusal, request: Request, route: Route | None) -> Response:
        if route is not None and route.page:
            return RedirectResponse("/sign-in", 303) if refusal.code == "signed_out" else message(refusal)
        if route is None and request.method == "GET" and "text/html" in request.headers.get("accept", ""):
            return message(refusal)
        return super().refused(refusal, request, route)

    def refusal_of(self, error: Exception) -> Refusal:
        if isinstance(error, errors.StoreUnavailable):
            again = "the store does not answer; try again, with the same key: nothing is saved twice"
            return Refusal(503, again, headers={"Retry-After": "2"})
        if isinstance(error, errors.FeedbackError):
            return REFUSALS.get(type(error)) or Refusal(400, str(error))
        return super().refusal_of(error)


def require_csrf(given: str, session: Session) -> None:
    """Raises Refusal unless a page of this session has sent the request."""
    if not same_secret(given, session.csrf):
        raise Refusal(403, "the CSRF token is missing or not of this session; load the page again", code="csrf")

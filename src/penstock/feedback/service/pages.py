"""What is sent as a page: templates and files of the folder ``page/``, the forms to sign in and out and to accept an invite."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import sqlalchemy as sa
from starlette.responses import RedirectResponse, Response

from penstock.feedback import projects, queue, schema
from penstock.feedback.errors import FeedbackError, NotFound
from penstock.feedback.records import JUDGEMENTS
from penstock.feedback.service.calls import BROWSER, FORM, PROJECT, SESSION, Call, Route, Routes, reply
from penstock.feedback.service.context import Context
from penstock.feedback.service.sessions import BROWSER_SECONDS, Session, browser_of, known_browser
from penstock.web.files import kind_of, page_files
from penstock.web.guard import bearer, same_secret
from penstock.web.metrics import KIND
from penstock.web.refusals import Refusal

PAGE = Path(__file__).parents[1] / "page"
FILES = page_files(PAGE)
"""What is sent by its plain name. Templates are not among it."""

WRONG = "That name and password do not match."
LONGEST_FIELD = 1024
"""Characters of a name or password that are looked at."""

EVERY_PAGE = {"name": None, "role": None, "csrf": "", "here": "", "error": None, "project": "", "projects": ()}
"""What every template may speak of; ``name`` is None for who is not signed in."""


@cache
def templates() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(PAGE), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )


def page(template: str, session: Session | None = None, status: int = 200, **values: Any) -> Response:
    """A template with what it speaks of, for the person who is signed in."""
    known = {"name": session.who.name, "role": session.who.role, "csrf": session.csrf} if session else {}
    html = templates().get_template(f"{template}.html.jinja").render(EVERY_PAGE | known | values)
    return Response(html, status, media_type="text/html; charset=utf-8")


def message(refusal: Refusal, session: Session | None = None) -> Response:
    """A refusal as people read it."""
    titles = {404: "Page not found", 403: "You don't have access to this page", 429: "Too many attempts"}
    title = titles.get(refusal.status, "Something went wrong")
    answer = page("message", session, refusal.status, title=title, message=refusal.message)
    answer.headers.update(refusal.headers)
    return answer


class Pages:
    """Handlers of pages and forms."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def routes(self) -> Routes:
        return {
            "/": {"GET": Route(self._signed("annotate", "/"), page=True)},
            "/adjudicate": {"GET": Route(self._signed("adjudicate", "/adjudicate"), "adjudicator", page=True)},
            "/corrections": {"GET": Route(self._signed("corrections", "/corrections"), "adjudicator", page=True)},
            "/admin": {"GET": Route(self._signed("admin", "/admin"), "admin", page=True)},
            "/sign-in": {
                "GET": Route(self.sign_in_form, "anyone", page=True),
                "POST": Route(self.sign_in, "anyone", "form", "password", page=True),
            },
            "/sign-out": {"POST": Route(self.sign_out, "signed in", "form", page=True)},
            "/invite/{secret}": {
                "GET": Route(self.invite_form, "anyone", page=True),
                "POST": Route(self.accept, "anyone", "form", "password", page=True),
            },
            "/api/progress": {"GET": Route(self.progress)},
            "/metrics": {"GET": Route(self.metrics, "anyone")},
            "/static/{file}": {"GET": Route(self.static, "anyone")},
            "/health": {"GET": Route(lambda call: Response("{}", media_type="application/json"), "anyone")},
        }

    def _signed(self, template: str, here: str) -> Any:
        """A page of who is signed in, about one project: the one that is named, else the one that this browser was in last."""

        def signed(call: Call) -> Response:
            with self._context.store.database.read() as connection:
                names = projects.names_of(connection, None if template == "admin" else call.who.name)
            wanted = [call.query.get("project", ""), call.cookies.get(PROJECT, ""), *names]
            project = next((name for name in wanted if name in names), "")
            answer = page(template, call.session, here=here, project=project, projects=names)
            https, seconds = self._context.settings.https, int(BROWSER_SECONDS)
            answer.set_cookie(PROJECT, project, max_age=seconds, path="/", secure=https, httponly=True, samesite="lax")
            return answer

        return signed

    def progress(self, call: Call) -> Response:
        """How many tasks one has judged, and about how many are to come: gold and repeats among them at their shares, and one
        less after every answer, else the number would tell which is which."""
        answers, asked = schema.answers.c, schema.progress.c
        project, adjudicates = self._context.project(call), call.who.role != "annotator"
        policy = project.within(self._context.store.policy)
        mine, here = (answers.annotator == call.who.name) & (answers.project == project.name), asked.project == project.name
        ordinary = asked.purpose.in_(("ask", "anchor", *(["adjudication"] * adjudicates)))
        seen = sa.exists().where(mine, answers.task == asked.task)
        counted = (
            (mine, answers.kind.in_(JUDGEMENTS)), (mine,), (here, ordinary, asked.open | seen),
            (here, asked.purpose == "gold", ~queue.DEMOTED),
        )  # fmt: skip
        with self._context.store.database.read() as connection:
            found = (connection.execute(sa.select(sa.func.count()).where(*of)).scalar_one() for of in counted)
            done, answered, questions, known = found
        times = questions / (1 - policy.gold_share - policy.repeat_share)
        gold = min(known, round(times * policy.gold_share) + policy.qualify * (not adjudicates))
        repeats = min(max(0, questions - policy.repeat_after), round(times * policy.repeat_share))
        return reply({"done": done, "left": max(0, questions + gold + repeats - answered)})

    def metrics(self, call: Call) -> Response:
        """Counts for Prometheus, gold among them: never for annotators, not even on this machine."""
        token = self._context.settings.metrics_token
        if not (token and same_secret(bearer(call.headers), token)) and (call.session is None or call.who.role != "admin"):
            raise Refusal(401, "sign in as an administrator, or send the token of --metrics-token-file", code="not_allowed")
        return Response(self._context.metrics.text(self._context.store), media_type=KIND)

    # Signing in and out

    def sign_in_form(self, call: Call) -> Response:
        if call.session:
            return RedirectResponse("/", 303)
        return self._form(call, "sign_in")

    def sign_in(self, call: Call) -> Response:
        """A right name and password begin a session with a new id; a wrong one tells nothing but that it is wrong."""
        name, password = call.fields.text("name"), call.fields.text("password")
        if len(name) > LONGEST_FIELD or len(password) > LONGEST_FIELD:
            return self._form(call, "sign_in", 401, error=WRONG)
        if not self._form_is_ours(call):
            return self._form(call, "sign_in", 403, error="This form has expired. Please try again.")
        where = call.address, known_browser(call.cookies.get(BROWSER, ""), name, self._context.browser_key)
        self._context.throttle.begin(name, *where)
        try:
            kept = self._context.store.annotator(name)
        except NotFound:
            kept = None
        allowed = kept is not None and kept.enabled and kept.nature == "human"
        right = self._context.passwords.same(kept.password if kept and allowed else "", password)
        if not right:
            return self._form(call, "sign_in", 401, error=WRONG)
        self._context.throttle.succeeded(name, *where)
        return self._welcome(call, name, kept.password if kept else "")

    def sign_out(self, call: Call) -> Response:
        assert call.session is not None  # the route's right
        self._context.sessions.end(call.session.id)
        answer = RedirectResponse("/sign-in", 303)
        answer.delete_cookie(SESSION, path="/", secure=self._context.settings.https, httponly=True, samesite="lax")
        return answer

    def invite_form(self, call: Call) -> Response:
        invited = self._context.accounts.invited(call.name)
        return self._form(call, "invite", invited=invited, secret=call.name)

    def accept(self, call: Call) -> Response:
        """The invited choose a password and are signed in; whatever sessions they had have ended."""
        password = call.fields.text("password")
        invited = self._context.accounts.invited(call.name)
        known = {"invited": invited, "secret": call.name}
        if not self._form_is_ours(call):
            return self._form(call, "invite", 403, error="This form has expired. Please try again.", **known)
        try:
            made = self._context.passwords.made(password)
        except FeedbackError as error:
            return self._form(call, "invite", 400, error=str(error), **known)
        return self._welcome(call, self._context.accounts.redeem(call.name, made), made)

    def _welcome(self, call: Call, name: str, password: str) -> Response:
        if call.session:
            self._context.sessions.end(call.session.id)
        answer = RedirectResponse("/", 303)
        settings = self._context.settings
        session, browser = self._context.sessions.begin(name, password), browser_of(name, self._context.browser_key)
        made = ((SESSION, session, "/", settings.session_seconds), (BROWSER, browser, "/sign-in", BROWSER_SECONDS))
        for cookie, value, path, seconds in made:  # not strict: a link in a mail opens the page of who is signed in
            answer.set_cookie(
                cookie, value, max_age=int(seconds), path=path, secure=settings.https, httponly=True, samesite="lax"
            )
        answer.delete_cookie(FORM, path="/", secure=settings.https, httponly=True, samesite="strict")
        return answer

    # Forms of people who are not signed in: a hidden field that only the holder of the cookie can have

    def _form(self, call: Call, template: str, status: int = 200, **values: Any) -> Response:
        cookie = call.cookies.get(FORM, "")
        known = 20 <= len(cookie) <= 100
        cookie = cookie if known else secrets.token_urlsafe(24)
        answer = page(template, None, status, csrf=self._bound(cookie), here=f"/{template}", **values)
        if not known:
            https = self._context.settings.https
            answer.set_cookie(FORM, cookie, max_age=24 * 3600, path="/", secure=https, httponly=True, samesite="strict")
        return answer

    def _form_is_ours(self, call: Call) -> bool:
        cookie, given = call.cookies.get(FORM, ""), call.fields.text("csrf", "")
        call.fields.done()
        return bool(cookie) and same_secret(given, self._bound(cookie))

    def _bound(self, cookie: str) -> str:
        return hmac.new(self._context.form_key, cookie.encode("utf-8", "replace"), hashlib.sha256).hexdigest()

    # Files

    def static(self, call: Call) -> Response:
        """A file of the page by its plain name; browsers ask each time whether it has changed."""
        if call.name not in FILES:
            raise Refusal(404, "there is no such file", code="not_found")
        content = FILES[call.name].read_bytes()
        tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        headers = {"ETag": tag, "Cache-Control": "no-cache"}
        if call.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=kind_of(FILES[call.name]))

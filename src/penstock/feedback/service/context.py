"""What the handlers of the service share: its settings, the store, accounts, sessions, keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import sqlalchemy as sa

from penstock.feedback import projects, schema
from penstock.feedback.errors import FeedbackError, NotFound
from penstock.feedback.exchange.snapshot import pseudonyms
from penstock.feedback.projects import Project
from penstock.feedback.service.accounts import Accounts, Passwords
from penstock.feedback.service.calls import Call
from penstock.feedback.service.secrets import Handles, store_key
from penstock.feedback.service.sessions import LONGEST_SECONDS, Sessions
from penstock.feedback.service.throttle import Throttle
from penstock.feedback.store import Store
from penstock.web.guard import BodyLimits
from penstock.web.metrics import Histogram, values
from penstock.web.refusals import Refusal


@dataclass
class Metrics:
    """What the service counts itself; the store knows the rest."""

    requests: Counter[tuple[str, int]] = field(default_factory=Counter)
    """By route and status."""
    seconds: Histogram = field(default_factory=Histogram)

    def count(self, path: str, status: int, seconds: float) -> None:
        """Count an answer."""
        self.requests[path, status] += 1
        self.seconds.observe(seconds)

    def text(self, store: Store) -> str:
        """All counts as Prometheus text."""
        progress, people, leases, count = schema.progress.c, schema.annotators.c, schema.leases.c, sa.func.count()
        parts = {
            "tasks": ("tasks, by project and purpose", count),
            "tasks_open": ("tasks that wait for answers", sa.func.sum(sa.cast(progress.open, sa.Integer))),
            "judgements": ("votes, rankings, ratings and corrections in force", sa.func.sum(progress.judgements)),
        }
        of = (progress.project, progress.purpose)
        roles = sa.select(people.role, count).where(people.nature == "human", people.enabled).group_by(people.role)
        with store.database.read() as connection:
            found = connection.execute(sa.select(*of, *(number for _, number in parts.values())).group_by(*of)).all()
            enrolled = connection.execute(roles).all()
            held = connection.execute(sa.select(count).where(leases.deadline > store.now())).scalar_one()
            events = connection.execute(sa.select(schema.head.c.events)).scalar_one()
        lines = []
        for place, (name, (what, _)) in enumerate(parts.items(), 2):
            rows = [({"project": row[0], "purpose": row[1]}, int(row[place])) for row in sorted(found)]
            lines += values(f"feedback_{name}", "gauge", what, rows)
        lines += values("feedback_people", "gauge", "people who may sign in", [({"role": r}, n) for r, n in sorted(enrolled)])
        lines += values("feedback_leases", "gauge", "tasks that somebody holds", [({}, held)])
        lines += values("feedback_events_total", "counter", "lines of the log", [({}, events)])
        requests = [({"route": route, "status": status}, n) for (route, status), n in sorted(dict(self.requests).items())]
        lines += values("feedback_requests_total", "counter", "requests answered, by route and status", requests)
        lines += self.seconds.lines("feedback_request_seconds", "from a request to the end of its answer")
        return "\n".join(lines) + "\n"


LIMITS = BodyLimits(body_bytes=2 << 20)
GUIDELINE = Path(__file__).parent / "guideline.md"


@dataclass(frozen=True)
class Settings:
    """How the service is run."""

    local: bool = True
    """It serves this machine alone, so that any other name in the Host header is a trick."""
    https: bool = False
    """Browsers reach it by https: cookies travel no other way."""
    forwarded: bool = False
    """A proxy of ours is in front of it and adds the client's address as the last one of ``X-Forwarded-For``."""
    guideline: str = field(default_factory=lambda: GUIDELINE.read_text(encoding="utf-8"), repr=False)
    """The Markdown text that annotators read."""
    guideline_version: str = "1"
    limits: BodyLimits = LIMITS
    session_seconds: float = LONGEST_SECONDS
    metrics_token: str = field(default="", repr=False)
    """Who sends it as a bearer token may read ``/metrics``, besides administrators; empty: nobody else."""


@dataclass(frozen=True)
class Context:
    """One store with everything that the service keeps with it."""

    store: Store
    settings: Settings = Settings()
    passwords: Passwords = field(default_factory=Passwords)
    metrics: Metrics = field(default_factory=Metrics)

    def project(self, call: Call, *, every: bool = False) -> Project:
        """The project that a request names (``?project=NAME``), or the only one: of those of who asks, or (``every``) of all.

        Raises:
            Refusal: none is named and there are several; or it is none of theirs, in the same words as one that is not there.
        """
        try:
            with self.store.database.read() as connection:
                name = projects.chosen(connection, call.query.get("project", ""), None if every else call.who.name)
                return projects.load(connection, name)
        except FeedbackError as error:
            if not isinstance(error, NotFound):
                raise Refusal(400, str(error).replace("--project NAME", "?project=NAME")) from error
            if every or call.query.get("project"):
                raise Refusal(404, "there is no such project of yours", code="not_found") from error
            raise Refusal(403, "you are in no project yet; an administrator can add you", code="no_project") from error

    def guideline(self, project: Project) -> tuple[str, str]:
        """The version and the Markdown text that a project's annotators read."""
        if project.guideline:
            return project.guideline, project.guidelines[project.guideline]
        return self.settings.guideline_version, self.settings.guideline

    @cached_property
    def accounts(self) -> Accounts:
        return Accounts(self.store.database, self.store.now)

    @cached_property
    def sessions(self) -> Sessions:
        return Sessions(self.store.database, self.store.now, self.settings.session_seconds)

    @cached_property
    def throttle(self) -> Throttle:
        return Throttle(self.store.database, self.store.now)

    @cached_property
    def handles(self) -> Handles:
        return Handles(store_key(self.store.database, "handles"))

    @cached_property
    def pseudonym(self) -> Callable[[str], str]:
        """Annotators' names in exports."""
        return pseudonyms(store_key(self.store.database, "pseudonyms"))

    @cached_property
    def form_key(self) -> bytes:
        """Binds the forms of people who are not signed in to a cookie."""
        return store_key(self.store.database, "forms")

    @cached_property
    def browser_key(self) -> bytes:
        """Binds browsers to those who have signed in there."""
        return store_key(self.store.database, "browsers")

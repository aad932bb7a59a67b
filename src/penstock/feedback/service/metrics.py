"""What the service counts, for Prometheus: requests since it started, and what the store holds now."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import sqlalchemy as sa

from penstock.feedback import schema
from penstock.feedback.store import Store
from penstock.web.metrics import Histogram, values


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

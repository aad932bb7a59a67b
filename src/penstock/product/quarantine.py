"""Corrections in quarantine, and the people who let them out.

A text that is retrieved into prompts is an injection waiting to happen, so an edit is kept apart until somebody other than its
author has read and approved it; approval ends after a while, and may be withdrawn.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.feedback import rows, schema
from penstock.feedback.errors import FeedbackError, NotAllowed, NotFound, Overtaken
from penstock.feedback.exchange.snapshot import correction_row, snapshot
from penstock.feedback.records import DEFAULT, Annotator, canonical, digest, vars_of
from penstock.product.signals import LONGEST_EDIT, user_hash
from penstock.product.tenants import load_tenant
from penstock.product.text import suspicions, visible

if TYPE_CHECKING:
    from penstock.feedback.store import Store

Verdict = Literal["approved", "rejected", "withdrawn"]
VERDICTS: tuple[Verdict, ...] = ("approved", "rejected", "withdrawn")
DAY = 86_400.0
EXPIRES_DAYS = 180.0
LONGEST_NOTE = 1000
MOST_SCANNED = 20_000
"""Characters of each text that are looked at for tricks: more than any prompt is shown of it (``search.Retrieval``)."""
MOST_SEARCHED = 20_000
"""Corrections of one tenant that are searched, those ruled on last; older ones are left out."""


@dataclass(frozen=True)
class Correction:
    """What somebody made of an answer. ``author`` is ``user:HASH`` or ``annotator:NAME``, ``source`` says where it is from."""

    tenant: str
    source: str
    """``signal:SEQUENCE``, or ``event:SEQUENCE`` of the annotators' log."""
    author: str
    prompt: str
    original: str
    text: str
    added: float = 0.0
    """When it came into quarantine, seconds of the store's clock."""

    def __post_init__(self) -> None:
        if not self.prompt.strip() or not self.text.strip() or len(self.text) > LONGEST_EDIT:
            raise FeedbackError(f"a correction needs a prompt, and a text of 1 to {LONGEST_EDIT} characters")

    @property
    def body(self) -> dict[str, str]:
        return {"prompt": self.prompt, "original": self.original, "text": self.text}

    @property
    def suspicions(self) -> tuple[str, ...]:
        """What its reader should know: of the question and the answer too, since both are shown to others with the text."""
        parts = {"question": self.prompt, "answer": self.original, "correction": self.text}
        return tuple(f"the {part} {odd}" for part, text in parts.items() for odd in suspicions(text[:MOST_SCANNED]))

    @cached_property
    def id(self) -> str:
        return digest([self.tenant, self.source, self.author, self.body])[:32]


@dataclass(frozen=True)
class Ruling:
    """What an adjudicator decided. ``sequence`` counts the rulings of a store from 1 without gaps."""

    sequence: int
    correction: str
    verdict: Verdict
    annotator: str
    time: float
    expires: float
    """Until when an approval holds, seconds of the store's clock."""
    note: str


def save(connection: Connection, correction: Correction, now: float) -> bool:
    """Put a correction into quarantine; whether it was new. One that is there already is left as it is."""
    table = schema.corrections
    if rows.has(connection, table.c.id, correction.id):
        return False
    row = {name: getattr(correction, name) for name in ("id", "tenant", "source", "author")}
    connection.execute(table.insert(), {**row, "body": canonical(correction.body), "added": now})
    return True


def gather(store: Store, tenant: str, project: str = DEFAULT) -> int:
    """Put the annotators' edits in force in a project into quarantine for a tenant; how many of them were new.

    Raises:
        NotFound: there is no such tenant.
    """
    taken = snapshot(store, project=project)
    with store.database.write() as connection:
        load_tenant(connection, tenant)
        new, now = 0, store.now()
        for event in taken.state.edits():
            item, text = taken.tasks[event.task].item, event.body["text"]
            original = item.responses[event.body["response"]].text
            if taken.natures[event.annotator] == "human" and text != original and len(text) <= LONGEST_EDIT:
                author, source = f"annotator:{event.annotator}", f"event:{event.sequence}"
                new += save(connection, Correction(tenant, source, author, item.prompt, original, text), now)
        return new


def rule(
    store: Store, correction: str, verdict: Verdict, annotator: str, note: str = "", days: float = EXPIRES_DAYS,
    seen: int | None = None,
) -> Ruling:  # fmt: skip
    """Decide about a correction; the newest ruling holds. The same ruling by the same person again changes nothing.

    Args:
        days: after which an approval ends.
        seen: the correction's newest ruling that ``annotator`` knows of, 0 for none; None: whatever it is.

    Raises:
        Overtaken: there is a newer ruling than ``seen``.
        NotAllowed: not an adjudicator, not a person, switched off, or the correction's own author.
        NotFound: no such correction or annotator.
    """
    if visible(note) != note:
        raise FeedbackError("the note holds characters that nobody sees; take them out")
    if verdict not in VERDICTS or len(note) > LONGEST_NOTE or not 0 < days <= 3650:
        raise FeedbackError(
            f"verdict={verdict!r:.40}: use one of {', '.join(VERDICTS)}, a note of at most {LONGEST_NOTE} characters and 0 to "
            "3650 days"
        )
    with store.database.write() as connection:
        now, found = store.now(), _load(connection, correction)
        _require_judge(connection, found, annotator)
        if verdict == "approved" and found.suspicions and not note.strip():
            raise FeedbackError(f"{', '.join(found.suspicions)}: say in the note why it is approved all the same")
        newest = _newest(connection, correction)
        if newest is not None and newest.expires > now and _says(newest, verdict, annotator, note, days):
            return newest
        if seen is not None and newest is not None and newest.sequence > seen:
            raise Overtaken(f"{newest.annotator} has {newest.verdict} this correction meanwhile; look at it again")
        if verdict == "withdrawn" and (newest is None or newest.verdict != "approved"):
            raise FeedbackError(f"correction {correction} is not approved, so there is nothing to withdraw; reject it")
        table = schema.rulings
        made = Ruling(rows.last(connection, table) + 1, correction, verdict, annotator, now, now + days * DAY, note)
        connection.execute(table.insert(), vars_of(made))
        if verdict != "approved":
            connection.execute(schema.vectors.delete().where(schema.vectors.c.correction == correction))
        return made


def _require_judge(connection: Connection, correction: Correction, annotator: str) -> None:
    who = rows.load_annotator(connection, annotator)
    if not who.enabled or who.role == "annotator" or who.nature != "human":
        raise NotAllowed(f"{annotator} may not rule on corrections; an adjudicator or an administrator, and a person, may")
    if not readable(connection, [correction], who):
        raise NotFound(f"there is no correction {correction.id!r:.60}")
    secret = load_tenant(connection, correction.tenant).secret
    own = {f"annotator:{annotator}", f"user:{user_hash(secret, annotator)}"}
    if correction.author in own:
        raise NotAllowed(f"{annotator} wrote this correction; somebody else decides about it")


def _load(connection: Connection, name: str) -> Correction:
    row = connection.execute(sa.select(schema.corrections).where(schema.corrections.c.id == name)).first()
    if row is None:
        raise NotFound(f"there is no correction {name!r:.60}")
    return _correction(row)


def _correction(row: sa.Row[Any]) -> Correction:
    return Correction(row.tenant, row.source, row.author, **json.loads(row.body), added=row.added)


def _ruling(row: sa.Row[Any]) -> Ruling:
    return Ruling(**{name: getattr(row, name) for name in Ruling.__dataclass_fields__})


def _says(ruling: Ruling, verdict: Verdict, annotator: str, note: str, days: float) -> bool:
    """Whether a ruling is the same as one to make; another time to expire is another ruling."""
    same = (ruling.verdict, ruling.annotator, ruling.note) == (verdict, annotator, note)
    return same and abs(ruling.expires - ruling.time - days * DAY) < 1


def _newest(connection: Connection, correction: str) -> Ruling | None:
    table = schema.rulings
    query = sa.select(table).where(table.c.correction == correction).order_by(table.c.sequence.desc()).limit(1)
    row = connection.execute(query).first()
    return None if row is None else _ruling(row)


def waiting(store: Store, tenant: str = "", limit: int = 100) -> list[Correction]:
    """Corrections without a ruling, the oldest first, of one tenant or of all."""
    table = schema.corrections
    query = sa.select(table).where(~sa.exists().where(schema.rulings.c.correction == table.c.id))
    query = query.where(table.c.tenant == tenant) if tenant else query
    with store.database.read() as connection:
        return [_correction(row) for row in connection.execute(query.order_by(table.c.added, table.c.id).limit(limit))]


def readable(connection: Connection, found: Sequence[Correction], who: Annotator) -> set[str]:
    """Which of these somebody may read: not, but for administrators, what is of a project that is not theirs."""
    of = {one.id: int(one.source.removeprefix("event:")) for one in found if one.source.startswith("event:")}
    mine = sa.select(schema.members.c.project).where(schema.members.c.annotator == who.name)
    projects = {*connection.execute(mine).scalars()}
    events = rows.load_events(connection, schema.events.c.sequence.in_(of.values()))
    theirs = {event.sequence for event in events if event.project in projects}
    return {one.id for one in found if who.role == "admin" or one.id not in of or of[one.id] in theirs}


def length(store: Store) -> int:
    """Rulings in the store; its newest one has this sequence."""
    with store.database.read() as connection:
        return rows.last(connection, schema.rulings)


class Standing(NamedTuple):
    """A correction and the ruling that holds for it, its newest."""

    correction: Correction
    ruling: Ruling


def standing(
    store: Store, tenant: str = "", after: int = 0, until: int | None = None, verdict: str = "", limit: int | None = None
) -> list[Standing]:
    """Corrections with a ruling ``after < sequence <= until``, as the newest of those leaves them, in the order of the log.

    Args:
        verdict: only those with it; empty: all.
        limit: only so many, those ruled on last.
    """
    table, texts = schema.rulings, schema.corrections
    newest = sa.select(sa.func.max(table.c.sequence)).where(table.c.sequence > after).group_by(table.c.correction)
    newest = newest if until is None else newest.where(table.c.sequence <= until)
    query = (
        sa.select(texts, table)
        .join(table, table.c.correction == texts.c.id)
        .where(table.c.sequence.in_(newest))
        .order_by(table.c.sequence.desc())
        .limit(limit)
    )
    query = query.where(texts.c.tenant == tenant) if tenant else query
    query = query.where(table.c.verdict == verdict) if verdict else query
    with store.database.read() as connection:
        found = connection.execute(query).all()
    return [Standing(_correction(row), _ruling(row)) for row in reversed(found)]


def approved(store: Store, tenant: str = "", until: int | None = None) -> list[Correction]:
    """Corrections approved after the first ``until`` rulings, those that have expired among them."""
    return [one.correction for one in standing(store, tenant, until=until, verdict="approved")]


def rows_of(found: list[Correction]) -> list[dict[str, Any]]:
    """Training rows of approved corrections, for SFT (``completion``) and as preference pairs (``chosen``, ``rejected``)."""
    return [correction_row(one.prompt, one.original, one.text) | {"tenant": one.tenant, "source": one.source} for one in found]

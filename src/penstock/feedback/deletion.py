"""Taking a person out of a store: their name and account, and, where asked, what they said.

The one act that changes lines of the log. It changes who, never when or in which order; and where what they said goes as well,
their lines stay as empty ones, so that no number is missing. What a run has read before then has another content hash, and the
run says so: for it that is another store, which is right.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.feedback import queue, rows, schema
from penstock.feedback.errors import NotAllowed
from penstock.feedback.records import JUDGEMENTS, PASSES, REMARKS, Annotator, canonical
from penstock.feedback.store import Store

SAID = (*JUDGEMENTS, *PASSES, *REMARKS, "undo")
"""Kinds of what a person said, and not what they decided about others."""
CHANGED = (schema.events, schema.exclusions, schema.rulings, schema.corrections, schema.tasks)
"""Logs that hold names of annotators."""


def forget(store: Store, administrator: str, name: str, votes: Literal["keep", "remove"]) -> str:
    """Delete a person; gives the pseudonym under which their lines stay, which is random.

    Their account, attributes, sessions and the hashes of their name in keys go. Votes that are kept count as before.

    Raises:
        NotAllowed: not an administrator, or the administrator themselves.
        NotFound: there is no such annotator.
    """
    pseudonym = f"former-{secrets.token_hex(6)}"
    with store.database.write() as connection:
        rows.require_admin(connection, administrator)
        if name == administrator:
            raise NotAllowed("nobody deletes themselves; another administrator can")
        nature = rows.load_annotator(connection, name).nature
        rows.save_annotator(connection, Annotator(pseudonym, nature=nature, enabled=False), store.now())
        with _changeable(connection):
            _rename(connection, name, pseudonym)
            if votes == "remove":
                _remove(connection, pseudonym, store.now())
        connection.execute(schema.annotators.delete().where(schema.annotators.c.name == name))
    return pseudonym


@contextmanager
def _changeable(connection: Connection) -> Iterator[None]:
    """Let the logs be changed in this transaction."""
    for table in CHANGED:
        schema.unprotect(connection, table)
    yield
    for table in CHANGED:
        schema.protect(connection, table)


def _rename(connection: Connection, name: str, pseudonym: str) -> None:
    events, exclusions, rulings, corrections, tasks = CHANGED
    for gone in (schema.sessions, schema.leases, schema.members):
        connection.execute(gone.delete().where(gone.c.annotator == name))
    for table in (events, exclusions, rulings, schema.answers):
        mine = table.update().where(table.c.annotator == name).values(annotator=pseudonym)
        # A key holds a hash of the name, by which a guess could be tried.
        key = sa.literal("former:") + sa.cast(table.c.sequence, sa.Text) if table is events else None
        connection.execute(mine if key is None else mine.values(key=key))
    about = exclusions.c.person == name
    for sequence, body in connection.execute(sa.select(exclusions.c.sequence, exclusions.c.body).where(about)).all():
        made = canonical(json.loads(body) | {"annotator": pseudonym})
        line = exclusions.c.sequence == sequence
        connection.execute(exclusions.update().where(line).values(person=pseudonym, body=made, key=f"former:{sequence}"))
    author = corrections.update().where(corrections.c.author == f"annotator:{name}")
    connection.execute(author.values(author=f"annotator:{pseudonym}"))
    reserved = sa.select(tasks.c.id, tasks.c.body).where(queue.listed(tasks.c.reserved, sa.literal(name)))
    for task, body in connection.execute(reserved).all():
        fields = json.loads(body)
        fields["reserved"] = ",".join(pseudonym if one == name else one for one in fields["reserved"].split(","))
        connection.execute(tasks.update().where(tasks.c.id == task).values(reserved=fields["reserved"], body=canonical(fields)))


def _remove(connection: Connection, name: str, now: float) -> None:
    """Empty the lines of what somebody said, and of what took it back; free their seats."""
    events, answers = schema.events, schema.answers
    mine = sa.select(events.c.sequence).where(events.c.annotator == name, events.c.kind.in_(SAID))
    found = list(connection.execute(mine).scalars())
    for task, kind in connection.execute(sa.select(answers.c.task, answers.c.kind).where(answers.c.annotator == name)).all():
        seats = queue.seats(connection, rows.load_task(connection, task), name, now)
        queue.settle(connection, seats, seats.judged - (kind in JUDGEMENTS), seats.others)
    connection.execute(answers.delete().where(answers.c.annotator == name))
    empty = {"kind": "removed", "body": "{}", "shown": "[]", "latency": -1.0, "target": 0}
    for sequence in found:  # one by one: a list of any length is too long for some database
        line = (events.c.sequence == sequence) | (events.c.target == sequence)
        connection.execute(events.update().where(line).values(empty))

"""What each annotator said, one row a judgement or remark: for analyses of people, not for training."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from typing import Any

from penstock.feedback.exchange.files import Row
from penstock.feedback.exchange.snapshot import Snapshot, media_of
from penstock.feedback.records import JUDGEMENTS


def pseudonyms(key: bytes) -> Callable[[str], str]:
    """Other names, the same for the same person, that nobody can compute or try without the store's key."""
    return lambda name: f"annotator-{hmac.new(key, name.encode(), hashlib.sha256).hexdigest()[:12]}"


def raw_votes(taken: Snapshot, named: Callable[[str], str]) -> list[Row]:
    """Every judgement, pass and remark in force, in the order of the log, gold and repeats among them.

    Columns: ``sequence``, ``time``, ``annotator`` (as ``named`` has it), ``nature``, ``kind``, ``counts`` (False while its
    author is excluded; passes count for nothing), ``task``, ``form``, ``purpose``, ``gold``, ``prompt``, ``responses``,
    ``origins``, ``order`` (which response was shown at each place), ``latency``, ``guideline`` (the version that was
    read), and the fields of the body, such as ``preference``, ``ranks``, ``scores`` or ``text``.
    """
    state = taken.state
    counts = {event.sequence for event in (*state.judgements(), *state.edits())}
    rows = []
    for event in sorted((*state.standing.values(), *state.remarks.values()), key=lambda event: event.sequence):
        task = taken.tasks[event.task]
        about: dict[str, Any] = {
            "sequence": event.sequence,
            "time": event.time,
            "annotator": named(event.annotator),
            "nature": taken.natures[event.annotator],
            "kind": event.kind,
            "counts": event.sequence in counts if event.kind in JUDGEMENTS else None,
            "task": task.id,
            "form": task.form,
            "purpose": task.purpose,
            "gold": task.gold,
            "prompt": task.item.prompt,
            "responses": list(task.item.texts),
            "origins": [response.model for response in task.item.responses],
            "order": list(event.order),
            "latency": event.latency,
            "guideline": event.guideline,
            **media_of(task.item, **{f"response {index + 1}": index for index in range(len(task.item.responses))}),
        }
        rows.append(about | dict(event.body))
    return rows

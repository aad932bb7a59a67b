"""What the event log shows of a batch: a few samples, and for each token how far learner and generator are apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from penstock.algos.denoising import STATES, picture_of
from penstock.core.contracts import Scores
from penstock.core.events import packed
from penstock.core.types import TOKENS as TOKENS_COLUMN
from penstock.core.types import FloatArray, Group, IntArray, Row, Sample, Unit
from penstock.data.blobs import Blobs
from penstock.data.pictures import png

PROMPTS, SIBLINGS = 3, 2
"""Prompts of a batch whose samples are shown, and samples of each."""
STEPS = 100
"""Samples are shown at about so many steps of a stage."""
TOKENS = 256
"""Tokens of a sample that are shown one by one."""
EXACT = 4096
"""Tokens of a sample, prompt included, whose ids and log-probs are kept exactly; of longer ones the ids are left out."""

LONGEST_CHARACTER = 8
"""Tokens that one character may need; more without one are no text."""

COLUMNS = ("arm", "corrections_used")
"""Columns of a prompt's row that are shown, where it has them: which corrections are in it, and whether any may."""

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class Seen:
    """A sample that is shown, with its group; ``logp_A`` are the learner's log-probs of its actions before the batch was
    trained on, None where nobody asked."""

    group: Group
    sample: Sample
    logp_A: FloatArray | None = None


class Scoring(Protocol):
    """A learner's verb that gives log-probs."""

    def score(self, units: Sequence[Unit], needs: frozenset[str]) -> Scores: ...


def due(done: int, steps: int) -> bool:
    """Whether the samples of the ``done``-th step (from 1) of a stage are shown."""
    return done == 1 or done % max(1, steps // STEPS) == 0


def chosen(groups: Sequence[Group]) -> list[Seen]:
    """Samples of the first groups: the first of each, then the second of each. A failed one, if there is any, is among them."""
    some = groups[:PROMPTS]
    seen = [Seen(group, group.samples[place]) for place in range(SIBLINGS) for group in some if place < len(group.samples)]
    failed = [Seen(group, sample) for group in groups for sample in group.samples if sample.error is not None]
    if failed and all(one.sample.error is None for one in seen):
        seen[-1] = failed[0]
    return seen


def pictured(seen: Sequence[Seen], blobs: Blobs) -> list[Seen]:
    """Those whose trajectories end in a picture, with that picture, which is kept among ``blobs``; the others as they are."""
    return [_pictured(one, blobs) if STATES in one.sample.columns else one for one in seen]


def _pictured(one: Seen, blobs: Blobs) -> Seen:
    blob = blobs.add(png(picture_of(one.sample)), "image/png")
    return replace(one, sample=replace(one.sample, blobs=(*one.sample.blobs, blob)))


def look(learner: Scoring, groups: Sequence[Group]) -> tuple[Seen, ...]:
    """The samples to be shown, with the learner's log-probs of their actions; to be asked before it trains on them."""
    seen = chosen(groups)
    acted = [one for one in seen if one.sample.action_T.any()]
    units: list[Unit] = [(Row(one.sample.columns, one.sample.action_T),) for one in acted]
    found = learner.score(units, frozenset({"logp"}))["logp"] if units else []
    scored = dict(zip(map(id, acted), found, strict=True))
    return tuple(Seen(one.group, one.sample, scored.get(id(one))) for one in seen)


def rows_of(seen: Sequence[Seen], decode: Decode, evaluated: int | None = None) -> list[dict[str, Any]]:
    """Rows for the event log; ``evaluated`` is the version of the weights that an evaluation measured.

    ``version`` is that of the oldest weights that drew an action; ``tokens`` is what :func:`token_row`
    gives of a sample of language, ``blobs`` names what prompt and sample refer to.
    """
    rows: list[dict[str, Any]] = []
    for one in seen:
        sample = one.sample
        row: dict[str, Any] = {
            "prompt": one.group.prompt.text,
            "text": sample.text,
            "reward": sample.reward,
            "rewards": dict(sample.extras.get("rewards", {})),
            "length": int(sample.action_T.sum()),
            "finish": sample.finish,
            "error": sample.error,
            "key": str(sample.key),
            "version": sample.oldest_version if evaluated is None else evaluated,
            "held_out": evaluated is not None,
        }
        row |= {name: one.group.prompt.columns[name] for name in COLUMNS if name in one.group.prompt.columns}
        if TOKENS_COLUMN in sample.columns and (tokens := token_row(sample, one.logp_A, decode)):
            row["tokens"] = tokens
        if blobs := Group(one.group.prompt, (sample,)).blobs:
            of = dict.fromkeys(one.group.prompt.blobs, "prompt")
            row["blobs"] = [{"hash": blob.hash, "kind": blob.kind, "of": of.get(blob, "sample")} for blob in blobs]
        rows.append(row)
    return rows


def token_row(sample: Sample, logp_A: FloatArray | None, decode: Decode) -> dict[str, Any]:
    """What the log holds of a sample's tokens.

    ``ids`` (prompt and answer) and ``logp`` (of the generated ones, at generation, in nats) are exact (``core/events.py``);
    of a sample that is long, or whose generated tokens are not its last ones, there are no ids. Where the learner was asked,
    ``pieces`` is the text of each of the first actions and ``gap`` the learner's log-prob less the drawing policy's.
    """
    behaviour_A = sample.logp_T[sample.action_T]
    row: dict[str, Any] = {}
    if len(behaviour_A) and len(sample.tokens_T) <= EXACT and sample.action_T[-len(behaviour_A) :].all():
        row |= {"ids": packed(sample.tokens_T, "<i4"), "logp": packed(behaviour_A, "<f4")}
    if logp_A is not None:
        gap_A = np.asarray(logp_A[:TOKENS], np.float64) - behaviour_A[:TOKENS]
        row["pieces"] = pieces(sample.tokens_T[sample.action_T][:TOKENS], decode)
        row["gap"] = [float(f"{value:.3g}") for value in gap_A]
        row.setdefault("logp", packed(behaviour_A[:TOKENS], "<f4"))
    return row


def pieces(tokens_A: IntArray, decode: Decode) -> list[str]:
    """The text that each token adds. Where a character needs several tokens, the last of them brings it, the others "".

    A token alone may be no whole character, and what it says can depend on the one before it (a space at the start).
    """
    found: list[str] = []
    window: list[int] = []
    sent = waiting = 0
    for token in tokens_A.tolist():
        window.append(token)
        text = decode(window)
        waiting = waiting + 1 if text.endswith("\ufffd") else 0
        if 0 < waiting < LONGEST_CHARACTER:
            found.append("")
            continue
        found.append(text[sent:])
        if len(window) >= 32:
            window, text = window[-4:], decode(window[-4:])
        sent, waiting = len(text), 0
    if waiting:  # the sample ended within a character
        found[-1] = decode(window)[sent:]
    return found

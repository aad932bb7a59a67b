"""The first rows of a stage as the loss sees them, token by token, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.core.columns import was_cut
from penstock.core.contracts import Scores
from penstock.core.types import TOKENS, FloatArray, IntArray, Prompt, Stepwise, Unit
from penstock.loops.learn import Step
from penstock.loops.look import Seen, pieces
from penstock.models.text import Text
from penstock.observe.rules import EXACT, ONE_TOKEN, Thresholds


@dataclass(frozen=True)
class Token:
    """A token of a row. ``kind``: "prompt" (before the first action), "action" (trained on), "end" (an action that ends an
    answer), "mask" (after the first action, not trained on). ``logp`` is the model's, of an action."""

    id: int
    text: str
    kind: str
    logp: float | None = None


@dataclass(frozen=True)
class FirstRow:
    """A row as the loss sees it, with what else is known of it."""

    name: str
    tokens: tuple[Token, ...]
    facts: dict[str, Any]


def rows_of_units(units: Sequence[Unit], text: Text, scores: Scores, per_row: frozenset[str] = frozenset()) -> list[FirstRow]:
    """Rows of data with what the model makes of them; those of one unit (a pair) follow each other.

    Args:
        scores: outputs by name: a number for each action, or for each row where the name is in ``per_row``.
    """
    found: list[FirstRow] = []
    for place, unit in enumerate(units):
        for part, row in enumerate(unit):
            name = f"row {place + 1}" + (f", {part + 1} of {len(unit)}" if len(unit) > 1 else "")
            facts: dict[str, Any] = {field: value for field, value in row.fields.items() if isinstance(value, float)}
            facts |= {output: float(numbers[len(found)]) for output, numbers in scores.items() if output in per_row}
            by_action = [numbers[len(found)] for output, numbers in scores.items() if output not in per_row]
            found.append(FirstRow(name, tokens_of(row, next(iter(by_action), None), text), facts))
    return found


def rows_of_samples(seen: Sequence[Seen], text: Text) -> list[FirstRow]:
    """Samples with the learner's log-probs, their rewards and how they ended."""
    found = []
    for one in seen:
        sample = one.sample
        facts: dict[str, Any] = {"finish": sample.finish, "reward": sample.reward, **sample.extras.get("rewards", {})}
        if sample.error:
            facts["error"] = sample.error
        found.append(FirstRow(str(sample.key), tokens_of(sample, one.logp_A, text), facts))
    return found


def tokens_of(steps: Stepwise, logp_A: FloatArray | None, text: Text) -> tuple[Token, ...]:
    """Each token with its part in the loss; none where steps are no tokens."""
    if TOKENS not in steps.columns:
        return ()
    tokens_T, action_T = steps.tokens_T, steps.action_T
    first = int(action_T.argmax()) if action_T.any() else len(action_T)
    logps = iter(() if logp_A is None else logp_A.tolist())
    found = []
    for place, (token, acted, piece) in enumerate(
        zip(tokens_T.tolist(), action_T.tolist(), spelled(tokens_T, text), strict=True)
    ):
        kind = ("end" if token in text.ends else "action") if acted else "prompt" if place < first else "mask"
        found.append(Token(token, piece, kind, next(logps, None) if acted else None))
    return tuple(found)


def spelled(tokens_T: IntArray, text: Text) -> list[str]:
    """What each token adds to the text; a special token is its own name."""
    names = text.tokenizer.convert_ids_to_tokens(tokens_T.tolist())
    special = set(text.tokenizer.all_special_ids)
    return [
        name if token in special else piece
        for token, name, piece in zip(tokens_T.tolist(), names, pieces(tokens_T, text.decode), strict=True)
    ]


def remarks_on_prompts(prompt: Prompt, model: str, text: Text) -> list[str]:
    """What is wrong with how the first prompt is given to the model of a folder or a hub."""
    if not model or model.startswith("@") or prompt.messages or not getattr(text.tokenizer, "chat_template", None):
        return []
    return ["the model has a chat template and its prompts are bare texts; set chat=true (of the data) if it answers chats"]


def remarks_on_rows(rows: Sequence[FirstRow]) -> Iterator[str]:
    """What is wrong with rows of data."""
    for row in rows:
        trained = [token for token in row.tokens if token.kind in ("action", "end")]
        if len(trained) > 1 and trained[-1].kind != "end":
            yield f"{row.name} is trained up to {trained[-1].text!r}, no end token: the model is not shown where to stop"


def remarks_on_samples(step: Step, bounds: Thresholds = EXACT) -> Iterator[str]:
    """What is wrong with samples, whatever the model; ``bounds`` say how far apart rounding may bring two sides."""
    failed = [one.sample.error for one in step.seen if one.sample.error]
    if failed:
        yield f"{len(failed)} of {len(step.seen)} samples failed: {failed[0]}"
    gaps = [np.abs(one.logp_A - one.sample.logp_T[one.sample.action_T]) for one in step.seen if one.logp_A is not None]
    gap_A = np.concatenate(gaps or [np.zeros(1)])
    if not (gap_A.mean() <= bounds.gap_warning and gap_A.max() <= ONE_TOKEN * bounds.gap_warning):
        yield (
            f"learner and generator are {gap_A.max():.3g} nats apart on a token and {gap_A.mean():.3g} in the mean, where "
            f"rounding explains {bounds.gap_warning:.3g} in the mean: they do not compute the same model"
        )


def remarks_on_behaviour(step: Step) -> Iterator[str]:
    """What a trained model's samples show."""
    samples = [sample for group in step.groups for sample in group.samples if sample.valid]
    if samples and all(was_cut(sample) for sample in samples):
        yield "no sample ended by itself: allow more tokens (sampling.max_new_tokens), or teach the model its end token"
    rewards = {sample.reward for sample in samples}
    if len(rewards) == 1:
        yield f"every sample was rewarded {rewards.pop():g}: without a difference there is nothing to learn"

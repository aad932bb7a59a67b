"""What algorithms on preference pairs share: two rows a pair, their log-probs, and the held-out assessment."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.algos.completions import completed
from penstock.algos.labels import Trajectory, labelled_row
from penstock.core.algorithm import Encoder, FromData, FromSamples, rewards_differ
from penstock.core.contracts import Scores
from penstock.core.errors import DataError, TrainingError
from penstock.core.types import Group, Metrics, Row, Unit


def pair_rows(example: Mapping[str, Any], tokenizer: Encoder, *, trained: bool = True, **columns: str) -> Unit:
    """Two rows, preferred first, from the rendered texts ``prompt``, ``chosen``, ``rejected``; field ``preferred`` is 1 or 0.

    Args:
        trained: whether the completions' tokens (end included) are actions; else no token is.
        columns: of each further field (``weight``, ``margin``, ``probability``) the column that holds it; "": no such field.

    Raises:
        DataError: a text is missing, or a column holds no number of 0 or more (of a probability, to 1).
    """
    most = {"probability": 1.0}
    more = {name: number(example, named, name, most.get(name, float("inf"))) for name, named in columns.items() if named}
    unit = []
    for column, preferred in (("chosen", 1.0), ("rejected", 0.0)):
        tokens_T, produced_T = completed(example, column, tokenizer)
        unit.append(Row({"tokens_T": tokens_T}, produced_T & trained, {"preferred": preferred, **more}))
    return tuple(unit)


def number(example: Mapping[str, Any], column: str, what: str, most: float) -> float:
    """A pair's number in a column. Raises DataError where it holds none from 0 to ``most``; ``what`` names its meaning."""
    value = example.get(column)
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0 <= value <= most:
        kind = "a number of at least 0" if most > 1 else "a number from 0 to 1"
        raise DataError(f'the column "{column}" gives the {what} of each pair and must hold {kind}, got {value!r}')
    return float(value)


class FromPairs(FromData):
    """Base of algorithms that learn from preference pairs by log-probs. A subclass is a spec with ``score`` and ``loss``."""

    data = "pairs"
    truncates: ClassVar[bool] = True

    def rows(self, example: Mapping[str, Any], tokenizer: Encoder) -> Unit:
        """Two rows, preferred first, whose actions are the completion and its end token.

        Raises:
            DataError: a text is missing.
        """
        return pair_rows(example, tokenizer)

    @abstractmethod
    def score(self, logp_A: NDArray[Any], row: Row) -> float:
        """What the loss compares between the completions of a pair, from a row's log-probs."""

    def assess(self, units: Sequence[Unit], scores: Scores) -> Metrics:
        """Held-out ``pair/accuracy`` (a tie counts one half), ``pair/margin`` and ``pair/nll`` of the margin.

        Raises:
            TrainingError: the log-probs do not belong to these units, or there are none.
        """
        rows = [row for unit in units for row in unit]
        if len(scores["logp"]) != len(rows):
            raise TrainingError(f"log-probs of {len(scores['logp'])} rows for {len(units)} pairs; score the same units first")
        logp = [np.asarray(logp_A, np.float64) for logp_A in scores["logp"]]
        return pair_metrics(units, [self.score(logp_A, row) for logp_A, row in zip(logp, rows, strict=True)])


def pair_metrics(units: Sequence[Unit], score_B: Sequence[float]) -> Metrics:
    """Accuracy (a tie counts one half), mean margin, and ``-log σ(margin)`` of pairs, given one score a row.

    Raises:
        TrainingError: the scores do not belong to these units, or there are none.
    """
    preferred_B = np.array([float(row.fields["preferred"]) for unit in units for row in unit])
    scored_B = np.asarray(score_B, np.float64)
    if not len(units) or len(scored_B) != len(preferred_B) or any(len(unit) != 2 for unit in units):
        raise TrainingError(f"{len(scored_B)} scores for {len(units)} pairs; score the same units first")
    margin_U = (scored_B * (2 * preferred_B - 1)).reshape(-1, 2).sum(1)
    return {
        "pair/accuracy": float((0.5 * (1 + np.sign(margin_U))).mean()),
        "pair/margin": float(margin_U.mean()),
        "pair/nll": float(np.logaddexp(0, -margin_U).mean()),
    }


class FromSamplePairs(FromSamples):
    """Base of algorithms that learn from two samples of a prompt."""

    least_samples: ClassVar[int] = 2

    def has_signal(self, group: Group) -> bool:
        """Whether two valid samples differ in reward."""
        return rewards_differ(group)


def sample_pair(first: Trajectory, second: Trajectory) -> Unit:
    """Two samples as a pair, the first preferred; rows have ``reward``, ``old_logp`` and, if known, ``reference_logp``."""
    rows = []
    for trajectory, preferred in ((first, 1.0), (second, 0.0)):
        reference_A = trajectory.reference_logp_A
        more = {"reference_logp": reference_A} if len(reference_A) else {}
        rows.append(labelled_row(trajectory, preferred=preferred, old_logp=trajectory.logp_A, **more))
    return tuple(rows)


@dataclass(frozen=True)
class PairValues:
    """One number per pair and side: sums (or means) over the tokens of its completions. Tensors ``[U]``."""

    chosen_U: Any
    rejected_U: Any

    @classmethod
    def of(cls, value_A: Any, fields: Mapping[str, Any], batch: Any, *, mean: bool) -> PairValues:
        """From one value an action token, whatever order the rows are in."""
        from penstock.algos import preference

        reduce = preference.row_means if mean else preference.row_sums
        value_B = reduce(value_A, batch.row_A, len(batch.unit_B))
        return cls(*preference.pairs(value_B, fields["preferred"], batch.unit_B))

    def metrics(self, scale: float, pairs: float) -> dict[str, Any]:
        """``pair/accuracy``, ``pair/margin`` and both sides, times ``scale``, as means over the batch's pairs."""
        from penstock.algos import preference

        chosen_U, rejected_U = self.chosen_U.detach() * scale, self.rejected_U.detach() * scale
        return {
            "pair/accuracy": preference.accuracy(chosen_U - rejected_U, denominator=pairs),
            "pair/margin": (chosen_U - rejected_U).sum() / pairs,
            "pair/chosen": chosen_U.sum() / pairs,
            "pair/rejected": rejected_U.sum() / pairs,
        }

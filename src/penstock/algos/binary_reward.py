"""Reward models: what they share, and the one from single labels (logistic regression on a language model's features)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from penstock.algos.completions import completed
from penstock.config.spec import spec
from penstock.core.algorithm import Encoder, FromData
from penstock.core.contracts import Denominator, LossOutput, Outputs, Scores
from penstock.core.errors import DataError, TrainingError
from penstock.core.types import Metrics, Row, Unit


class RewardModel(FromData):
    """Base of algorithms that train the score head of a reward model."""

    heads: ClassVar[Mapping[str, Mapping[str, Any]]] = {"score": {}}
    loss_reads: ClassVar[frozenset[str]] = frozenset({"score"})
    assessed_by: ClassVar[frozenset[str]] = frozenset({"score"})


class LabelledReward(RewardModel):
    """Base of reward models whose scores are the log-odds of labels, those of rows or of the steps within them."""

    judged: ClassVar[Literal["label", "step"]] = "label"
    """What has a label, by the name that metrics give it."""

    def compute_loss(self, outputs: Outputs, fields: Mapping[str, Any], batch: Any, denominator: Denominator) -> LossOutput:
        """The logistic loss, a mean over the batch's rows (or labelled steps); reads the field ``label`` of each."""
        from penstock.algos import preference

        over = denominator.rows if self.judged == "label" else denominator.tokens
        (output,) = self.loss_reads
        score, label = outputs[output], fields["label"]
        loss = preference.binary_label_loss(score, label, denominator=over)
        return loss, {
            "loss": loss.detach(),
            f"{self.judged}/accuracy": preference.accuracy(score.detach().sign() * (2 * label - 1), denominator=over),
            "score/mean": score.detach().sum() / over,
        }

    def assess(self, units: Sequence[Unit], scores: Scores) -> Metrics:
        """Held-out ``label/accuracy`` at threshold 0 (a score or label on the fence counts one half) and ``label/nll``, over
        all labels; ``step/…`` where those are of steps.

        Raises:
            TrainingError: the scores do not belong to these units, or there are none.
        """
        (output,) = self.assessed_by
        labels = [np.atleast_1d(np.asarray(row.fields["label"], np.float64)) for unit in units for row in unit]
        scored = [np.atleast_1d(np.asarray(score, np.float64)) for score in scores[output]]
        if not labels or [len(label_A) for label_A in labels] != [len(score_A) for score_A in scored]:
            raise TrainingError(f"scores of {len(scored)} rows for {len(labels)} labelled rows; score the same units first")
        score, label = np.concatenate(scored), np.concatenate(labels)
        return {
            f"{self.judged}/accuracy": float((0.5 * (1 + np.sign(score) * np.sign(2 * label - 1))).mean()),
            f"{self.judged}/nll": float((np.logaddexp(0, score) - label * score).mean()),
        }


@spec
class BinaryRewardModel(LabelledReward):
    """A scalar score, read at the end token, whose sigmoid is the probability that the label is 1."""

    def rows(self, example: Mapping[str, Any], tokenizer: Encoder) -> Unit:
        """One row from the rendered texts ``prompt`` (may be empty) and ``completion`` and the column ``label``: 0, 1, or a
        probability between them; no token is an action.

        Raises:
            DataError: a text is missing, or the label is none.
        """
        tokens_T, _ = completed(example, "completion", tokenizer)
        label = example.get("label")
        if not isinstance(label, int | float | np.number) or not 0 <= label <= 1:
            raise DataError(f"an example needs a label from 0 (bad) to 1 (good), got {label!r}")
        return (Row({"tokens_T": tokens_T}, np.zeros(len(tokens_T), bool), {"label": float(label)}),)

"""Reward models from single labels: one text, one yes or no (logistic regression on a language model's features)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from penstock.algos.completions import Encoder, completed
from penstock.config.spec import spec
from penstock.core.contracts import Denominator, LossOutput, Outputs, Scores
from penstock.core.errors import DataError, TrainingError
from penstock.core.types import Metrics, Row, Unit


@spec
class LabelScore:
    """A scalar score, read at the end token, whose sigmoid is the probability that the label is 1."""

    feedback: ClassVar[str] = "data"
    data: ClassVar[str] = "examples"
    needs: ClassVar[frozenset[str]] = frozenset({"score"})

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

    def loss(self) -> LabelLoss:
        """The logistic loss, a mean over the batch's examples."""
        return LabelLoss()

    def assess(self, units: Sequence[Unit], scores: Scores) -> Metrics:
        """Held-out ``label/accuracy`` at threshold 0 (a score or label on the fence counts one half) and ``label/nll``.

        Raises:
            TrainingError: the scores do not belong to these units, or there are none.
        """
        label_B = np.array([float(row.fields["label"]) for unit in units for row in unit])
        score_B = np.asarray(scores["score"], np.float64)
        if not len(label_B) or len(score_B) != len(label_B):
            raise TrainingError(f"{len(score_B)} scores for {len(label_B)} labelled examples; score the same units first")
        return {
            "label/accuracy": float((0.5 * (1 + np.sign(score_B) * np.sign(2 * label_B - 1))).mean()),
            "label/nll": float((np.logaddexp(0, score_B) - label_B * score_B).mean()),
        }


@dataclass(frozen=True)
class LabelLoss:
    """Logistic loss of the rows of a batch; reads the per-row field ``label``."""

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"score"})

    def __call__(self, outputs: Outputs, fields: Mapping[str, Any], batch: Any, denominator: Denominator) -> LossOutput:
        from penstock.algos import preference

        score_B, label_B = outputs["score"], fields["label"]
        loss = preference.binary_label_loss(score_B, label_B, denominator=denominator.rows)
        return loss, {
            "loss": loss.detach(),
            "label/accuracy": preference.label_accuracy(score_B.detach(), label_B, denominator=denominator.rows),
            "score/mean": score_B.detach().sum() / denominator.rows,
        }

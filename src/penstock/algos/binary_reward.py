"""Reward models: what they share, and the one from single labels (logistic regression on a language model's features)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from penstock.algos.advantages import Array
from penstock.algos.completions import completed
from penstock.config.spec import spec
from penstock.core.algorithm import Encoder, FromData
from penstock.core.contracts import Denominator, LossOutput, Outputs, Scores
from penstock.core.errors import DataError, TrainingError
from penstock.core.types import Metrics, Row, Unit


class RewardModel(FromData):
    """Base of algorithms that train the score head of a reward model."""

    @property
    def heads(self) -> Mapping[str, Mapping[str, Any]]:
        return {"score": {}}

    @property
    def assessed_by(self) -> frozenset[str]:
        return frozenset({"score"})


@spec
class BinaryRewardModel(RewardModel):
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

    def loss(self) -> BinaryLoss:
        """The logistic loss, a mean over the batch's examples."""
        return BinaryLoss("score")

    def assess(self, units: Sequence[Unit], scores: Scores) -> Metrics:
        """Held-out ``label/accuracy`` at threshold 0 (a score or label on the fence counts one half) and ``label/nll``.

        Raises:
            TrainingError: the scores do not belong to these units, or there are none.
        """
        label_B = np.array([float(row.fields["label"]) for unit in units for row in unit])
        score_B = np.asarray(scores["score"], np.float64)
        if not len(label_B) or len(score_B) != len(label_B):
            raise TrainingError(f"{len(score_B)} scores for {len(label_B)} labelled examples; score the same units first")
        return binary_metrics("label", score_B, label_B)


def binary_metrics(name: str, score: Array, label: Array) -> Metrics:
    """``name/accuracy`` at threshold 0 (a tie counts one half) and ``name/nll`` of scores, the log-odds of labels."""
    return {
        f"{name}/accuracy": float((0.5 * (1 + np.sign(score) * np.sign(2 * label - 1))).mean()),
        f"{name}/nll": float((np.logaddexp(0, score) - label * score).mean()),
    }


@dataclass(frozen=True)
class BinaryLoss:
    """Logistic loss of scores, of rows ("score") or of the steps within them ("step"); reads the field ``label`` of each."""

    output: Literal["score", "step"]

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({self.output})

    def __call__(self, outputs: Outputs, fields: Mapping[str, Any], batch: Any, denominator: Denominator) -> LossOutput:
        from penstock.algos import preference

        name, over = ("label", denominator.rows) if self.output == "score" else ("step", denominator.tokens)
        score, label = outputs[self.output], fields["label"]
        loss = preference.binary_label_loss(score, label, denominator=over)
        return loss, {
            "loss": loss.detach(),
            f"{name}/accuracy": preference.label_accuracy(score.detach(), label, denominator=over),
            "score/mean": score.detach().sum() / over,
        }

"""Supervised fine-tuning: the likelihood of given completions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from penstock.algos.completions import completed, conversation
from penstock.algos.labels import share, token_weight
from penstock.config.spec import spec
from penstock.core.algorithm import Encoder, FromData
from penstock.core.contracts import Denominator, LossOutput, Outputs, Scores
from penstock.core.errors import DataError, TrainingError
from penstock.core.types import BoolArray, IntArray, Metrics, Row, Unit


class FromCompletions(FromData):
    """Base of algorithms that imitate given completions, in one way or another."""

    def assess(self, units: Sequence[Unit], scores: Scores) -> Metrics:
        """Held-out ``nll`` in nats per token and ``perplexity``, over all action tokens of the units.

        Raises:
            TrainingError: no token was scored.
        """
        tokens = sum(int(row.action_T.sum()) for unit in units for row in unit)
        scored = sum(len(logp_A) for logp_A in scores["logp"])
        if not tokens or tokens != scored:
            raise TrainingError(f"{scored} log-probs for {tokens} action tokens; score the same units for logp first")
        nll = -sum(float(np.asarray(logp_A, np.float64).sum()) for logp_A in scores["logp"]) / tokens
        return {"nll": nll, "perplexity": math.exp(min(nll, 700.0))}


@spec
class SFT(FromCompletions):
    """Maximum likelihood of the completion and its end token; prompt tokens are context only."""

    aggregate: Literal["token", "sequence"] = "token"
    """Mean over tokens, or over rows of their token means (a short answer then counts as much as a long one)."""
    turns: Literal["all", "last"] = "all"
    """Which of the assistant's turns in a conversation are learned."""

    truncates: ClassVar[bool] = True
    coupled: ClassVar[bool] = False

    @property
    def every_turn(self) -> bool:
        return self.turns == "all"

    def rows(self, example: Mapping[str, Any], tokenizer: Encoder) -> Unit:
        """One row from the rendered texts ``prompt`` (may be empty) and ``completion``, or those of a conversation's ``turns``.

        Raises:
            DataError: a text is missing, or prompt and completion are both empty and leave nothing to predict.
        """
        turns = self.every_turn and example.get("turns")
        found = conversation(turns, tokenizer) if turns else [completed(example, "completion", tokenizer)]
        return tuple(self._row(*one) for one in found)

    def truncated(self, row: Row, length: int) -> Row:
        return self._row(row.tokens_T[:length], row.action_T[:length])

    def _row(self, tokens_T: IntArray, action_T: BoolArray) -> Row:
        length = int(action_T.sum())
        if not length:
            raise DataError("an example with an empty prompt and an empty completion leaves nothing to learn")
        weight_A = np.full(length, token_weight(self.aggregate, length), np.float32)
        return Row({"tokens_T": tokens_T}, action_T, {"weight": weight_A})

    def compute_loss(self, outputs: Outputs, fields: Mapping[str, Any], batch: Any, denominator: Denominator) -> LossOutput:
        """Negative log-likelihood under the chosen mean; reads the per-action field ``weight``."""
        return likelihood_loss(outputs, fields, self.aggregate, denominator)


def likelihood_loss(
    outputs: Outputs, fields: Mapping[str, Any], aggregate: Literal["token", "sequence"], denominator: Denominator
) -> LossOutput:
    """Negative log-likelihood of the action tokens; reads the per-action field ``weight``."""
    from penstock.algos import losses

    weight_A, logp_A = fields["weight"], outputs["logp"]
    loss = -losses.weighted_mean(logp_A, weight_A, denominator=share(aggregate, denominator))
    nll = -losses.weighted_mean(logp_A.detach(), (weight_A != 0).to(logp_A.dtype), denominator=denominator.tokens)
    return loss, {"loss": loss.detach(), "nll": nll}

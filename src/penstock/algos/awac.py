"""Advantage-weighted imitation from samples with rewards (AWAC: Nair et al. 2020, arXiv 2006.09359; AWR: Peng et al. 2019)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from penstock.algos.advantages import returns_to_go
from penstock.algos.completions import completed
from penstock.algos.ilql import WEIGHT_LIMIT, rewards_of
from penstock.algos.sft import FromCompletions
from penstock.config.spec import NotNegative, Positive, Share, spec
from penstock.core.algorithm import Encoder
from penstock.core.contracts import Denominator, LossOutput, Outputs
from penstock.core.types import Row, Unit


@spec
class AWAC(FromCompletions):
    """Imitates given samples, each token by how much better it turned out than expected: ``exp(advantage / temperature)``.

    The advantage is the discounted return from a token on, less a critic's value of the state before it, which is fitted to
    the same returns. Those are Monte Carlo returns of the data's own policy, as in advantage-weighted regression (Peng et al.
    2019, arXiv 1910.00177); for AWAC's critic, which looks one step ahead, use ILQL with ``imitation_beta`` above 0.
    """

    temperature: Positive = 1.0
    """The smaller, the more only the best counts (the paper's λ); rewards are measured in it."""
    discount: Share = 1.0
    baseline: Literal["value", "none"] = "value"
    """``value``: a critic's, learned with the policy; ``none``: the rewards as given are the advantages."""
    value_coefficient: NotNegative = 0.5
    """Weight of the value loss, next to the policy loss."""

    @property
    def heads(self) -> Mapping[str, Mapping[str, Any]]:
        """A critic, with ``baseline="value"``."""
        return {"value": {}} if self.baseline == "value" else {}

    def rows(self, example: Mapping[str, Any], tokenizer: Encoder) -> Unit:
        """One row from ``prompt``, ``completion`` and the column ``reward``, a number or one number per completion token.

        Raises:
            DataError: a text or the reward is missing, is no finite number, or has another length than the completion.
        """
        tokens_T, action_T = completed(example, "completion", tokenizer)
        return_A = returns_to_go(rewards_of(example.get("reward"), action_T), self.discount).astype(np.float32)
        return (Row({"tokens_T": tokens_T}, action_T, {"weight": np.ones(len(return_A), np.float32), "return": return_A}),)

    @property
    def loss_reads(self) -> frozenset[str]:
        return frozenset({"logp"} | self.heads.keys())

    def compute_loss(self, outputs: Outputs, fields: Mapping[str, Any], batch: Any, denominator: Denominator) -> LossOutput:
        """``-exp(A / temperature) · logp + value_coefficient · 0.5 (V - R)²``, each a mean over the batch's action tokens.

        Reads the per-action fields ``return`` and ``weight``.
        """
        from penstock.algos import losses, value_learning

        weight_A, return_A, over = fields["weight"], fields["return"], denominator.tokens
        learned = self.baseline == "value"
        advantage_A = return_A - outputs["value"].detach() if learned else return_A
        advantage_A = losses.counted(advantage_A, weight_A)
        gain_A = value_learning.advantage_weight(advantage_A, scale=1 / self.temperature, limit=WEIGHT_LIMIT)
        loss = -losses.weighted_mean(outputs["logp"], weight_A * gain_A, denominator=over)
        metrics = {
            "imitation/loss": loss.detach(),
            "imitation/weight": losses.weighted_mean(gain_A, weight_A, denominator=over),
        }
        if learned:
            value = value_learning.expectile_loss(outputs["value"], return_A, weight_A, expectile=0.5, denominator=over)
            metrics["value/loss"] = value.detach()
            loss = loss + self.value_coefficient * value
        return loss, {**metrics, "loss": loss.detach()}

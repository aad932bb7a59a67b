"""Implicit language Q-learning (Snell et al. 2022, arXiv 2206.11871): offline RL from samples with rewards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from penstock.algos.advantages import returns_to_go
from penstock.algos.completions import completed
from penstock.algos.sft import FromCompletions
from penstock.config.spec import Count, InnerShare, NotNegative, PositiveShare, Share, spec
from penstock.core.algorithm import Encoder
from penstock.core.contracts import Denominator, LossOutput, Outputs
from penstock.core.errors import DataError
from penstock.core.types import BoolArray, FloatArray, Row, Unit

WEIGHT_LIMIT = 20.0
"""Largest weight that an advantage can give an action in weighted imitation."""


@spec
class ILQL(FromCompletions):
    """Learns how good each token of given samples was, and by how much better than imitation one can choose.

    Two Q heads are fitted to ``r + discount · V(s')``, V to an upper expectile of the smaller target Q, and the policy
    imitates. To act better than the data, generate with ``beta`` above 0, which adds ``beta · (min target Q - V)`` to the
    logits. Rewards should be of the order of 1.
    """

    discount: Share = 0.99
    expectile: InnerShare = 0.7
    """How near V comes to the best of the actions seen: 0.5 is their mean, 1 (excluded) their maximum."""
    conservative: NotNegative = 0.1
    """Weight of the term that lowers Q where the data shows nothing."""
    imitation: NotNegative = 1.0
    """Weight of the policy's likelihood of the data."""
    imitation_beta: NotNegative = 0.0
    """The likelihood of an action counts ``exp(imitation_beta · (min target Q - V))``; 0: all alike."""
    monte_carlo: Share = 0.0
    """Share of the observed return in what Q is fitted to; the rest is ``r + discount · V(s')``. Above 0 the reward of a long
    text reaches its first tokens at once, and Q leans towards what the data did next."""
    target_rate: PositiveShare = 0.1
    """Share of the way that target heads move at a time."""
    target_every: Count = 5
    """Optimizer steps between two moves of the target heads."""

    @property
    def heads(self) -> Mapping[str, Mapping[str, Any]]:
        """Q heads and their slow target copies."""
        return {"q": {"rate": self.target_rate, "every": self.target_every}}

    def rows(self, example: Mapping[str, Any], tokenizer: Encoder) -> Unit:
        """One row from the rendered texts ``prompt`` and ``completion`` and the column ``reward``.

        A number is the reward of the whole completion and lands on its last action, the end token; a list has one number
        per action, the end token included.

        Raises:
            DataError: a text or the reward is missing, is no finite number, or has another length than the completion.
        """
        tokens_T, action_T = completed(example, "completion", tokenizer)
        reward_A = rewards_of(example.get("reward"), action_T)
        fields: dict[str, Any] = {"weight": np.ones(len(reward_A), np.float32), "step_reward": reward_A}
        if self.monte_carlo:
            fields["return"] = returns_to_go(reward_A, self.discount).astype(np.float32)
        return (Row({"tokens_T": tokens_T}, action_T, fields),)

    loss_reads: ClassVar[frozenset[str]] = frozenset({"logp", "q"})

    def compute_loss(self, outputs: Outputs, fields: Mapping[str, Any], batch: Any, denominator: Denominator) -> LossOutput:
        """``TD + expectile + conservative · CQL + imitation · AWAC``, each a mean over the batch's action tokens.

        Reads the per-action fields ``step_reward``, ``weight`` and, with ``monte_carlo``, ``return``.
        """
        from penstock.algos import losses, value_learning

        weight_A, over = fields["weight"], denominator.tokens
        value_A, q_AQ, target_A = outputs["q/state_value"], outputs["q"], outputs["q/target"].amin(-1)
        backup_A = fields["step_reward"] + self.discount * value_learning.next_values(value_A, batch.row_A)
        if self.monte_carlo:
            backup_A = (1 - self.monte_carlo) * backup_A + self.monte_carlo * fields["return"]
        difference = value_learning.temporal_difference_loss(q_AQ, backup_A, weight_A, denominator=over)
        value = value_learning.expectile_loss(value_A, target_A, weight_A, expectile=self.expectile, denominator=over)
        conservative = value_learning.conservative_loss(q_AQ, outputs["q/logsumexp"], weight_A, denominator=over)
        gain_A = losses.counted(target_A - value_A.detach(), weight_A)
        counts_A = weight_A * value_learning.advantage_weight(gain_A, scale=self.imitation_beta, limit=WEIGHT_LIMIT)
        imitation = -losses.weighted_mean(outputs["logp"], counts_A, denominator=over)
        loss = difference + value + self.conservative * conservative + self.imitation * imitation
        return loss, {
            "loss": loss.detach(),
            "q/loss": difference.detach(),
            "q/conservative": conservative.detach(),
            "q/mean": losses.weighted_mean(q_AQ.detach().mean(-1), weight_A, denominator=over),
            "value/loss": value.detach(),
            "value/mean": losses.weighted_mean(value_A.detach(), weight_A, denominator=over),
            "imitation/loss": imitation.detach(),
        }


def rewards_of(reward: Any, action_T: BoolArray) -> FloatArray:
    """The reward of each action, ``[A]``, from a data row's number or list.

    Raises:
        DataError: no reward, one that is not finite, or another number of them than of actions.
    """
    actions = int(action_T.sum())
    if not actions:
        raise DataError("an example with an empty prompt and an empty completion leaves nothing to learn")
    try:
        given = np.asarray(reward, np.float64)
    except (TypeError, ValueError):
        given = np.array(np.nan)
    if reward is None or isinstance(reward, str | bool) or not np.isfinite(given).all():
        raise DataError(f'an example needs a finite "reward", a number or a list of one number per token, got {reward!r:.80}')
    if given.ndim == 0:
        given = np.append(np.zeros(actions - 1), given)
    if given.shape != (actions,):
        raise DataError(f"{given.size} rewards for {actions} completion tokens; give one each, the end token included")
    return given.astype(np.float32)

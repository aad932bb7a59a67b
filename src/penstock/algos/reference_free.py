"""Preference pairs without a reference model, by the policy's own log-probs: ORPO, SimPO and CPO."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.algos.pair_rows import FromPairs, PairValues
from penstock.config.spec import NotNegative, Positive, spec
from penstock.core.contracts import Denominator, LossOutput, Outputs
from penstock.core.types import Row


class ReferenceFree(FromPairs):
    """Base of algorithms whose loss is a term that compares the two completions plus the likelihood of the chosen one."""

    compared: ClassVar[Literal["sum", "mean"]] = "mean"
    """Whether the term compares summed log-probs of completions, or their means a token."""

    beta: float = 1.0
    """What makes a reward of a completion's log-probs."""

    @property
    def shares(self) -> tuple[float, float]:
        """Weights of the term and of the chosen completion's mean log-prob a token."""
        return 1.0, 0.0

    @abstractmethod
    def term(self, chosen_U: Any, rejected_U: Any) -> Any:
        """The loss ``[U]`` of each pair, from log-probs as they are ``compared``."""

    def score(self, logp_A: NDArray[Any], row: Row) -> float:
        """``beta`` times the mean log-prob a token, or the summed one, as they are ``compared``."""
        return self.beta * float(np.mean(logp_A) if self.compared == "mean" else np.sum(logp_A))

    def compute_loss(self, outputs: Outputs, fields: Mapping[str, Any], batch: Any, denominator: Denominator) -> LossOutput:
        """The weighted sum of both parts, a mean over the batch's pairs; reads the per-row field ``preferred``."""
        from penstock.algos import preference

        pairs, (share, likelihood) = denominator.units, self.shares
        means = PairValues.of(outputs["logp"], fields, batch, mean=True)
        by_mean = self.compared == "mean"
        compared = means if by_mean else PairValues.of(outputs["logp"], fields, batch, mean=False)
        term = preference.batch_mean(self.term(compared.chosen_U, compared.rejected_U), denominator=pairs)
        nll = preference.batch_mean(-means.chosen_U, denominator=pairs)
        loss = share * term + likelihood * nll if likelihood else share * term
        metrics = {"loss": loss.detach(), "loss/pairs": term.detach(), "nll/chosen": nll.detach()}
        return loss, compared.metrics(self.beta, pairs) | metrics


@spec
class ORPO(ReferenceFree):
    """Odds-ratio preference optimization (Hong et al. 2024, arXiv 2403.07691, eq. 6): fine-tuning and preference in one stage,
    likelihood of the chosen completion plus ``weight`` times the log odds ratio."""

    weight: Positive = 0.1
    """Weight of the odds ratio, next to the likelihood (the paper's λ)."""

    @property
    def shares(self) -> tuple[float, float]:
        return self.weight, 1.0

    def term(self, chosen_U: Any, rejected_U: Any) -> Any:
        from penstock.algos import pair_losses

        return pair_losses.odds_ratio(chosen_U, rejected_U)

    def score(self, logp_A: NDArray[Any], row: Row) -> float:
        """The log odds of the mean log-prob."""
        mean = min(float(np.mean(logp_A)), -1e-6)
        return mean - float(np.log(-np.expm1(mean)))


@spec
class SimPO(ReferenceFree):
    """Simple preference optimization (Meng et al. 2024, arXiv 2405.14734): the reward of a completion is ``beta`` times its
    mean log-prob a token, and has to win by a margin."""

    beta: Positive = 2.0
    """Scale of the reward; the paper takes 2 to 10, far more than DPO, because means are small."""
    margin: NotNegative = 1.0
    """By how much the chosen reward has to win (γ); the paper takes 0.3 to 1.6 for β = 2 to 2.5."""

    def term(self, chosen_U: Any, rejected_U: Any) -> Any:
        from penstock.algos import pair_losses

        return pair_losses.simpo(chosen_U, rejected_U, self.beta, self.margin)


@spec
class CPO(ReferenceFree):
    """Contrastive preference optimization (Xu et al. 2024, arXiv 2401.08417): DPO without a reference, ``-log σ(β
    (log π(chosen) - log π(rejected)))``, plus likelihood.

    The likelihood is a mean over a completion's tokens, as in the authors' program; the paper writes its sum.
    """

    compared: ClassVar[Literal["sum", "mean"]] = "sum"

    beta: Positive = 0.1
    """Scale of the difference of summed log-probs."""
    nll_weight: NotNegative = 1.0
    """Weight of the likelihood term: the chosen completion's mean log-prob a token."""

    @property
    def shares(self) -> tuple[float, float]:
        return 1.0, self.nll_weight

    def term(self, chosen_U: Any, rejected_U: Any) -> Any:
        from penstock.algos import pair_losses

        return pair_losses.sigmoid(chosen_U, rejected_U, self.beta)

"""Direct preference optimization and its kin (Rafailov et al. 2023, arXiv 2305.18290): one spec, many losses, mixes of them.

The loss reads how much likelier each completion of a pair has become than under a frozen reference. An objective is a
name of ``pair_losses.PAIR_LOSSES``, ``"sft"`` (the chosen completion's likelihood), or several with weights.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.algos.pair_rows import FromPairs, PairValues, pair_rows
from penstock.config.run import require
from penstock.config.spec import Positive, PositiveShare, spec
from penstock.core.algorithm import Encoder, LogProbs
from penstock.core.contracts import Denominator, LossOutput, Outputs
from penstock.core.errors import TrainingError
from penstock.core.types import Row, Unit, with_field

Objective = Literal["sigmoid", "robust", "ipo", "hinge", "apo_zero", "apo_down", "sppo", "exo", "nca", "discopop", "bco", "sft"]
NAMES: tuple[str, ...] = Objective.__args__  # type: ignore[attr-defined]

SMOOTHED = ("sigmoid", "robust", "exo")
"""Objectives that read ``smoothing``."""

TAU = 0.05
"""DiscoPOP's temperature in the paper."""

MIXED_IPO = "ipo compares means a token, the others sums; a mix needs one of them, so set length_normalised to true or false"

MPO = {"sigmoid": 0.8, "bco": 0.2, "sft": 1.0}
"""Mixed preference optimization (Wang et al. 2024, arXiv 2411.10442, with its weights)."""


@spec
class DPO(FromPairs):
    """Direct preference optimization on pairs, against a frozen reference; ``objective`` chooses the loss."""

    beta: Positive = 0.1
    """How dear a move from the reference is; 0.1 is usual. For ``ipo`` it is the paper's τ, for ``sppo`` its 1 / η."""
    objective: Objective | Mapping[str, float] = "sigmoid"
    """A loss by name, or several with their weights, such as ``{"sigmoid": 0.8, "bco": 0.2, "sft": 1}``."""
    smoothing: float = 0.0
    """Chance that a label is wrong: makes ``sigmoid`` conservative DPO; ``robust`` corrects for it; ``exo`` needs it."""
    length_normalised: bool | None = None
    """Compare log-ratios a token instead of their sums, so that length earns nothing (Lambert et al. 2024, arXiv
    2411.15124). None: for ``ipo`` alone, whose β is that of a mean."""
    decay: PositiveShare = 1.0
    """What each token's log-ratio counts relative to the one before it (γ of D2PO, arXiv 2502.14340; 0.98 is usual): below 1
    earlier tokens count more."""
    discopop_tau: Positive = TAU
    """How sharply ``discopop`` passes from its logistic to its exponential part."""
    weight: str = ""
    """Column with what each pair counts, such as the discount of old votes (Son et al. 2024, arXiv 2407.18676); empty: all
    alike."""
    probability: str = ""
    """Column with the chance (0 to 1) that the preferred completion of each pair is the better one, for ``sigmoid``; empty:
    the same for all, ``1 - smoothing``."""

    def __post_init__(self) -> None:
        weights, smoothing = self._weights(), self.smoothing
        require(bool(weights), "objective is empty; name a loss such as sigmoid")
        for name, weight in weights.items():
            require(name in NAMES, f'objective "{name}" is unknown; known are: {", ".join(NAMES)}')
            require(weight > 0, f"objective {name} has the weight {weight}; give a positive one or leave it out")
        require(set(weights) != {"sft"}, 'objective="sft" alone prefers nothing; use SFT on the chosen completions')
        require(0 <= smoothing < 0.5, f"smoothing={smoothing} is no chance of a wrong label from 0 to below 0.5")
        require("ipo" not in weights or len(weights) == 1 or self.length_normalised is not None, MIXED_IPO)
        require(not self.by_mean or self.decay == 1, "length_normalised and decay both act against length; choose one")
        require(
            self.discopop_tau == TAU or "discopop" in weights,
            f"discopop_tau has no effect on {', '.join(weights)}; leave it out",
        )
        read = set(SMOOTHED) & set(weights)
        require(not smoothing or bool(read), f"smoothing={smoothing} has no effect on {', '.join(weights)}; set it to 0")
        require("exo" not in weights or smoothing > 0, 'objective="exo" is infinite without smoothing; set it to 1e-3')
        require("robust" not in weights or smoothing > 0, 'objective="robust" without smoothing is "sigmoid"; set smoothing')
        require(
            not self.probability or (set(weights) <= {"sigmoid", "sft"} and not smoothing),
            f'probability="{self.probability}" is the label of "sigmoid" alone and replaces smoothing; set objective="sigmoid" '
            "and smoothing=0, or leave probability out",
        )

    needs: ClassVar[frozenset[str]] = frozenset({"reference"})

    @property
    def by_mean(self) -> bool:
        """Whether log-ratios a token are compared."""
        return "ipo" in self._weights() if self.length_normalised is None else self.length_normalised

    @property
    def data_columns(self) -> tuple[str, ...]:
        return tuple(name for name, column in (("weight", self.weight), ("probability", self.probability)) if column)

    @property
    def has_baseline(self) -> bool:
        return "bco" in self._weights()

    def rows(self, example: Mapping[str, Any], tokenizer: Encoder) -> Unit:
        """Two rows, preferred first, whose actions are the completion and its end token.

        Raises:
            DataError: a text is missing, the weight's column holds no number of 0 or more, or the probability's none to 1.
        """
        return pair_rows(example, tokenizer, weight=self.weight, probability=self.probability)

    def _weights(self) -> Mapping[str, float]:
        return {self.objective: 1.0} if isinstance(self.objective, str) else self.objective

    def score(self, logp_A: NDArray[Any], row: Row) -> float:
        """The implicit reward: ``β`` times the log-ratio."""
        return implicit_reward(logp_A, row, self.beta, self.by_mean, self.decay)

    def with_baseline(self, units: Sequence[Unit], policy: LogProbs, reference: LogProbs) -> list[Unit]:
        """The units with the field ``baseline``: the batch's mean log-ratio under the present policy, which ``bco`` reads.

        The paper keeps a moving average of it; the mean of the whole batch depends on no state and on no micro-batch.
        """
        rows = [row for unit in units for row in unit]
        now = zip(policy(units), rows, strict=True)
        baseline = float(np.mean([implicit_reward(logp_A, row, 1.0, self.by_mean, self.decay) for logp_A, row in now]))
        return with_field(units, "baseline", itertools.repeat(baseline))

    def compute_loss(self, outputs: Outputs, fields: Mapping[str, Any], batch: Any, denominator: Denominator) -> LossOutput:
        """The chosen loss or mix, a mean over the batch's pairs.

        Reads ``reference_logp`` (per action), ``preferred`` and ``baseline`` (per row). Where rows have them, ``weight`` and
        ``probability`` (equal in both rows of a pair) are what the pair counts and how sure its order is.
        """
        from penstock.algos import preference

        pairs, weights = denominator.units, self._weights()
        ratio_A = preference.decayed(outputs["logp"] - fields["reference_logp"], batch.row_A, self.decay)
        ratios = PairValues.of(ratio_A, fields, batch, mean=self.by_mean)
        means = PairValues.of(outputs["logp"], fields, batch, mean=True)
        metrics = ratios.metrics(self.beta, pairs) | {"nll/chosen": -means.chosen_U.detach().sum() / pairs}
        loss: Any = 0.0
        for name, weight in weights.items():
            term_U = -means.chosen_U if name == "sft" else self._term(name, ratios, fields, batch)
            if "weight" in fields:
                term_U = term_U * preference.pairs(fields["weight"], fields["preferred"], batch.unit_B)[0]
            term = preference.batch_mean(term_U, denominator=pairs)
            if len(weights) > 1:
                metrics[f"loss/{name}"] = term.detach()
            loss = loss + weight * term
        return loss, metrics | {"loss": loss.detach()}

    def _term(self, name: str, ratios: PairValues, fields: Mapping[str, Any], batch: Any) -> Any:
        from penstock.algos import preference
        from penstock.algos.pair_losses import PAIR_LOSSES

        more: tuple[Any, ...] = (self.smoothing,) if name in SMOOTHED else ()
        if "probability" in fields:
            more = (1 - preference.pairs(fields["probability"], fields["preferred"], batch.unit_B)[0],)
        if name == "discopop":
            more = (self.discopop_tau,)
        if name == "bco":
            more = (preference.pairs(fields["baseline"], fields["preferred"], batch.unit_B)[0],)
        return PAIR_LOSSES[name](ratios.chosen_U, ratios.rejected_U, self.beta, *more)


def implicit_reward(logp_A: NDArray[Any], row: Row, beta: float, mean: bool, decay: float = 1.0) -> float:
    """``beta`` times the sum (or mean) of a row's log-ratios to its ``reference_logp``, the t-th times ``decay^t``.

    Raises:
        TrainingError: the row has no reference, or log-probs of another length.
    """
    reference_A = np.asarray(row.fields.get("reference_logp", np.empty(0)), np.float64)
    if reference_A.shape != np.shape(logp_A):
        raise TrainingError(f"{np.size(logp_A)} log-probs and {len(reference_A)} of the reference; score both on the same row")
    ratio_A = (np.asarray(logp_A, np.float64) - reference_A) * decay ** np.arange(len(reference_A))
    return beta * float(ratio_A.mean() if mean else ratio_A.sum())

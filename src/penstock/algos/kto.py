"""Kahneman-Tversky optimization: single completions marked good or bad (Ethayarajh et al. 2024, arXiv 2402.01306)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np

from penstock.algos.completions import completed
from penstock.algos.dpo import implicit_reward
from penstock.algos.pair_rows import pair_rows
from penstock.config.run import require
from penstock.config.spec import Positive, spec
from penstock.core.algorithm import Encoder, FromData, LogProbs
from penstock.core.contracts import Denominator, LossOutput, Outputs, Scores
from penstock.core.errors import DataError, TrainingError
from penstock.core.types import Metrics, Row, Unit, with_field

MOST = 4 / 3
"""The paper's range of ``weighted good : weighted bad`` is from 1 to 4/3."""


@spec
class KTO(FromData):
    """KTO: a good completion should beat the batch's KL divergence from the reference, a bad one should fall below it."""

    beta: Positive = 0.1
    """How sharply the loss bends around the divergence."""
    data: Literal["examples", "pairs"] = "examples"
    """Single completions with a column ``label`` (true or false, 1 or 0), or pairs, each read as one good and one bad one."""
    weights: tuple[float, float] | None = None
    """What good and bad completions count. None: computed from the data, so that ``weight · count`` of good to bad lies
    between 1 and 4/3 while neither weight is below 1."""

    def __post_init__(self) -> None:
        given = self.weights is None or min(self.weights) > 0
        require(given, f"weights={self.weights} must be positive, such as (1.0, 1.0)")

    needs: ClassVar[frozenset[str]] = frozenset({"reference"})

    has_baseline: ClassVar[bool] = True
    truncates: ClassVar[bool] = True
    least_units: ClassVar[int] = 2
    """Units without which there is no mismatched completion to estimate the divergence from."""

    def rows(self, example: Mapping[str, Any], tokenizer: Encoder) -> Unit:
        """One labelled row, or the two of a pair; the actions are the completion and its end token.

        Raises:
            DataError: a text is missing, or the label is neither good nor bad.
        """
        if self.data == "pairs":
            pair = pair_rows(example, tokenizer)
            return tuple(replace(row, fields={"desirable": row.fields["preferred"]}) for row in pair)
        tokens_T, produced_T = completed(example, "completion", tokenizer)
        label = example.get("label")
        if not isinstance(label, bool | int | float | np.number | np.bool_) or label not in (0, 1):
            raise DataError(f"an example needs a label, true (good) or false (bad), got {label!r}")
        return (Row({"tokens_T": tokens_T}, produced_T, {"desirable": float(label)}),)

    def fitted(self, units: Iterable[Unit]) -> KTO:
        """The spec with ``weights`` computed from the data that will be trained on; all units are looked at either way.

        Raises:
            DataError: weights are to be computed, and all completions are good, or all bad.
        """
        labels = [bool(row.fields["desirable"]) for unit in units for row in unit]
        return self if self.weights is not None else replace(self, weights=class_weights(sum(labels), labels.count(False)))

    def with_baseline(self, units: Sequence[Unit], policy: LogProbs, reference: LogProbs) -> list[Unit]:
        """The units with the field ``baseline``: ``max(0, mean log-ratio of mismatched completions)``, nats.

        Each prompt is given the completions of the next unit. The estimate is made once for the whole batch, under the
        weights as they are before the step, so that no micro-batch can change it (the paper's appendix estimates it a
        micro-batch at a time). A completion that would make a row longer than the longest of the batch is cut.

        Raises:
            TrainingError: one unit alone has no mismatched completion.
        """
        mixed = mismatched(units)
        gaps = [
            float(np.sum(np.asarray(now_A, np.float64) - np.asarray(then_A, np.float64)))
            for now_A, then_A in zip(policy(mixed), reference(mixed), strict=True)
        ]
        baseline = max(0.0, float(np.mean(gaps)))
        return with_field(units, "baseline", itertools.repeat(baseline))

    def compute_loss(self, outputs: Outputs, fields: Mapping[str, Any], batch: Any, denominator: Denominator) -> LossOutput:
        """``weight · (1 - σ(±β (r - z)))``, a mean over the batch's rows.

        Reads ``reference_logp`` (per action), ``desirable`` and ``baseline`` (per row).

        Raises:
            TrainingError: the weights are to be computed from data, and :meth:`fitted` has seen none.
        """
        from penstock.algos import pair_losses, preference

        if self.weights is None:
            raise TrainingError("KTO's weights are computed from data; call fitted(units) first, or set weights")
        good_B, rows = fields["desirable"], denominator.rows
        ratio_B = preference.row_sums(outputs["logp"] - fields["reference_logp"], batch.row_A, len(good_B))
        weight_B = self.weights[0] * good_B + self.weights[1] * (1 - good_B)
        loss_B = weight_B * pair_losses.prospect(ratio_B, good_B, fields["baseline"], self.beta)
        loss = preference.batch_mean(loss_B, denominator=rows)
        reward_B = self.beta * ratio_B.detach()
        return loss, {
            "loss": loss.detach(),
            "kl/mismatched": fields["baseline"].sum() / rows,
            "reward/towards_label": (reward_B * (2 * good_B - 1)).sum() / rows,
        }

    def assess(self, units: Sequence[Unit], scores: Scores) -> Metrics:
        """Held-out ``label/auc``: the chance that a good completion's reward beats a bad one's (a tie counts one half);
        ``reward/good`` and ``reward/bad``, means of the implicit rewards.

        Raises:
            TrainingError: the log-probs do not belong to these units, or one of the classes is missing.
        """
        rows = [row for unit in units for row in unit]
        if len(scores["logp"]) != len(rows):
            raise TrainingError(f"log-probs of {len(scores['logp'])} rows for {len(rows)} rows; score the same units first")
        reward_B = np.array([implicit_reward(a, row, self.beta, False) for a, row in zip(scores["logp"], rows, strict=True)])
        good_B = np.array([bool(row.fields["desirable"]) for row in rows], bool)
        good, bad = reward_B[good_B], reward_B[~good_B]
        if not len(good) or not len(bad):
            raise TrainingError(f"{len(good)} good and {len(bad)} bad completions are held out; both are needed to compare")
        wins = 0.5 * (1 + np.sign(good[:, None] - bad[None, :]))
        return {"label/auc": float(wins.mean()), "reward/good": float(good.mean()), "reward/bad": float(bad.mean())}


def class_weights(good: int, bad: int) -> tuple[float, float]:
    """Weights, none below 1, that bring ``w_good · good : w_bad · bad`` into [1, 4/3] (arXiv 2402.01306).

    Raises:
        DataError: one of the classes is missing, so that there is no ratio.
    """
    if not good or not bad:
        raise DataError(f"KTO has {good} good and {bad} bad completions to learn from; give both, or set weights by hand")
    if good < bad:
        return bad / good, 1.0
    return 1.0, max(1.0, good / bad / MOST)


def mismatched(units: Sequence[Unit]) -> list[Unit]:
    """Each unit's prompts with the completions of the next unit, without fields; see :meth:`KTO.with_baseline`.

    Raises:
        TrainingError: fewer than two units.
    """
    if len(units) < 2:
        raise TrainingError("KTO compares a prompt with another one's completion; a batch needs at least two units")
    longest = max(len(row.tokens_T) for unit in units for row in unit)
    mixed = []
    for place, unit in enumerate(units):
        prompt_T = unit[0].tokens_T[: int(unit[0].action_T.argmax())]
        rows = []
        for other in units[(place + 1) % len(units)]:
            completion = other.tokens_T[other.action_T][: longest - len(prompt_T)]
            tokens_T = np.concatenate([prompt_T, completion]).astype(np.int32)
            rows.append(Row({"tokens_T": tokens_T}, np.arange(len(tokens_T)) >= len(prompt_T)))
        mixed.append(tuple(rows))
    return mixed

"""What the labelling of every online algorithm shares: from groups to trajectories, from trajectories to rows.

A row's ``action_T`` marks the tokens that are trained on, and denominators count exactly those. An algorithm that leaves a
token out therefore clears its ``action_T``; it never keeps it with weight 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.algos.advantages import Array
from penstock.algos.kl import LOG_RATIO_LIMIT
from penstock.core.contracts import Columns, Denominator
from penstock.core.errors import TrainingError
from penstock.core.types import LARGEST_REWARD, LEFT_OUT, Group, Metrics, Row, Sample, Unit

Aggregate = Literal["token", "sequence", "constant"]
PER_ACTION = {"reference": "reference_logp", "value": "value", "proximal": "proximal_logp"}
"""Columns that a trajectory has as fields."""


@dataclass(frozen=True)
class Trajectory:
    """The ``A`` action steps of one valid sample as float64 columns; one that was not asked for is empty."""

    sample: Sample
    logp_A: Array
    """Log-probs under the policy that drew the tokens."""
    reward_A: Array
    reference_logp_A: Array = field(default_factory=lambda: np.empty(0))
    value_A: Array = field(default_factory=lambda: np.empty(0))
    proximal_logp_A: Array = field(default_factory=lambda: np.empty(0))
    """Log-probs under the learner before the batch's first update."""
    bootstrap: float = 0.0
    """Value of the state after the last action, if the sample was cut while it still ran; 0 if it ended."""
    greedy_reward: float = 0.0
    """Reward of the greedy answer to the same prompt."""
    earlier_reward: float = 0.0
    """What actions earned that were left out because they had become too old."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Columns of other names, as they were filled."""

    def __len__(self) -> int:
        return len(self.logp_A)

    @property
    def reward(self) -> float:
        """The sum of the rewards, before any penalty; that of actions left out for their age included."""
        return float(self.reward_A.sum()) + self.earlier_reward


def trajectories(
    groups: Sequence[Group], columns: Columns, *, needs: frozenset[str] = frozenset(), least: int = 1, greedy: bool = False
) -> list[list[Trajectory]]:
    """The valid samples of each group, with their columns.

    Samples that failed or were not scored are left out, so that no baseline sees them; a group with fewer than ``least``
    valid samples is left out whole. Neither is an error: a failed rollout is data. A greedy sample (``extras["greedy"]``) is
    a baseline and never a trajectory; where ``greedy`` asks for one, a group without a valid one is left out.

    Args:
        groups: scored groups.
        columns: scorer columns, ``[group][sample]``, standing also for invalid samples (where they are not read).
        needs: columns that must be there: a trajectory has "reference", "value", "proximal" and "bootstrap" as
            fields and all others in ``more``.
        least: valid samples that a group needs.

    Raises:
        TrainingError: a needed column is missing or does not fit its sample, or a reward is not finite.
    """
    read = {name: columns.get(name) for name in needs}
    for name, values in read.items():
        if values is None:
            raise TrainingError(f'the algorithm needs the "{name}" column, which was not filled')
        if len(values) != len(groups):
            raise TrainingError(f'the "{name}" column has {len(values)} groups, the batch {len(groups)}')
    found = []
    for index, group in enumerate(groups):
        answers = [sample for sample in group.samples if sample.valid and sample.extras.get("greedy")]
        if greedy and not answers:
            continue
        baseline = sum(map(np.sum, rewards_of_actions(answers[0]))) if answers else 0.0
        kept = [
            _trajectory(sample, {name: values[index][place] for name, values in read.items() if values}, baseline)
            for place, sample in enumerate(group.samples)
            if sample.valid and not sample.extras.get("greedy")
        ]
        if len(kept) >= max(least, 1):
            found.append(kept)
    return found


def _trajectory(sample: Sample, column: Mapping[str, Any], greedy_reward: float) -> Trajectory:
    logp_A = sample.logp_T[sample.action_T].astype(np.float64)
    arrays = {f"{name}_A": np.asarray(column[source], np.float64) for source, name in PER_ACTION.items() if source in column}
    for name, value_A in arrays.items():
        if value_A.shape != logp_A.shape:
            raise TrainingError(f'{sample.key}: the column "{name}" has shape {value_A.shape}, its actions {logp_A.shape}')
    more = {name: value for name, value in column.items() if name not in PER_ACTION and name != "bootstrap"}
    reward_A, earlier_A = rewards_of_actions(sample)
    ends = {"bootstrap": float(column.get("bootstrap", 0.0)), "greedy_reward": greedy_reward}
    given: dict[str, Any] = {**arrays, **ends, "earlier_reward": float(earlier_A.sum()), "more": more}
    return Trajectory(sample, logp_A, reward_A, **given)


def rewards_of_actions(sample: Sample) -> tuple[Array, Array]:
    """The reward of each action, ``[A]``, and of those that were left out for their age; a reward on an observation counts for
    the action before it.

    Raises:
        TrainingError: the sample is unscored, a reward is not finite or too large to be squared and summed in float32, or one
            lies before the first action.
    """
    if sample.reward_T is None:
        raise TrainingError(f"{sample.key}: cannot be labelled before it is scored")
    reward_T = sample.reward_T.astype(np.float64)
    if not (np.abs(reward_T) <= LARGEST_REWARD).all():
        raise TrainingError(f"{sample.key}: a reward is not finite, or beyond ±{LARGEST_REWARD:g}; scale rewards towards 1")
    acted_T = sample.action_T | sample.extras.get(LEFT_OUT, False)
    cause_T = np.cumsum(acted_T) - 1
    if reward_T[cause_T < 0].any():
        raise TrainingError(f"{sample.key}: a reward lies before the first action, which cannot have caused it")
    earned = np.bincount(cause_T[cause_T >= 0], reward_T[cause_T >= 0], int(acted_T.sum()))
    kept = sample.action_T[acted_T]
    return earned[kept], earned[~kept]


def token_weight(aggregate: Aggregate, length: int, constant: int = 0) -> float:
    """The weight of each of a row's ``length`` tokens, to be divided by :func:`share` of the batch.

    ``token``: 1 (mean over tokens). ``sequence``: 1 / length (mean over sequences of the mean over tokens). ``constant``:
    1 / constant (a sequence's sum over a constant, mean over sequences).
    """
    return {"token": 1.0, "sequence": 1 / length, "constant": 1 / constant if constant else 0.0}[aggregate]


def share(aggregate: Aggregate, denominator: Denominator) -> float:
    """The count that an aggregate divides by: the batch's action tokens or its rows."""
    return denominator.tokens if aggregate == "token" else denominator.rows


def labelled_row(trajectory: Trajectory, **fields: float | NDArray[Any]) -> Row:
    """A trajectory's row with its ``reward`` (a number) and ``fields``: numbers, or arrays over its action tokens."""
    stored = {name: value.astype(np.float32) if isinstance(value, np.ndarray) else value for name, value in fields.items()}
    return Row(trajectory.sample.columns, trajectory.sample.action_T, {"reward": trajectory.reward, **stored})


def is_flat(unit: Unit) -> bool:
    """Whether no advantage of the unit differs from zero, so that the policy loss learns nothing from it."""
    return not any(np.any(row.fields["advantage"]) for row in unit)


def label_metrics(units: Sequence[Unit]) -> Metrics:
    """What a labelled batch looks like, computed from the rows that are trained on (a group left out is not in here).

    Each is there if the rows carry its fields: ``batch/units``, ``batch/rows``, ``batch/tokens``; ``batch/flat`` (share of
    units without a non-zero advantage); means and standard deviations over rows of ``reward`` (before penalties) and over
    tokens of ``advantage``; ``entropy/sampled`` (mean of ``-old_logp``, nats per token); ``kl/reference`` (mean over rows
    of the summed ``old_logp - reference_logp``, nats per sequence; unbiased, so it may dip below 0); ``kl/coefficient``;
    ``cost/mean`` and ``cost/multiplier``;
    ``entropy/coefficient``; ``kl/behaviour`` (from the drawing policy to the learner before the update, k3, nats per token);
    ``importance/mean`` and ``importance/silenced`` (share of weights that are 0) over tokens; ``return/mean``,
    ``value/mean`` and ``value/explained_variance`` over tokens.
    """
    rows = [row for unit in units for row in unit]
    metrics: Metrics = {
        "batch/units": float(len(units)),
        "batch/rows": float(len(rows)),
        "batch/tokens": float(sum(int(row.action_T.sum()) for row in rows)),
    }
    column = {name: _stack(rows, name) for name in (rows[0].fields if rows else ())}
    there = column.keys()
    if "reward" in there:
        metrics |= {"reward/mean": float(column["reward"].mean()), "reward/std": float(column["reward"].std())}
    if "advantage" in there:
        metrics |= {"advantage/mean": float(column["advantage"].mean()), "advantage/std": float(column["advantage"].std())}
        metrics["batch/flat"] = sum(is_flat(unit) for unit in units) / len(units)
    if "old_logp" in there:
        metrics["entropy/sampled"] = -float(column["old_logp"].mean())
    if {"old_logp", "reference_logp"} <= there:
        metrics["kl/reference"] = float((column["old_logp"] - column["reference_logp"]).sum()) / len(rows)
    if "kl_coefficient" in there:
        metrics["kl/coefficient"] = float(column["kl_coefficient"].mean())
    if {"cost", "multiplier"} <= there:
        metrics |= {"cost/mean": float(column["cost"].mean()), "cost/multiplier": float(column["multiplier"].mean())}
    if "entropy_coefficient" in there:
        metrics["entropy/coefficient"] = float(column["entropy_coefficient"].mean())
    if {"old_logp", "proximal_logp"} <= there:
        gap = column["old_logp"] - column["proximal_logp"]
        metrics["kl/behaviour"] = float((np.exp(-gap.clip(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)) - 1 + gap).mean())
    if "importance_weight" in there:
        weight = column["importance_weight"]
        metrics |= {"importance/mean": float(weight.mean()), "importance/silenced": float((weight == 0).mean())}
    if {"return", "old_value"} <= there:
        metrics |= {"return/mean": float(column["return"].mean()), "value/mean": float(column["old_value"].mean())}
        spread = column["return"].var()
        if spread > 0:
            metrics["value/explained_variance"] = 1 - float((column["return"] - column["old_value"]).var() / spread)
    return metrics


def _stack(rows: Sequence[Row], name: str) -> Array:
    return np.concatenate([np.atleast_1d(np.asarray(row.fields[name], np.float64)) for row in rows])

"""Breakers: sentinels that act. A rule trips them that compares a batch with those before it; what they do is one table.

A rule is a pure function of metrics and of the latest values of healthy batches. Bounds follow from those values by median and
median absolute deviation, so that none has to be set for a task; :class:`Limits` has the factors, which were calibrated by
injected faults (``docs/operate.md``).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from penstock.core.types import Metrics
from penstock.observe.history import LIMITS, REPEATED, History, Limits, spread
from penstock.observe.rules import Context, Reading, Rule

Action = Literal["skip", "roll back", "roll back to the best", "end the batch", "stop"]

ACTIONS: Mapping[str, tuple[Action, Action]] = {
    "non-finite": ("skip", "roll back"),
    "gradient norm": ("skip", "roll back"),
    "log-prob gap": ("skip", "stop"),
    "reward range": ("skip", "stop"),
    "update size": ("roll back", "stop"),
    "reward fall": ("roll back", "stop"),
    "loss jump": ("roll back", "stop"),
    "reference KL": ("roll back", "stop"),
    "entropy jump": ("roll back", "stop"),
    "entropy collapse": ("roll back", "stop"),
    "step KL": ("end the batch", "end the batch"),
    "gold": ("roll back to the best", "stop"),
    "held-out fall": ("roll back to the best", "stop"),
    "rollbacks": ("stop", "stop"),
}
"""By sentinel: what is done at once, and what if that was done too often. All other sentinels only say what they see."""

DOUBTED = {"reward fall": "reward/mean", "loss jump": "loss", "entropy jump": "entropy/sampled", "reference KL": "kl/reference"}
"""Sentinels that other data may trip as well as broken weights, and the metric that each reads."""


def spike(name: str, history: History, limits: Limits = LIMITS, range_now: float = 0.0) -> float:
    """The value above which a batch's gradient norm or step is a spike (OLMo 2, arXiv:2501.00656, and SPAM, arXiv:2501.06842,
    cut gradients likewise); infinite while there is nothing to compare with.

    It must be far above the median and several times the largest of the latest, because where few groups have a signal the
    median is small and the steps that teach are the large ones. Where rewards of a batch are ``range_now`` apart, and usually
    less, a gradient may be larger in proportion: the first full reward after many small ones teaches more than those.
    """
    values = history.of(name, limits)
    if not values:
        return math.inf
    middle, deviation = spread(values)
    usual = statistics.median(history.values.get("reward/range") or [range_now])
    wider = max(1.0, range_now / usual) if usual > 0 else 1.0
    return wider * max(middle + limits.deviations * deviation, limits.spike_times * max(values))


def update_jump(metrics: Metrics, history: History, limits: Limits = LIMITS) -> Reading | None:
    """Whether a step moved the weights far more than those before: a learning rate or an optimizer's moments that broke.

    A gradient cannot show that, and what a too large step does to rewards may show late or come back in another place.
    """
    bound = spike("update_size", history, limits, metrics.get("reward/range", 0.0))
    if "update_size" not in metrics or bound == math.inf:
        return None
    value, largest = metrics["update_size"], max(history.of("update_size", limits))
    text = (
        f"a step moved the weights by {value:.3g} (root mean square; {largest:.3g} at most in the latest steps, bound "
        f"{bound:.3g}): the learning rate or the optimizer's moments broke; look at learner.learning_rate"
    )
    return Reading(value, bound, not value <= bound, text)


def range_of_rewards(rewards: Sequence[float], history: History, limits: Limits = LIMITS) -> Reading | None:
    """Whether many of a batch's rewards are far outside of all that were seen: a scale that changed, an overflow, another
    function. Of rewards that have all been 0 so far there is no unit, and whatever comes first is a success."""
    if not rewards or not history.of("reward/mean", limits):
        return None
    size = max(abs(history.lowest), abs(history.highest))
    reach = limits.outlier * max(history.highest - history.lowest, size, 1.0)
    low, high = history.lowest - reach, history.highest + reach
    outside = [reward for reward in rewards if not low <= reward <= high]
    value = max(outside, default=max(rewards), key=abs)
    text = (
        f"{len(outside)} of {len(rewards)} rewards, {value:.4g} among them, are far outside of all {history.lowest:.4g} to "
        f"{history.highest:.4g} that were seen: what gives rewards has changed; look at it, and go on with --sentinels warn if "
        "such values are meant"
    )
    many = len(outside) >= min(len(rewards), max(3, limits.outlier_share * len(rewards)))
    return Reading(value, low if value < low else high, bool(outside) and many and size > 0, text)


def reward_fall(metrics: Metrics, context: Context, history: History, limits: Limits = LIMITS) -> Reading | None:
    """Whether the mean reward is far below that of the latest healthy batches: the policy broke, or its reward did.

    One batch is enough where it fell by more than the standard deviation of single samples; two in a row by half of that, both
    beyond what batches vary by; three where each is lower than all before, since batches may vary by much.
    """
    values = history.of("reward/mean", limits)
    if len(values) < limits.least + 2 or "reward/mean" not in metrics:
        return None
    usual, latest = values[-limits.recent - 2 : -2], [*values[-2:], metrics["reward/mean"]]
    middle, deviation = spread(usual)
    of_samples = max(metrics.get("reward/std", 0.0), context.start.get("reward/std", 0.0))
    half = middle - limits.fall * of_samples
    bounds = (
        min(middle - max(limits.deviations * deviation, 2 * limits.fall * of_samples), min(usual)),
        min(middle - limits.deviations * deviation, half),
        min(half, min(usual)),
    )
    fell = [max(latest[-count:]) < bound for count, bound in enumerate(bounds, 1)]
    value, bound = latest[-1], next((bound for bound, yes in zip(bounds, fell, strict=True) if yes), bounds[0])
    text = (
        f"the mean reward fell to {value:.3g} from {middle:.3g} (bound {bound:.3g}): the policy broke, or what gives rewards "
        "did; lower learner.learning_rate, or look at the reward"
    )
    return Reading(value, bound, any(fell), text)


def reference_jump(metrics: Metrics, history: History, limits: Limits = LIMITS) -> Reading | None:
    """Whether the policy left its reference all at once."""
    values = history.of("kl/reference", limits)
    if not values or "kl/reference" not in metrics:
        return None
    least = max(limits.reference_least, limits.reference_token * metrics.get("length/mean", 0.0))
    value, bound = metrics["kl/reference"], max(limits.reference_times * max(values), least)
    text = (
        f"the KL to the reference jumped to {value:.3g} nats a sample (at most {max(values):.3g} before, bound {bound:.3g}): "
        "the policy moved too far in one step; lower learner.learning_rate"
    )
    return Reading(value, bound, value > bound, text)


def entropy_jump(metrics: Metrics, context: Context, history: History, limits: Limits = LIMITS) -> Reading | None:
    """Whether samples became noise: far more entropy than before and no reward for it."""
    values, rewards = history.of("entropy/sampled", limits), history.of("reward/mean", limits)
    if not values or not rewards or not metrics.keys() >= {"entropy/sampled", "reward/mean"}:
        return None
    middle, deviation = spread(values)
    value = metrics["entropy/sampled"]
    bound = max(limits.entropy_times * middle, middle + limits.deviations * deviation, middle + limits.entropy_least)
    of_samples = max(metrics.get("reward/std", 0.0), context.start.get("reward/std", 0.0))
    lost = metrics["reward/mean"] < statistics.median(rewards) - of_samples / 4
    text = (
        f"the entropy of the samples jumped from {middle:.3g} to {value:.3g} nats a token (bound {bound:.3g}) and the reward "
        "did not rise: the policy broke; lower learner.learning_rate"
    )
    return Reading(value, bound, value > bound and lost, text)


def loss_jump(metrics: Metrics, history: History, limits: Limits = LIMITS) -> Reading | None:
    """Whether the loss of an offline stage left those of the latest healthy batches."""
    values = history.of("loss", limits)
    if not values or "loss" not in metrics:
        return None
    middle, deviation = spread(values)
    value = metrics["loss"]
    bound = middle + max(limits.deviations * deviation, (limits.loss_times - 1) * abs(middle))
    text = (
        f"the loss jumped to {value:.4g} from {middle:.4g} (bound {bound:.4g}): the model broke, or the data did; lower "
        "learner.learning_rate, or look at the rows"
    )
    return Reading(value, bound, value > bound, text)


def repeated_prompts(metrics: Metrics, history: History, limits: Limits = LIMITS) -> Reading | None:
    """Whether prompts come again within one pass over the data, far more than lately.

    Rows of few values come again more and more as a pass goes on, so the latest batches are what to compare with.
    """
    values = history.of(REPEATED, limits)[-limits.recent :]
    if not values or REPEATED not in metrics:
        return None
    value, usual = metrics[REPEATED], statistics.median(values)
    bound = usual + limits.repeated * (1 - usual)
    text = (
        f"{value:.0%} of the batch's prompts were seen before in this pass over the data ({usual:.0%} in the latest batches): "
        "rows are doubled, or the source gives some again"
    )
    return Reading(value, bound, value >= bound > usual, text)


def online_rules(history: History, limits: Limits = LIMITS) -> tuple[Rule, ...]:
    """Read when a batch of samples has been trained on."""
    return (
        Rule("update size", 1, ("update_size",), lambda metrics, context: update_jump(metrics, history, limits)),
        Rule("reward fall", 1, ("reward/mean",), lambda metrics, context: reward_fall(metrics, context, history, limits)),
        Rule("reference KL", 1, ("kl/reference",), lambda metrics, context: reference_jump(metrics, history, limits)),
        Rule("entropy jump", 2, ("entropy/sampled",), lambda metrics, context: entropy_jump(metrics, context, history, limits)),
        Rule("repeated prompts", 3, (REPEATED,), lambda metrics, context: repeated_prompts(metrics, history, limits)),
    )


def offline_rules(history: History, limits: Limits = LIMITS) -> tuple[Rule, ...]:
    """Read when a batch of given data has been trained on."""
    return (
        Rule("update size", 1, ("update_size",), lambda metrics, context: update_jump(metrics, history, limits)),
        Rule("loss jump", 3, ("loss",), lambda metrics, context: loss_jump(metrics, history, limits)),
    )


def standard_error(now: Mapping[str, float], then: Mapping[str, float]) -> float:
    """Of the difference between the mean rewards of two evaluations, by their prompts' keys; 0 where it cannot be known.

    Prompts that both have are compared one by one, so what makes some harder than others is no part of the error.
    """
    both = now.keys() & then.keys()
    if len(both) > 1:
        return statistics.stdev(now[key] - then[key] for key in both) / math.sqrt(len(both))
    return math.hypot(*(statistics.stdev(seen.values()) / math.sqrt(len(seen)) for seen in (now, then) if len(seen) > 1))


@dataclass
class GoldWatch:
    """Evaluations against the reward that is trained on: whether one rises while the other falls (Gao et al. 2023,
    arXiv:2210.10760)."""

    best: tuple[int, float, float | None] | None = None
    """Step, gold and trained reward of the best evaluation; None for a trained reward before anything was trained."""
    short: list[bool] = field(default_factory=list)
    """Of the evaluations since then, in a row, that fall short of it: whether the trained reward is higher."""
    times: int = 0
    """How often it has tripped."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Of each prompt, by its key, in the best evaluation."""

    @property
    def exploited(self) -> bool:
        """Whether the trained reward mostly was higher; if not, the policy is worse by both."""
        return 2 * sum(self.short) > len(self.short)

    def read(
        self, step: int, gold: float, trained: float | None, rewards: Mapping[str, float], limits: Limits = LIMITS
    ) -> Reading | None:
        """What an evaluation says, with the rewards of its prompts; None where there is nothing to compare with."""
        if not math.isfinite(gold):
            return None
        if self.best is None or gold > self.best[1]:
            self.best, self.short, self.rewards = (step, gold, trained), [], rewards
            return None
        at, best, then = self.best
        if trained is None:
            return None
        falls = gold < best - limits.gold_errors * standard_error(rewards, self.rewards)
        self.short = [*self.short, then is None or trained > then] if falls else []
        was = f" (was {then:.3g})" if then is not None else ""
        why = (
            "the policy exploits its reward; mend the reward, or add algorithm.kl"
            if self.exploited
            else "the policy got worse; lower learner.learning_rate"
        )
        text = (
            f"the held-out reward fell from {best:.3g} at step {at} to {gold:.3g} and stayed low for {len(self.short)} "
            f"evaluations, while the trained one is {trained:.3g}{was}: {why}"
        )
        return Reading(gold, best, len(self.short) >= limits.gold_falls, text)


@dataclass
class Doubt:
    """Whether it was the weights that a metric crossed its bound for: asked of the batches after they went back.

    If the restored weights are as bad at once, it is the data or what gives rewards.
    """

    sentinel: str
    bound: float
    reached: int | None
    """Step whose weights were restored; None: there was nothing to go back to."""
    bad: int = 0
    good: int = 0
    """In a row."""

    def read(self, metrics: Metrics) -> bool:
        """Whether a batch is as bad as the one that tripped the sentinel; counts it."""
        value = metrics[DOUBTED[self.sentinel]]
        worse = value < self.bound if self.sentinel == "reward fall" else value > self.bound
        self.bad, self.good = self.bad + worse, 0 if worse else self.good + 1
        return worse


Restore = Callable[[int, float | None], int | None]
"""``(step, least)``: load the weights of a good checkpoint from before ``step``, or of the best one if its held-out reward must
be ``least`` or more; its step, None if there is none."""

"""What sentinels read: facts of a batch, and rules that turn metrics into readings. Pure functions of plain values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from penstock.config.learner import Dtype, LearnerSpec
from penstock.config.run import Run
from penstock.core.sentinels import Severity
from penstock.core.types import Group, Metrics, Sample, Version


@dataclass(frozen=True)
class Thresholds:
    """Where sentinels trip; the same for every run. Log-probs are in nats, shares are of 1.

    A gap compares log-probs of the same tokens under the same weights, at generation and at training. Where both sides
    compute in float32 healthy runs stay below 1e-4 (``docs/sentinels.md``), and a wrong temperature, template or weight
    file is above 0.05. In coarser types the two sides round apart: :func:`thresholds` has the bounds.
    """

    gap_warning: float = 1e-3
    """Mean |gap| over the tokens that the learner's own version drew: above it the two sides do not quite agree."""
    gap_fatal: float = 0.05
    """Mean |gap| above which they are not the same policy."""
    largest_gap: float = 0.5
    """One token's |gap| above which some of the samples (of one generator out of many, say) are another policy's; infinite
    where rounding alone may move a token that far."""
    stale_cache: float = 0.1
    """Mean |gap| of tokens that the learner's version drew on a cache filled by older weights (``kv="keep"``)."""
    effective_samples: float = 0.5
    """Share (Σw)² / (N Σw²) of the tokens that count after importance weights, below which a few tokens decide."""
    flat_groups: float = 0.95
    """Share of the groups whose samples all have the same reward."""
    failed_samples: float = 0.1
    """Share of the samples that failed (a reward that raised, an environment that broke)."""
    entropy_left: float = 0.1
    """Share of the first batches' entropy that is left ..."""
    entropy_lost: float = 0.1
    """... and nats a token that were lost ..."""
    reward_gained: float = 0.25
    """... while the mean reward rose by less than so many of the first batches' standard deviations: a collapse. Entropy
    that was paid for with reward is learning ..."""
    solved: float = 0.9
    """... and so is that of a mean reward so far up from the smallest to the largest of a sample: little is left to gain."""
    cut_samples: float = 0.5
    """Share of the samples that are cut at their longest length ..."""
    cut_more: float = 0.4
    """... if it is by so much more than in the first batches: a length explosion. Where answers have no end of their own,
    all are cut from the start, and nothing is wrong."""
    start: int = 5
    """Batches that are "the first"."""
    patience: int = 5
    """Batches in a row that a slow sign (flat groups, constant reward, entropy, length) must last to trip or to clear."""
    idle: int = 3
    """Batches in a row without any gradient."""
    unchanged: int = 10
    """Batches in a row with a gradient and a learning rate, after which the weights must have changed."""


EXACT = Thresholds()
"""Generator and learner both compute in float32."""

ROUNDOFF: Mapping[Dtype, float] = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "mixed": 2.0**-8}
"""Relative error of one rounding, at most."""
APART = 10.0
"""Mean |gap| of two sides that only sum in another order, at most, in roundings times the root of the number of layers: each
layer adds an error of its own to the residual stream, and independent errors add up by their squares. Measured: 1.4 to 5.1 in
bfloat16 (``docs/sentinels.md``)."""
ONE_TOKEN = 10.0
"""A token's |gap| in such means, at most; measured up to 15 of the mean itself, which is half of the bound or less."""


def thresholds(dtype: Dtype, layers: int) -> Thresholds:
    """Where sentinels trip if the coarser of the two sides computes ``layers`` layers in a type.

    A mean gap above what rounding explains is a warning, three times that is fatal, and never are the bounds below those of
    float32. What rounding may do to a single token is fatal to nobody.
    """
    apart = APART * ROUNDOFF[dtype] * math.sqrt(layers)
    if apart <= EXACT.gap_warning:
        return EXACT
    fatal = max(EXACT.gap_fatal, 3 * apart)
    return replace(EXACT, gap_warning=apart, gap_fatal=fatal, largest_gap=math.inf, stale_cache=EXACT.stale_cache + apart)


def bounds_of(run: Run, spec: LearnerSpec, layers: int) -> Thresholds:
    """The thresholds of a stage whose learner trains so many layers: those of the coarser arithmetic of the two sides."""
    rounds = run.roles.engine.rounds or (spec.lora is not None and spec.lora.quantize != "none")
    return thresholds("bfloat16" if rounds else spec.dtype, layers)


@dataclass(frozen=True)
class Reading:
    """What a sentinel saw at one batch: ``bad`` says whether ``value`` is beyond ``bound``, the message why, and the fix."""

    value: float
    bound: float
    bad: bool
    message: str
    severity: Severity = "warning"


@dataclass(frozen=True)
class Context:
    """What a rule compares with: the bounds, means over the first batches (empty until those have passed), and the smallest and
    the largest reward of a sample so far (none: infinite)."""

    thresholds: Thresholds = EXACT
    start: Mapping[str, float] = field(default_factory=dict)
    lowest: float = math.inf
    highest: float = -math.inf


@dataclass(frozen=True)
class Rule:
    """A sentinel: its name, how many batches in a row make it trip (and clear), and how it reads the metrics it needs."""

    name: str
    patience: int
    needs: tuple[str, ...]
    judge: Callable[[Metrics, Context], Reading | None]

    def read(self, metrics: Metrics, context: Context) -> Reading | None:
        """What the sentinel sees; None where that was not measured."""
        return self.judge(metrics, context) if metrics.keys() >= set(self.needs) else None


STARTING = ("entropy/sampled", "finish/cut", "reward/mean", "reward/std")
"""Facts whose mean over the first batches rules compare with."""


def generated(groups: Sequence[Group]) -> list[Sample]:
    """All samples but greedy baselines."""
    return [sample for group in groups for sample in group.samples if not sample.extras.get("greedy")]


def batch_facts(groups: Sequence[Group], version: Version) -> Metrics:
    """Facts of a batch as it was generated, before rewards are scaled and groups are left out.

    Over samples: ``samples/failed_share``. Over valid samples: ``reward/mean``, ``reward/std``, ``reward/low`` and
    ``reward/high`` (smallest, largest), ``reward/range`` (their difference; two samples or more), ``finish/cut`` (share cut at
    the longest length). Over their action tokens: ``lag/mean`` and ``lag/max`` (versions behind the learner's),
    ``entropy/sampled`` (mean of -logp, nats). Over groups of two valid samples or more: ``groups/flat`` (share whose rewards
    are all equal). What has nothing to be computed from is missing.
    """
    everything = generated(groups)
    valid = [sample for sample in everything if sample.valid]
    facts: Metrics = {}
    if everything:
        facts["samples/failed_share"] = sum(sample.error is not None for sample in everything) / len(everything)
    if valid:
        reward = np.array([sample.reward for sample in valid], np.float64)
        lag = version - np.concatenate([sample.version_T[sample.action_T] for sample in valid]).astype(np.int64)
        logp = np.concatenate([sample.logp_T[sample.action_T] for sample in valid]).astype(np.float64)
        facts |= {"reward/mean": float(reward.mean()), "reward/std": float(reward.std())}
        facts |= {"reward/low": float(reward.min()), "reward/high": float(reward.max())}
        facts |= {"reward/range": float(np.ptp(reward))} if len(reward) > 1 else {}
        facts["finish/cut"] = sum(sample.finish == "length" for sample in valid) / len(valid)
        facts |= {"lag/mean": float(lag.mean()), "lag/max": float(lag.max()), "entropy/sampled": -float(logp.mean())}
    flat = [found for group in groups if (found := _is_flat(group)) is not None]
    return facts | ({"groups/flat": sum(flat) / len(flat)} if flat else {})


def _is_flat(group: Group) -> bool | None:
    """Whether all rewards of a group are equal; None if there are fewer than two."""
    rewards = [sample.reward for sample in generated([group]) if sample.valid]
    return None if len(rewards) < 2 else len(set(rewards)) == 1


def versions(groups: Sequence[Group], version: Version, max_lag: int) -> Reading:
    """Fatal: an action token of a valid sample is older than ``max_lag`` allows, newer than the learner, or has no version."""
    for sample, oldest, newest in _odd_versions(groups, version, max_lag):
        if oldest < 0:
            text = (
                f"{sample.key} has action tokens without a version; the generator must stamp each with the version that drew it"
            )
            return Reading(oldest, 0.0, True, text, "fatal")
        if newest > version:
            text = (
                f"{sample.key} has tokens of version {newest}, and the learner is at version {version}: generator and learner "
                "do not belong together (a resumed learner with a generator of the run before?); start both again"
            )
            return Reading(newest, version, True, text, "fatal")
        if version - oldest > max_lag:
            text = (
                f"{sample.key} has tokens of version {oldest}, {version - oldest} older than the learner's {version}, and "
                f"max_lag={max_lag} forbids to train on them: versions were published out of order, or a stale sample was kept"
            )
            return Reading(version - oldest, max_lag, True, text, "fatal")
    return Reading(0.0, max_lag, False, "every token's version is within the bound")


def _odd_versions(groups: Sequence[Group], version: Version, max_lag: int) -> Iterator[tuple[Sample, Version, Version]]:
    """Valid samples with a version outside the bound, with their oldest and newest version."""
    valid = [sample for sample in generated(groups) if sample.valid]
    columns = [sample.version_T[sample.action_T] for sample in valid]
    lowest = max(0, version - max_lag)
    together = np.concatenate(columns) if columns else np.array([version])
    if lowest <= together.min() and together.max() <= version:  # all of them, as a rule
        return
    for sample, found in zip(valid, columns, strict=True):
        if found.min() < lowest or found.max() > version:
            yield sample, int(found.min()), int(found.max())


def weights_differ(version: Version, learner: Mapping[str, str], generator: Mapping[str, str]) -> Reading:
    """Fatal: checksums of a version's weights (by tensor or bucket name) that are not the same on both sides."""
    odd = sorted(name for name in learner.keys() | generator.keys() if learner.get(name) != generator.get(name))
    text = f"the weights of version {version} are the same on both sides"
    if odd:
        text = (
            f"the generator's weights of version {version} are not the learner's: \"{odd[0]}\""
            f"{f' and {len(odd) - 1} more' if len(odd) > 1 else ''} differ; load that version again, and if it happens again "
            "look at the channel and at casts on the way"
        )
    return Reading(len(odd), 0.0, bool(odd), text, "fatal")


# ---- before a batch's first update


def gap(metrics: Metrics, context: Context) -> Reading:
    """The learner's log-probs against the generator's, of tokens that the learner's own version drew."""
    mean, largest, bounds = metrics["mismatch/mean"], metrics["mismatch/max"], context.thresholds
    fatal = not mean <= bounds.gap_fatal or not largest <= bounds.largest_gap  # written so that NaN is fatal
    wide = not fatal and mean <= bounds.gap_fatal
    text = (
        f"log-probs of {metrics['mismatch/tokens']:.0f} tokens of the learner's own version differ between generator and "
        f"learner by {mean:.3g} nats in the mean and {largest:.3g} at most (bounds: mean {bounds.gap_fatal:g}, "
        f"largest {bounds.largest_gap:g}; warning at {bounds.gap_warning:g}). The same weights give the same log-probs: check "
        "that the generator loaded this version's weights, that both use the same temperature and beta, and that prompts are "
        "tokenised once"
    )
    bound = bounds.gap_warning if wide else bounds.gap_fatal
    return Reading(mean, bound, not mean <= bounds.gap_warning or fatal, text, "fatal" if fatal else "warning")


def stale_cache(metrics: Metrics, context: Context) -> Reading:
    """What keeping the cache over weight updates costs."""
    value, bound = metrics["mismatch/stale_cache"], context.thresholds.stale_cache
    text = (
        f"tokens generated by the learner's version on a cache of older weights are off by {value:.3g} nats in the mean (bound "
        f'{bound:g}): the weights move too far for kv="keep"; set kv="recompute", or lower learner.learning_rate'
    )
    return Reading(value, bound, not value <= bound, text)


def effective_samples(metrics: Metrics, context: Context) -> Reading:
    """How many of the tokens still count after importance weights."""
    value, bound = metrics["policy/effective_sample_size"], context.thresholds.effective_samples
    text = (
        f"importance weights leave {value:.0%} of the tokens as the effective sample size (bound {bound:.0%}): the samples are "
        "too far from the learner; lower max_lag or learner.learning_rate, or truncate weights (algorithm.importance_weights)"
    )
    return Reading(value, bound, not value >= bound, text)


# ---- after a batch


def constant_reward(metrics: Metrics, context: Context) -> Reading:
    """Whether the reward of the whole batch never differs."""
    text = (
        f"every sample of the batch had the reward {metrics['reward/mean']:g}: the reward does not tell answers apart (does it "
        "find the answer in the text?), or the task is solved or out of reach"
    )
    return Reading(metrics["reward/range"], 0.0, metrics["reward/range"] == 0, text)


def flat_groups(metrics: Metrics, context: Context) -> Reading:
    """The share of prompts whose samples all have the same reward, where rewards differ between prompts."""
    value, bound = metrics["groups/flat"], context.thresholds.flat_groups
    text = (
        f"in {value:.0%} of the groups all samples had the same reward (bound {bound:.0%}), and such a group teaches nothing: "
        "the prompts are solved or out of reach; take others, raise samples or the temperature, or set dynamic_sampling"
    )
    return Reading(value, bound, value >= bound and metrics.get("reward/range", 0.0) > 0, text)


def failed_samples(metrics: Metrics, context: Context) -> Reading:
    """The share of samples that failed and were left out."""
    value, bound = metrics["samples/failed_share"], context.thresholds.failed_samples
    text = (
        f"{value:.0%} of the samples failed and were left out (bound {bound:.0%}): what is learned leans to what works; "
        'the "error" of the samples in events.jsonl says what broke'
    )
    return Reading(value, bound, value >= bound, text)


def trained_nothing(metrics: Metrics, context: Context) -> Reading:
    """Whether a batch gave no gradient at all."""
    norm = metrics.get("gradient_norm", 0.0)
    why = "no group had a signal" if metrics.get("batch/units") == 0 else "the gradient was exactly 0"
    text = f"the batch trained nothing: {why}; the optimizer's momentum alone may still have moved the weights"
    return Reading(norm, 0.0, norm == 0, text)


def entropy_collapse(metrics: Metrics, context: Context) -> Reading | None:
    """Whether entropy was lost and no reward gained for it."""
    start = context.start
    if not start:
        return None
    value, bounds = metrics["entropy/sampled"], context.thresholds
    bound = min(bounds.entropy_left * start["entropy/sampled"], start["entropy/sampled"] - bounds.entropy_lost)
    gain, width = metrics["reward/mean"] - start["reward/mean"], context.highest - context.lowest
    solved = width > 0 and metrics["reward/mean"] >= context.lowest + bounds.solved * width
    gained = solved or (gain > 0 and gain >= bounds.reward_gained * start.get("reward/std", 0.0))
    text = (
        f"the entropy of the samples fell from {start['entropy/sampled']:.3g} to {value:.3g} nats a token (bound {bound:.3g}) "
        f"while the reward went from {start['reward/mean']:.3g} to {metrics['reward/mean']:.3g}: the policy repeats itself "
        "and gained nothing by it; lower learner.learning_rate, or add algorithm.entropy or algorithm.kl"
    )
    return Reading(value, bound, value <= bound and not gained, text)


def length_explosion(metrics: Metrics, context: Context) -> Reading | None:
    """Whether far more samples than at first are cut at the longest length."""
    if not context.start:
        return None
    value, first, bounds = metrics["finish/cut"], context.start["finish/cut"], context.thresholds
    bound = max(bounds.cut_samples, first + bounds.cut_more)
    text = (
        f"{value:.0%} of the samples were cut at sampling.max_new_tokens, {first:.0%} in the first ones (bound {bound:.0%}): "
        "answers grow without an end; raise max_new_tokens, or charge for length in the reward"
    )
    return Reading(value, bound, value >= bound, text)


def rules_before_update(bounds: Thresholds) -> tuple[Rule, ...]:
    """Read before a batch's first optimizer step."""
    return (
        Rule("log-prob gap", 1, ("mismatch/mean",), gap),
        Rule("stale cache", bounds.idle, ("mismatch/stale_cache",), stale_cache),
        Rule("effective sample size", bounds.idle, ("policy/effective_sample_size",), effective_samples),
    )


def rules_after_batch(bounds: Thresholds) -> tuple[Rule, ...]:
    """Read when a batch has been trained on."""
    return (
        Rule("constant reward", bounds.patience, ("reward/range",), constant_reward),
        Rule("zero-variance groups", bounds.patience, ("groups/flat",), flat_groups),
        Rule("failed samples", bounds.idle, ("samples/failed_share",), failed_samples),
        Rule("trained nothing", bounds.idle, (), trained_nothing),
        Rule("entropy collapse", bounds.patience, ("entropy/sampled", "reward/mean"), entropy_collapse),
        Rule("length explosion", bounds.patience, ("finish/cut",), length_explosion),
    )


def rules_after_data(bounds: Thresholds) -> tuple[Rule, ...]:
    """Read when a batch of an offline stage has been trained on."""
    return (Rule("trained nothing", bounds.idle, (), trained_nothing),)

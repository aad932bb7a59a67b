"""What sentinels compute from a batch, and their bounds, by hand."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from loop_examples import (
    BareRows,
    prompt_of,
    sample_of,
)

from penstock.config.engines import VLLM, Embedded, Served
from penstock.config.keeping import RolesSpec
from penstock.config.learner import LearnerSpec, LoRA
from penstock.core.sentinels import SentinelError
from penstock.core.types import Group
from penstock.observe.batch_watch import marked
from penstock.observe.rules import (
    EXACT,
    Context,
    batch_facts,
    bounds_of,
    constant_reward,
    effective_samples,
    entropy_collapse,
    failed_samples,
    flat_groups,
    gap,
    length_explosion,
    rules_after_batch,
    rules_before_update,
    stale_cache,
    thresholds,
    trained_nothing,
    versions,
    weights_differ,
)
from penstock.observe.sentinels import Sentinels

START = {"entropy/sampled": 1.0, "reward/mean": 0.3, "reward/std": 0.4, "finish/cut": 0.1}


def group_of(*rewards, **changes):
    return Group(prompt_of(0), tuple(sample_of([30, 31], r, place=place, **changes) for place, r in enumerate(rewards)))


@pytest.mark.parametrize(
    ("engine", "spec", "dtype"),
    [
        (Embedded(), LearnerSpec(), "float32"),
        (Embedded(), LearnerSpec(dtype="mixed"), "mixed"),
        (Embedded(), LearnerSpec(lora=LoRA(quantize="nf4")), "bfloat16"),
        (VLLM(), LearnerSpec(), "bfloat16"),
        (VLLM(dtype="float32"), LearnerSpec(), "float32"),
        (Served(), LearnerSpec(), "bfloat16"),
    ],
)
def test_bounds_are_those_of_the_coarser_of_learner_and_engine(engine, spec, dtype):
    run = SimpleNamespace(roles=RolesSpec(engine=engine))
    assert bounds_of(run, spec, 8) == thresholds(dtype, 8)


def test_bounds_grow_with_roundings_and_the_root_of_layers_and_are_never_below_those_of_float32():
    found = thresholds("bfloat16", 4)
    assert (found.gap_warning, found.gap_fatal) == (10 / 256 * 2, 30 / 256 * 2)
    assert (found.largest_gap, found.stale_cache) == (float("inf"), 0.1 + 10 / 256 * 2)
    assert thresholds("mixed", 4) == found
    assert thresholds("float32", 100) == EXACT


@pytest.mark.parametrize(
    ("mean", "largest", "bad", "severity"),
    [
        (1e-5, 1e-4, False, "warning"),
        (2e-3, 0.1, True, "warning"),
        (0.06, 0.1, True, "fatal"),
        (1e-5, 0.6, True, "fatal"),
        (float("nan"), 0.0, True, "fatal"),
    ],
)
def test_the_bounds_of_the_gap(mean, largest, bad, severity):
    reading = gap({"mismatch/mean": mean, "mismatch/max": largest, "mismatch/tokens": 9.0}, Context())
    assert (reading.bad, reading.severity) == (bad, severity)


def test_marks_tell_whose_weights_drew_a_token():
    whole = sample_of([1, 2], 1.0, version_T=np.array([-1, 3, 3], np.int32))
    began_earlier = sample_of([3, 4], 1.0, version_T=np.array([-1, 2, 3], np.int32))
    group = Group(prompt_of(0), (whole, began_earlier, sample_of([5], 1.0)))
    units = BareRows().label([group], None, None)
    stranger = replace(units[0][0], columns={"tokens_T": np.array([20, 9, 9], np.int32)})
    (unit,) = marked([(*units[0], stranger)], [group], 3)
    assert [row.fields["sentinel/origin"].tolist() for row in unit] == [[1, 1], [3, 2], [3], [0, 0]]
    assert [row.fields["sentinel/behaviour_logp"].tolist() for row in unit] == [[-1, -1], [-1, -1], [-1], [0, 0]]


def test_what_was_not_measured_is_not_judged():
    assert [rule.read({}, Context(EXACT, START)) for rule in rules_before_update(EXACT)] == [None] * 3
    assert [rule.name for rule in rules_after_batch(EXACT) if rule.read({}, Context(EXACT, START))] == ["trained nothing"]


@pytest.mark.parametrize(
    ("version_T", "max_lag", "text"),
    [
        ([-1, 5, 5], 0, None),
        ([-1, 3, 5], 2, None),
        ([-1, 2, 5], 2, r"test/0/0#0 has tokens of version 2, 3 older than the learner's 5, and max_lag=2 forbids"),
        ([-1, 5, 6], 2, r"tokens of version 6, and the learner is at version 5"),
        ([-1, -1, 5], 9, r"without a version"),
    ],
)
def test_the_versions_of_tokens_against_the_bound(version_T, max_lag, text):
    reading = versions([group_of(1.0, version_T=np.array(version_T, np.int32))], 5, max_lag)
    assert reading.bad == (text is not None)
    if text:
        assert reading.severity == "fatal"
        assert text in reading.message


def test_checksums_are_compared_name_by_name():
    sums = {"bucket-0": "aa", "bucket-1": "bb"}
    assert Sentinels().compare_weights(3, sums, dict(sums), 4) == []
    with pytest.raises(SentinelError, match=r'sentinel weight checksum, step 4: .*version 3.*"bucket-1" differ'):
        Sentinels().compare_weights(3, sums, {**sums, "bucket-1": "bc"}, 4)
    assert weights_differ(3, sums, {"bucket-0": "aa"}).bad


def test_facts_of_a_batch_by_hand():
    cut = sample_of([1], 1.0, version_T=np.array([-1, 3], np.int32), finish="length")
    old = sample_of([2, 3], 0.0, version_T=np.array([-1, 1, 2], np.int32))
    greedy = sample_of([9], 5.0, extras={"greedy": True})
    groups = [Group(prompt_of(0), (cut, old, greedy)), Group(prompt_of(1), (old, old, old.failed("broke")))]
    assert batch_facts(groups, 3) == {
        "samples/failed_share": pytest.approx(1 / 5),
        "reward/mean": 0.25,
        "reward/std": pytest.approx(np.std([1, 0, 0, 0])),
        "reward/low": 0.0,
        "reward/high": 1.0,
        "reward/range": 1.0,
        "finish/cut": 0.25,
        "lag/mean": pytest.approx((0 + 3 * (2 + 1)) / 7),
        "lag/max": 2.0,
        "entropy/sampled": 1.0,
        "groups/flat": 0.5,
    }


@pytest.mark.parametrize(
    ("rule", "good", "bad"),
    [
        (constant_reward, {"reward/range": 0.5, "reward/mean": 0.1}, {"reward/range": 0.0, "reward/mean": 0.1}),
        (flat_groups, {"groups/flat": 0.9, "reward/range": 1.0}, {"groups/flat": 0.96, "reward/range": 1.0}),
        (failed_samples, {"samples/failed_share": 0.05}, {"samples/failed_share": 0.1}),
        (trained_nothing, {"gradient_norm": 1e-9}, {"gradient_norm": 0.0}),
        (trained_nothing, {"gradient_norm": 1.0, "batch/units": 3.0}, {"batch/units": 0.0}),
        (effective_samples, {"policy/effective_sample_size": 0.9}, {"policy/effective_sample_size": 0.4}),
        (stale_cache, {"mismatch/stale_cache": 0.01}, {"mismatch/stale_cache": 0.2}),
    ],
)
def test_signs_of_one_batch(rule, good, bad):
    assert not rule(good, Context()).bad
    assert rule(bad, Context()).bad


@pytest.mark.parametrize(
    ("entropy", "reward", "bad"),
    [(0.5, 0.3, False), (0.02, 0.99, False), (0.02, 0.35, True), (0.02, 0.0, True)],
)
def test_entropy_that_was_paid_for_with_reward_is_no_collapse(entropy, reward, bad):
    assert entropy_collapse({"entropy/sampled": entropy, "reward/mean": reward}, Context(EXACT, START)).bad == bad


@pytest.mark.parametrize(
    ("first", "now", "bad"), [(0.1, 0.45, False), (0.1, 0.55, True), (1.0, 1.0, False), (0.3, 0.65, False)]
)
def test_lengths_explode_only_if_they_did_not_from_the_start(first, now, bad):
    assert length_explosion({"finish/cut": now}, Context(EXACT, {**START, "finish/cut": first})).bad == bad


def test_what_is_compared_with_the_start_waits_for_it():
    assert entropy_collapse({"entropy/sampled": 0.0, "reward/mean": 0.0}, Context()) is None
    assert length_explosion({"finish/cut": 1.0}, Context()) is None

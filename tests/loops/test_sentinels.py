"""Every sentinel trips on the bug it is for, where it can before the batch is trained on, and is quiet on healthy training."""

import asyncio
import copy
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from loop_examples import BareRows, CountingLearner, online, prompt_of, sample_of, small_tokens
from test_learn import groups_of, steps_over, trainer_of
from test_training import train, weights_of

from penstock.algos.grpo import GRPO
from penstock.algos.online_dpo import OnlineDPO
from penstock.algos.ppo import PPO
from penstock.config.engines import VLLM, Embedded, Served
from penstock.config.keeping import RolesSpec
from penstock.config.learner import LearnerSpec, LoRA
from penstock.core.errors import NonFiniteError, NonFiniteStepError
from penstock.core.sentinels import Alarm, SentinelError
from penstock.core.types import Group, Sampling
from penstock.loops.learn import Plan
from penstock.loops.offline import offline
from penstock.models.arithmetic import cast_again
from penstock.observe.batch_watch import marked
from penstock.observe.first_rows import remarks_on_samples
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

SLOW = LearnerSpec(learning_rate=1e-3)
FAST = LearnerSpec(learning_rate=0.02)


def names(steps):
    """What tripped over a run."""
    return [alarm.sentinel for step in steps for alarm in step.alarms if not alarm.cleared]


def group_of(*rewards, **changes):
    return Group(prompt_of(0), tuple(sample_of([30, 31], r, place=place, **changes) for place, r in enumerate(rewards)))


# ---- log-prob gap


@pytest.mark.parametrize("algorithm", [GRPO(), GRPO(clip=None), PPO(), OnlineDPO()])
def test_a_wrong_temperature_stops_the_run_before_anything_is_trained(algorithm, tiny):
    critic = "separate" if "value" in algorithm.heads else "none"
    parts = online(tiny(), algorithm, replace(FAST, critic=critic), sampling=Sampling(max_new_tokens=6, temperature=0.7))
    parts.labeller.reference = parts.learner
    parts.learner.policy.temperature = 1.0
    before = weights_of(parts.model)
    with pytest.raises(SentinelError, match=r"sentinel log-prob gap, step 1: .* same temperature"):
        train(parts, Plan(steps=2, minibatches=2))
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights_of(parts.model).items())


def test_stale_weights_under_a_new_version_are_never_trained_on_and_stop_a_run_that_does_not_get_over_it(tiny):
    """The generator is told of each version, but holds a copy of the first weights."""
    parts = online(tiny(), GRPO(), FAST)
    parts.generator.model = copy.deepcopy(parts.model)
    after, alarms = {}, []

    def note(step):
        if step.index == 0:
            after.update({name: tensor.clone() for name, tensor in weights_of(parts.model).items()})
        alarms.extend(step.alarms)

    with pytest.raises(SentinelError, match=r"log-prob gap, step 4: .*loaded this version's weights") as caught:
        train(parts, Plan(steps=6), on_step=note)
    assert all(torch.equal(tensor, after[name]) for name, tensor in weights_of(parts.model).items())
    seen = [alarm for alarm in (*alarms, *caught.value.alarms) if alarm.sentinel == "log-prob gap"]
    assert [(alarm.sentinel, alarm.step, alarm.action) for alarm in seen] == [
        ("log-prob gap", 2, "skip"),
        ("log-prob gap", 3, "skip"),
        ("log-prob gap", 4, "stop"),
    ]


def test_one_weight_update_that_went_wrong_costs_its_batch_and_nothing_else(tiny):
    """The generator misses one version and has the next."""
    parts = online(tiny(), GRPO(), FAST)
    stale = copy.deepcopy(parts.model)

    def note(step):
        parts.generator.model = stale if step.index == 2 else parts.model

    steps = train(parts, Plan(steps=6), on_step=note)
    assert [(alarm.sentinel, alarm.step, alarm.action) for step in steps for alarm in step.alarms] == [
        ("log-prob gap", 4, "skip")
    ]
    assert [step.metrics.get("steps/skipped", 0.0) for step in steps] == [0, 0, 0, 1, 0, 0]


def test_weights_that_are_a_little_stale_are_a_warning_said_once(tiny):
    parts = online(tiny(), GRPO(), LearnerSpec(learning_rate=2e-5))
    parts.generator.model = copy.deepcopy(parts.model)
    steps = train(parts, Plan(steps=4))
    alarms = [alarm for step in steps for alarm in step.alarms]
    assert [(alarm.sentinel, alarm.severity, alarm.step) for alarm in alarms] == [("log-prob gap", "warning", 2)]


@pytest.mark.parametrize("more", [{}, {"max_lag": 2}, {"max_lag": 2, "kv": "recompute"}, {"max_lag": 1, "batch": 2}])
def test_healthy_training_is_quiet(more, tiny):
    steps = train(online(tiny(), GRPO(), SLOW, **more), Plan(steps=8, minibatches=2, epochs=2))
    assert names(steps) == []
    first = steps[0].metrics
    assert first["mismatch/mean"] < 1e-5
    assert first["mismatch/max"] < 1e-4
    assert first["mismatch/tokens"] > 0
    assert not any(name.startswith(("sums/", "max/sums")) for step in steps for name in step.metrics)


@pytest.mark.parametrize("dtype", ["bfloat16", "mixed"])
def test_healthy_training_in_a_type_that_rounds_is_quiet(dtype, tiny):
    parts = online(tiny(), GRPO(), replace(SLOW, dtype=dtype))
    parts.trainer.watcher.thresholds = bounds = thresholds(dtype, 2)
    steps = train(parts, Plan(steps=6))
    assert names(steps) == []
    assert 0 < max(step.metrics["mismatch/mean"] for step in steps) < bounds.gap_warning


def a_matrix_off(model):
    """A quarter more in one matrix of one layer."""
    model.network.model.layers[0].mlp.down_proj.weight.data.mul_(1.25)


def other_positions(model):
    model.network.model.rotary_emb.inv_freq.mul_(0.5)


def an_older_layer(model):
    for weight in model.network.model.layers[1].parameters():
        weight.data.add_(
            0.2 * weight.data.float().std() * torch.randn(weight.shape, generator=torch.Generator().manual_seed(3))
        )


@pytest.mark.parametrize("dtype", ["bfloat16", "mixed"])
@pytest.mark.parametrize(
    ("difference", "severity"), [(a_matrix_off, "warning"), (an_older_layer, "fatal"), (other_positions, "fatal")]
)
def test_a_real_difference_shows_beside_rounding(difference, severity, dtype, tiny):
    parts = online(tiny(), GRPO(), replace(SLOW, dtype=dtype), sampling=Sampling(max_new_tokens=16))
    parts.trainer.watcher.thresholds = bounds = thresholds(dtype, 2)
    parts.generator.model = copy.deepcopy(parts.model)
    with torch.no_grad():
        difference(parts.generator.model)
        cast_again(parts.generator.model.network)
    groups = []
    parts.trainer.watcher.mode = "warn"
    (step,) = train(parts, Plan(steps=1, look=True), on_step=lambda step: groups.extend(step.groups))
    assert names([step]) == ["log-prob gap"]
    assert gap(step.metrics, Context(bounds)).severity == severity
    assert [line for line in remarks_on_samples(step, bounds) if "do not compute the same model" in line]


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


def test_the_gap_is_measured_once_a_batch_on_the_weights_before_it(tiny):
    """With many optimizer steps on a batch the policy moves far, and the gap is still that of the start."""
    steps = train(online(tiny(), GRPO(), FAST), Plan(steps=2, minibatches=4, epochs=3))
    assert max(step.metrics["max/ratio_deviation"] for step in steps) > 0.1
    assert max(step.metrics["mismatch/max"] for step in steps) < 1e-4


def test_measuring_the_gap_does_not_change_what_is_learned(tiny):
    one, other = online(tiny(), PPO(), replace(FAST, critic="shared")), online(tiny(), PPO(), replace(FAST, critic="shared"))
    other.trainer.watcher.mode = "off"
    train(one, Plan(steps=3, minibatches=2))
    train(other, Plan(steps=3, minibatches=2))
    expected = weights_of(other.model)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights_of(one.model).items())


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


def test_effective_samples_and_stale_cache_have_bounds():
    assert not effective_samples({"policy/effective_sample_size": 0.9}, Context()).bad
    assert effective_samples({"policy/effective_sample_size": 0.4}, Context()).bad
    assert not stale_cache({"mismatch/stale_cache": 0.01}, Context()).bad
    assert stale_cache({"mismatch/stale_cache": 0.2}, Context()).bad


def test_what_was_not_measured_is_not_judged():
    assert [rule.read({}, Context(EXACT, START)) for rule in rules_before_update(EXACT)] == [None] * 3
    assert [rule.name for rule in rules_after_batch(EXACT) if rule.read({}, Context(EXACT, START))] == ["trained nothing"]


def test_a_policy_that_runs_away_from_its_samples_loses_effective_samples(tiny):
    parts = online(tiny(), GRPO(), LearnerSpec(learning_rate=0.2), max_lag=3, batch=2)
    assert "effective sample size" in names(train(parts, Plan(steps=10)))


# ---- versions and weights


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


def test_a_token_newer_than_the_learner_is_refused_before_it_is_labelled():
    """The stream checks the oldest token of a group; a newer one hides behind it."""
    groups = groups_of(2)
    groups[1] = replace(groups[1], samples=(sample_of([30, 31], 1.0, version_T=np.array([-1, 0, 1], np.int32)),))
    learner = CountingLearner()
    with pytest.raises(SentinelError, match=r"sentinel token versions, step 1: .*version 1, and the learner is at version 0"):
        asyncio.run(steps_over(groups, learner, Plan(steps=1)))
    assert learner.calls == []


def test_checksums_are_compared_name_by_name():
    sums = {"bucket-0": "aa", "bucket-1": "bb"}
    assert Sentinels().compare_weights(3, sums, dict(sums), 4) == []
    with pytest.raises(SentinelError, match=r'sentinel weight checksum, step 4: .*version 3.*"bucket-1" differ'):
        Sentinels().compare_weights(3, sums, {**sums, "bucket-1": "bc"}, 4)
    assert weights_differ(3, sums, {"bucket-0": "aa"}).bad


def test_an_optimizer_that_holds_other_parameters_is_found(tiny):
    parts = online(tiny(), GRPO(), SLOW)
    parts.learner.masters.adam.step = lambda rate: None
    with pytest.raises(SentinelError, match=r"weights unchanged, step 10: .*does not hold the parameters"):
        train(parts, Plan(steps=12))


# ---- slow signs


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


def test_a_constant_reward_trips_once_after_five_batches(tiny):
    steps = train(online(tiny(), GRPO(), FAST, score=lambda sample: 1.0), Plan(steps=8))
    alarms = [alarm for step in steps for alarm in step.alarms]
    assert [(alarm.sentinel, alarm.severity, alarm.step) for alarm in alarms] == [
        ("trained nothing", "warning", 3),
        ("constant reward", "warning", 5),
    ]
    assert "every sample of the batch had the reward 1" in alarms[1].message


def test_swallowed_reward_errors_are_told(tiny):
    parts = online(tiny(), GRPO(), FAST, score=lambda s: small_tokens(s) if s.key.sample % 2 else None)
    steps = train(parts, Plan(steps=4))
    assert names(steps) == ["failed samples"]
    assert steps[2].alarms[0].value == 0.5


@pytest.mark.parametrize(
    ("rule", "good", "bad"),
    [
        (constant_reward, {"reward/range": 0.5, "reward/mean": 0.1}, {"reward/range": 0.0, "reward/mean": 0.1}),
        (flat_groups, {"groups/flat": 0.9, "reward/range": 1.0}, {"groups/flat": 0.96, "reward/range": 1.0}),
        (failed_samples, {"samples/failed_share": 0.05}, {"samples/failed_share": 0.1}),
        (trained_nothing, {"gradient_norm": 1e-9}, {"gradient_norm": 0.0}),
        (trained_nothing, {"gradient_norm": 1.0, "batch/units": 3.0}, {"batch/units": 0.0}),
    ],
)
def test_signs_of_one_batch(rule, good, bad):
    assert not rule(good, Context()).bad
    assert rule(bad, Context()).bad


START = {"entropy/sampled": 1.0, "reward/mean": 0.3, "reward/std": 0.4, "finish/cut": 0.1}


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


def test_answers_that_grow_without_an_end_are_told(tiny):
    """A reward for length, on a model whose answers end by themselves at first."""
    model = tiny()
    parts = online(model, GRPO(), FAST, sampling=Sampling(max_new_tokens=12, stop_tokens=tuple(range(100))))
    parts.roll.reward.score = lambda sample: float(sample.action_T.sum())
    assert "length explosion" in names(train(parts, Plan(steps=25)))


def test_a_policy_that_says_one_thing_only_and_gains_nothing_is_told():
    """Entropy falls from 1 nat to almost nothing while rewards stay where they were."""
    sentinels, found = Sentinels(), []
    for step in range(1, 16):
        logp = -1.0 if step <= 5 else -0.01
        pair = tuple(
            sample_of([30, 31], reward, place=place, logp_T=np.array([0, logp, logp], np.float32))
            for place, reward in enumerate((0.0, 1.0))
        )
        facts = batch_facts([Group(prompt_of(0), pair)], 0)
        found += sentinels.check(rules_after_batch(EXACT), {**facts, "gradient_norm": 1.0}, step)
        sentinels.remember(facts)
    assert [(alarm.sentinel, alarm.step) for alarm in found] == [("entropy collapse", 10)]


# ---- non-finite


class Diverging(CountingLearner):
    """Refuses some of its optimizer steps (counted from 0), as a learner does whose gradient is not finite."""

    def __init__(self, *bad, error=NonFiniteError):
        super().__init__()
        self.bad, self.error, self.asked = bad, error, 0

    def step(self, caution=None):
        self.asked += 1
        if self.asked - 1 in self.bad:
            raise self.error("gradient norm is nan; the step was not taken")
        return super().step()


def test_a_step_that_is_not_finite_is_left_out_and_training_goes_on():
    learner = Diverging(1)
    steps, _ = asyncio.run(steps_over(groups_of(6), learner, Plan(steps=3)))
    assert [[alarm.sentinel for alarm in step.alarms] for step in steps] == [[], ["non-finite"], []]
    (alarm,) = steps[1].alarms
    assert (alarm.severity, alarm.step, alarm.value, alarm.bound) == ("warning", 2, 1.0, 3.0)
    assert "gradient norm is nan" in alarm.message
    assert "prompts test/0/2 to test/0/3" in alarm.message
    assert [step.metrics.get("steps/skipped") for step in steps] == [None, 1.0, None]
    assert learner.calls.count("step") == 2


def test_of_several_minibatches_only_the_bad_one_is_left_out():
    learner = Diverging(1)
    (step,), _ = asyncio.run(steps_over(groups_of(2), learner, Plan(steps=1, minibatches=2)))
    assert step.metrics["steps/skipped"] == 1.0
    assert learner.calls.count("step") == 1


def test_the_third_bad_step_within_twenty_batches_ends_the_run():
    with pytest.raises(SentinelError, match=r"sentinel non-finite, step 9: .* 3 in 20 batches are no accident"):
        asyncio.run(steps_over(groups_of(24), Diverging(1, 4, 8), Plan(steps=12)))


def test_bad_steps_far_apart_are_forgotten_and_said_to_be_over():
    steps, _ = asyncio.run(steps_over(groups_of(100), Diverging(1, 3, 30, 32), Plan(steps=50)))
    assert [(alarm.step, alarm.cleared) for step in steps for alarm in step.alarms if alarm.sentinel == "non-finite"] == [
        (2, False), (4, False), (24, True), (31, False), (33, False)
    ]  # fmt: skip


def test_bad_steps_are_counted_on_after_a_resume():
    before, after = Sentinels(), Sentinels()
    before.skipped("gradient norm", "bad", 4)
    before.skipped("gradient norm", "bad", 5)
    after.load_state(before.state())
    assert after.skipped("gradient norm", "bad", 6).action == "roll back"
    assert before.skipped("gradient norm", "bad", 30).severity == "warning"


def test_a_step_that_was_taken_though_it_was_not_finite_ends_the_run():
    with pytest.raises(SentinelError, match=r"sentinel non-finite, step 2: gradient norm is nan.*prompts test/0/2 to test/0/3"):
        asyncio.run(steps_over(groups_of(4), Diverging(1, error=NonFiniteStepError), Plan(steps=2)))


def test_a_model_that_is_not_finite_ends_an_offline_stage_at_the_third_step(tiny):
    from test_training import supervised

    unit_of, learner, trainer = supervised(tiny())

    async def run():
        async for step in offline(unit_of, trainer, batch=5, steps=6):
            if step.index == 0:
                assert step.alarms == ()
            with torch.no_grad():
                next(learner.policy.model.network.parameters()).fill_(float("nan"))

    with pytest.raises(SentinelError, match="sentinel non-finite, step 4: the loss is nan at optimizer step 1"):
        asyncio.run(run())


def test_with_sentinels_off_the_learner_still_refuses():
    trainer = trainer_of(Diverging(1))
    trainer.watcher = Sentinels("off")
    units = BareRows().label(groups_of(2), None, None)
    trainer.step(units)
    with pytest.raises(NonFiniteError, match=r"^gradient norm is nan"), trainer.watch(0, groups_of(2)) as watch:
        trainer.step(units, watch)


# ---- memory


def check(sentinels, value, step):
    return sentinels.check(rules_after_batch(EXACT)[:1], {"reward/range": value, "reward/mean": 1.0}, step)


def test_a_sentinel_says_once_that_it_trips_and_once_that_it_clears():
    sentinels = Sentinels()
    spread = [0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 1, 1, 1, 1, 1]
    found = [alarm for step, value in enumerate(spread, 1) for alarm in check(sentinels, float(value), step)]
    assert [(alarm.step, alarm.cleared) for alarm in found] == [(5, False), (14, True)]


def test_memory_survives_a_resume():
    sentinels = Sentinels()
    for step in range(1, 5):
        assert check(sentinels, 0.0, step) == []
    sentinels.remember(dict(START))
    resumed = Sentinels()
    resumed.load_state(sentinels.state())
    assert [alarm.sentinel for alarm in check(resumed, 0.0, 5)] == ["constant reward"]
    again = Sentinels()
    again.load_state(resumed.state())
    assert check(again, 0.0, 6) == []
    assert again.state() == Sentinels.state(again)


def test_means_of_the_start_are_those_of_the_first_batches():
    sentinels = Sentinels()
    for value in range(7):
        sentinels.remember({**START, "reward/mean": float(value)})
        assert bool(sentinels.start()) == (value >= 4)
    assert sentinels.start()["reward/mean"] == 2.0


def test_told_to_warn_a_fatal_sentinel_warns_once(tiny):
    parts = online(tiny(), GRPO(), SLOW, sampling=Sampling(max_new_tokens=6, temperature=0.5))
    parts.learner.policy.temperature = 1.0
    parts.trainer.watcher.mode = "warn"
    steps = train(parts, Plan(steps=3))
    alarms = [alarm for step in steps for alarm in step.alarms if alarm.sentinel == "log-prob gap"]
    assert [(alarm.severity, alarm.step) for alarm in alarms] == [("warning", 1)]


def test_an_alarm_as_an_event():
    alarm = Alarm("log-prob gap", "fatal", 7, "they differ", 0.2, 0.05)
    assert alarm.fields() == {
        "sentinel": "log-prob gap",
        "state": "tripped",
        "severity": "fatal",
        "message": "they differ",
        "value": 0.2,
        "bound": 0.05,
        "action": "",
    }

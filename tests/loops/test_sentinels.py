"""Every sentinel trips on the bug it is for, where it can before the batch is trained on, and is quiet on healthy training."""

import asyncio
import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from loop_examples import (
    BareRows,
    CountingLearner,
    assert_same_weights,
    online,
    prompt_of,
    sample_of,
    small_tokens,
    train,
    weights_of,
)
from test_learn import groups_of, steps_over, trainer_of
from test_training import supervised

from penstock.algos.grpo import GRPO
from penstock.algos.online_dpo import OnlineDPO
from penstock.algos.ppo import PPO
from penstock.config.learner import LearnerSpec
from penstock.core.errors import NonFiniteError, NonFiniteStepError
from penstock.core.sentinels import Alarm, SentinelError
from penstock.core.types import Group, Sampling
from penstock.loops.learn import Plan, offline
from penstock.models.arithmetic import cast_again
from penstock.observe.first_rows import remarks_on_samples
from penstock.observe.rules import (
    EXACT,
    Context,
    batch_facts,
    gap,
    rules_after_batch,
    thresholds,
)
from penstock.observe.sentinels import Sentinels

SLOW = LearnerSpec(learning_rate=1e-3)
FAST = LearnerSpec(learning_rate=0.02)


def alarms_of(steps):
    """All alarms of a run."""
    return [alarm for step in steps for alarm in step.alarms]


def names(steps):
    """What tripped over a run."""
    return [alarm.sentinel for alarm in alarms_of(steps) if not alarm.cleared]


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
    assert_same_weights(parts.model, before)


def test_stale_weights_under_a_new_version_are_never_trained_on_and_stop_a_run_that_does_not_get_over_it(tiny):
    """The generator is told of each version, but holds a copy of the first weights."""
    parts = online(tiny(), GRPO(), FAST)
    parts.generator.model = copy.deepcopy(parts.model)
    after, alarms = {}, []

    def note(step):
        if step.index == 0:
            after.update(weights_of(parts.model))
        alarms.extend(step.alarms)

    with pytest.raises(SentinelError, match=r"log-prob gap, step 4: .*loaded this version's weights") as caught:
        train(parts, Plan(steps=6), on_step=note)
    assert_same_weights(parts.model, after)
    seen = [alarm for alarm in (*alarms, *caught.value.alarms) if alarm.sentinel == "log-prob gap"]
    assert [(alarm.step, alarm.action) for alarm in seen] == [(2, "skip"), (3, "skip"), (4, "stop")]


def test_one_weight_update_that_went_wrong_costs_its_batch_and_nothing_else(tiny):
    """The generator misses one version and has the next."""
    parts = online(tiny(), GRPO(), FAST)
    stale = copy.deepcopy(parts.model)

    def note(step):
        parts.generator.model = stale if step.index == 2 else parts.model

    steps = train(parts, Plan(steps=6), on_step=note)
    assert [(alarm.sentinel, alarm.step, alarm.action) for alarm in alarms_of(steps)] == [("log-prob gap", 4, "skip")]
    assert [step.metrics.get("steps/skipped", 0.0) for step in steps] == [0, 0, 0, 1, 0, 0]


def test_weights_that_are_a_little_stale_are_a_warning_said_once(tiny):
    parts = online(tiny(), GRPO(), LearnerSpec(learning_rate=2e-5))
    parts.generator.model = copy.deepcopy(parts.model)
    alarms = alarms_of(train(parts, Plan(steps=4)))
    assert [(alarm.sentinel, alarm.severity, alarm.step) for alarm in alarms] == [("log-prob gap", "warning", 2)]


@pytest.mark.parametrize("more", [{}, {"max_lag": 2}, {"max_lag": 2, "kv": "recompute"}, {"max_lag": 1, "batch": 2}])
def test_healthy_training_is_quiet(more, tiny):
    steps = train(online(tiny(), GRPO(), SLOW, **more), Plan(steps=5, minibatches=2, epochs=2))
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
    parts.trainer.watcher.mode = "warn"
    (step,) = train(parts, Plan(steps=1, look=True))
    assert names([step]) == ["log-prob gap"]
    assert gap(step.metrics, Context(bounds)).severity == severity
    assert [line for line in remarks_on_samples(step, bounds) if "do not compute the same model" in line]


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
    assert_same_weights(one.model, weights_of(other.model))


def test_a_policy_that_runs_away_from_its_samples_loses_effective_samples(tiny):
    parts = online(tiny(), GRPO(), LearnerSpec(learning_rate=0.2), max_lag=3, batch=2)
    assert "effective sample size" in names(train(parts, Plan(steps=10)))


# ---- versions and weights


def test_a_token_newer_than_the_learner_is_refused_before_it_is_labelled():
    """The stream checks the oldest token of a group; a newer one hides behind it."""
    groups = groups_of(2)
    groups[1] = replace(groups[1], samples=(sample_of([30, 31], 1.0, version_T=np.array([-1, 0, 1], np.int32)),))
    learner = CountingLearner()
    with pytest.raises(SentinelError, match=r"sentinel token versions, step 1: .*version 1, and the learner is at version 0"):
        asyncio.run(steps_over(groups, learner, Plan(steps=1)))
    assert learner.calls == []


def test_an_optimizer_that_holds_other_parameters_is_found(tiny):
    parts = online(tiny(), GRPO(), SLOW)
    parts.learner.masters.adam.step = lambda rate: None
    with pytest.raises(SentinelError, match=r"weights unchanged, step 10: .*does not hold the parameters"):
        train(parts, Plan(steps=12))


# ---- slow signs


def test_a_constant_reward_trips_once_after_five_batches(tiny):
    alarms = alarms_of(train(online(tiny(), GRPO(), FAST, score=lambda sample: 1.0), Plan(steps=8)))
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


START = {"entropy/sampled": 1.0, "reward/mean": 0.3, "reward/std": 0.4, "finish/cut": 0.1}


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
    found = [(alarm.step, alarm.cleared) for alarm in alarms_of(steps) if alarm.sentinel == "non-finite"]
    assert found == [(2, False), (4, False), (24, True), (31, False), (33, False)]


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
    alarms = alarms_of(train(parts, Plan(steps=3)))
    assert [(alarm.severity, alarm.step) for alarm in alarms if alarm.sentinel == "log-prob gap"] == [("warning", 1)]


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

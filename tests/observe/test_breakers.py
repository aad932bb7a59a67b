"""What trips a breaker, by hand, and what a tripped one does."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.contracts import State
from penstock.core.sentinels import Alarm
from penstock.core.types import Group, Prompt, PromptKey, Sample, SampleKey
from penstock.observe.breakers import (
    GoldWatch,
    entropy_jump,
    loss_jump,
    range_of_rewards,
    reference_jump,
    repeated_prompts,
    reward_fall,
    spike,
    standard_error,
    update_jump,
)
from penstock.observe.history import AGAIN, LIMITS, MEMORY, REPEATED, History, PromptMemory, spread, suspected
from penstock.observe.rules import Context
from penstock.observe.sentinels import Sentinels


def history_of(**values: list[float]) -> History:
    """A history by metrics, whose names have no slash here."""
    names = {
        "reward": "reward/mean",
        "entropy": "entropy/sampled",
        "kl": "kl/reference",
        "norm": "gradient_norm",
        "update": "update_size",
    }
    return History({names.get(name, name): list(found) for name, found in values.items()}, lowest=0.0, highest=1.0)


def test_spread_is_median_and_scaled_median_deviation() -> None:
    assert spread([1.0, 2.0, 4.0, 8.0, 100.0]) == (4.0, pytest.approx(1.4826 * 3.0))


def test_a_gradient_is_large_above_eight_deviations_and_five_times_the_largest() -> None:
    assert spike("gradient_norm", history_of(norm=[1.0] * 9)) == math.inf
    assert spike("gradient_norm", history_of(norm=[1.0] * 9 + [2.0])) == 10.0
    assert spike("gradient_norm", history_of(norm=[0.0, 10.0] * 5)) == pytest.approx(5.0 + 8 * 1.4826 * 5.0)


def test_a_gradient_of_a_batch_without_signal_is_not_remembered() -> None:
    history = History()
    history.add({"gradient_norm": 0.0, "update_size": 1e-6})
    assert history.values == {}


JUMPS = {
    "a step is too large at five times the largest of the latest": (
        update_jump, history_of(update=[1e-4] * 10), "update_size", {1e-4: False, 4.9e-4: False, 3e-3: True, math.nan: True}, {}
    ),
    "a reference is left all at once": (
        reference_jump, history_of(kl=[0.1 * n for n in range(10)]), "kl/reference", {4.4: False, 4.6: True}, {}
    ),
    "or slowly": (reference_jump, history_of(kl=[0.01] * 10), "kl/reference", {1.9: False}, {}),
    "or by less than a tenth of a nat a token": (
        reference_jump, history_of(kl=[0.01] * 10), "kl/reference", {9.9: False, 10.1: True}, {"length/mean": 100.0}
    ),
    "a loss jumps to twice the median": (loss_jump, history_of(loss=[1.0] * 10), "loss", {1.9: False, 2.1: True}, {}),
    "prompts repeat where two fifths of those that usually are new come again": (
        repeated_prompts, History({REPEATED: [0.0] * 5 + [0.5] * 20}), REPEATED, {0.69: False, 0.71: True}, {}
    ),
    "prompts that always come again are no alarm": (
        repeated_prompts, History({REPEATED: [1.0] * 20}), REPEATED, {1.0: False}, {}
    ),
}  # fmt: skip


@pytest.mark.parametrize(("rule", "history", "metric", "expected", "others"), JUMPS.values(), ids=JUMPS)
def test_a_metric_jumps_beyond_its_history(
    rule: Any, history: History, metric: str, expected: dict[float, bool], others: dict[str, float]
) -> None:
    readings = [rule({metric: value, **others}, history) for value in expected]
    assert [reading.bad for reading in readings] == list(expected.values())


@pytest.mark.parametrize(
    ("before", "now", "reward", "jumped"),
    [(0.5, 1.4, 0.1, False), (0.5, 1.6, 0.1, True), (0.5, 1.6, 0.5, False), (0.5, 1.6, 0.35, False), (0.003, 0.04, 0.1, False),
     (0.003, 0.51, 0.1, True)],
    ids=["less than three times", "three times", "reward rises", "reward falls by chance", "from next to nothing", "to noise"],
)  # fmt: skip
def test_entropy_jumps_to_three_times_and_half_a_nat_where_reward_is_lost(before, now, reward, jumped) -> None:
    history = history_of(entropy=[before] * 10, reward=[0.4] * 10)
    reading = entropy_jump({"entropy/sampled": now, "reward/mean": reward, "reward/std": 0.4}, Context(), history)
    assert reading.bad == jumped


@pytest.mark.parametrize(
    ("seen", "rewards", "bad"),
    [
        ([0.0], [1.0] * 64, False),  # all 0 so far: there is no unit yet
        ([0.0], [1000.0] * 64, False),
        ([0.0, 0.1], [0.1] * 60 + [1.0] * 4, False),
        ([-1.0], [1.0] * 64, False),
        ([-0.01, 0.0], [0.0] * 63 + [100.0], False),  # one success of 64, however large
        ([0.0, 1.0], [0.0] * 32 + [10.0] * 32, False),
        ([0.0, 1.0], [0.0] * 32 + [1000.0] * 32, True),
        ([0.0, 1.0], [-1000.0] * 64, True),
        ([0.0, 1.0], [1000.0, 0.0], False),
        ([0.0, 1.0], [1000.0, 1000.0], True),
        ([0.0, 100.0], [1000.0] * 8, False),
        ([0.0, 100.0], [100000.0] * 8, True),
    ],
)
def test_rewards_are_out_of_range_where_many_are_thirty_times_their_unit_outside(seen, rewards, bad) -> None:
    history = History({"reward/mean": [0.5] * 10}, min(seen), max(seen))
    reading = range_of_rewards(rewards, history)
    assert reading is not None
    assert reading.bad == bad


def test_what_was_left_out_once_is_compared_with_once_a_batch_is_healthy() -> None:
    history = History({"gradient_norm": [1.0] * 10}, 0.0, 1.0)
    history.leave_out(**{"reward/low": 0.0, "reward/high": 50.0, "gradient_norm": 30.0})
    assert (history.highest, spike("gradient_norm", history)) == (1.0, 5.0)
    history.add({"reward/mean": 0.5, "reward/low": 0.0, "reward/high": 1.0, "gradient_norm": 1.0})
    assert (history.highest, spike("gradient_norm", history)) == (50.0, 150.0)
    assert not history.outside


def test_a_gradient_may_grow_with_the_range_of_rewards() -> None:
    history = history_of(norm=[0.1] * 10, **{"reward/range": [0.1] * 10})
    assert [spike("gradient_norm", history, range_now=now) for now in (0.0, 0.1, 1.0)] == pytest.approx([0.5, 0.5, 5.0])


def test_steps_of_batches_whose_rewards_are_all_equal_are_not_remembered() -> None:
    history = History()
    history.add({"gradient_norm": 1e-4, "update_size": 1e-6, "reward/range": 0.0, "reward/mean": 0.0})
    assert history.values == {"reward/mean": [0.0]}


@pytest.mark.parametrize(
    ("metrics", "yes"),
    [({}, False), ({AGAIN: -0.1, "reward/std": 0.5}, False), ({AGAIN: -0.3, "reward/std": 0.5}, True),
     ({"update_size": 2.9e-4}, False), ({"update_size": 3.1e-4}, True), ({"gradient_norm": 3.1}, True)],
    ids=["nothing", "prompts are as good", "prompts are worse", "a usual step", "a large step", "a large gradient"],
)  # fmt: skip
def test_weights_are_suspected_where_known_prompts_fall_or_steps_were_large(metrics, yes) -> None:
    assert suspected(metrics, history_of(update=[1e-4] * 10, norm=[1.0] * 10)) == yes


def test_the_first_steps_are_compared_with_nothing() -> None:
    assert update_jump({"update_size": 1.0}, history_of(update=[1e-4] * 9)) is None


STEADY = [0.8, 0.82, 0.78, 0.8, 0.8, 0.81, 0.79, 0.8, 0.8, 0.8]  # deviation 0.0074 or less, so that samples' 0.4 decides
VARIED = [0.3, 0.5, 0.4, 0.6, 0.5, 0.4, 0.6, 0.5, 0.4, 0.5]  # median 0.5, deviation 0.148


@pytest.mark.parametrize(
    ("usual", "latest", "fell"),
    [
        (STEADY, (0.8, 0.8, 0.41), False),
        (STEADY, (0.8, 0.8, 0.39), True),  # by the deviation of samples at once
        (STEADY, (0.8, 0.61, 0.59), False),
        (STEADY, (0.8, 0.59, 0.59), True),  # by half of it twice
        (VARIED, (0.5, 0.1, 0.1), False),
        (VARIED, (0.29, 0.29, 0.29), True),  # lower than ever three times
        (VARIED, (0.31, 0.29, 0.29), False),
    ],
)
def test_a_reward_falls_at_once_or_for_some_batches(usual: list[float], latest: tuple[float], fell: bool) -> None:
    history = history_of(reward=[*usual, *latest[:2]])
    reading = reward_fall({"reward/mean": latest[2], "reward/std": 0.4}, Context(), history)
    assert reading is not None
    assert reading.bad == fell


def test_a_fall_is_not_looked_for_in_the_first_batches() -> None:
    assert reward_fall({"reward/mean": 0.0}, Context(), history_of(reward=[0.8] * 11)) is None


def test_rows_of_few_values_come_again_more_and_more_without_an_alarm() -> None:
    history = History()
    for count in range(100):
        share = 1 - 0.97**count
        found = repeated_prompts({REPEATED: share}, history)
        assert found is None or not found.bad
        history.add({REPEATED: share})


def group(ordinal: int, text: str, epoch: int = 0, rewards: tuple[float, ...] = ()) -> Group:
    key = PromptKey("source", epoch, ordinal)
    one = {"tokens_T": np.array([1])}, np.array([True]), np.zeros(1, np.float32), np.zeros(1, np.int32), "stop"
    samples = [Sample(SampleKey(key, n), *one).scored(reward) for n, reward in enumerate(rewards)]  # type: ignore[arg-type]
    return Group(Prompt(key, text), tuple(samples))


def test_a_prompt_repeats_under_another_ordinal_of_the_same_pass() -> None:
    memory = PromptMemory()
    assert memory.facts([group(0, "a"), group(1, "b")]) == {REPEATED: 0.0}
    assert memory.facts([group(0, "a"), group(2, "b")]) == {REPEATED: 0.5}  # the first is the same prompt, used once more
    assert memory.facts([group(3, "a", epoch=1), group(4, "c")]) == {REPEATED: 0.0}


def test_rewards_of_known_prompts_are_compared_with_those_they_had() -> None:
    memory = PromptMemory()
    memory.facts([group(0, "a", rewards=(1.0, 0.0)), group(1, "b", rewards=(1.0, 1.0))])
    found = memory.facts([group(2, "a", 1, (0.0, 0.0)), group(3, "b", 1, (1.0, 0.0)), group(4, "c", 1, (1.0, 1.0))])
    assert found == {REPEATED: 0.0, AGAIN: -0.5}
    later = PromptMemory()
    later.load(json.loads(json.dumps(memory.plain())))
    assert later.facts([group(5, "c", 2, (0.0, 0.0))]) == {REPEATED: 0.0, AGAIN: -1.0}


def test_a_few_known_prompts_say_nothing_of_the_others() -> None:
    memory = PromptMemory()
    memory.facts([group(0, "a", rewards=(1.0,))])
    assert memory.facts([group(n, f"{n}" if n else "a", 1, (0.0,)) for n in range(5)]) == {REPEATED: 0.0}


@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=3 * MEMORY))
def test_a_history_is_bounded_and_survives_a_checkpoint(values: list[float]) -> None:
    history = History()
    for value in values:
        history.add({"reward/mean": value, "reward/low": value, "reward/high": value})
    assert history.values["reward/mean"] == values[-MEMORY:]
    assert History.of_plain(history.plain()) == history


def test_gold_falls_three_times_while_the_trained_reward_is_higher() -> None:
    watch = GoldWatch()
    seen = [watch.read(step, gold, trained, {}) for step, gold, trained in
            ((10, 0.5, 0.5), (20, 0.6, 0.6), (30, 0.5, 0.7), (40, 0.4, 0.8), (50, 0.3, 0.9))]  # fmt: skip
    assert [reading.bad for reading in seen if reading] == [False, False, True]


def test_the_first_evaluation_counts_though_nothing_was_trained_before_it() -> None:
    watch = GoldWatch()
    assert watch.read(0, 0.5, None, {}) is None
    seen = [watch.read(step, 0.1, 0.9, {}) for step in (10, 20, 30)]
    assert [reading.bad for reading in seen if reading] == [False, False, True]


@pytest.mark.parametrize(
    ("gold", "apart"),
    [((0.6, 0.5, 0.6, 0.3), 0.0), ((0.6, 0.5, 0.4, 0.3), 0.5)],
    ids=["not in a row", "within what chance gives"],
)  # fmt: skip
def test_gold_that_falls_for_other_reasons_is_quiet(gold: tuple[float, ...], apart: float) -> None:
    """``apart``: how far the two prompts change in opposite directions from one evaluation to the next."""
    watch = GoldWatch()
    pairs = [{"a": one + apart * (-1) ** step, "b": one - apart * (-1) ** step} for step, one in enumerate(gold)]
    readings = [watch.read(step, one, 0.6 + step / 10, pairs[step]) for step, one in enumerate(gold)]
    assert not any(reading.bad for reading in readings if reading)


def test_prompts_that_are_hard_each_time_are_no_part_of_the_error_between_two_evaluations() -> None:
    then = {"easy": 1.0, "hard": 0.0, "odd": 0.5}
    assert standard_error({key: value - 0.1 for key, value in then.items()}, then) == pytest.approx(0.0)
    assert standard_error({"easy": 0.9, "hard": 0.1, "odd": 0.5}, then) == pytest.approx(0.1 / math.sqrt(3))


def test_evaluations_of_other_prompts_have_the_error_of_both() -> None:
    assert standard_error({"a": 0.0, "b": 1.0}, {"c": 0.0, "d": 1.0}) == pytest.approx(math.sqrt(0.25 + 0.25))
    assert standard_error({}, {}) == 0.0


# ---- what is done


ALARM = Alarm("reward fall", "warning", 60, "the reward fell", 0.1, 0.5, action="roll back")


def test_a_rollback_takes_older_weights_and_a_lower_rate_and_is_quiet_while_old_samples_come() -> None:
    asked: list[tuple[int, float | None]] = []
    sentinels = Sentinels(restore=lambda before, least: asked.append((before, least)) or 50)  # type: ignore[func-returns-value]
    done = sentinels.roll_back(ALARM, lag=2)
    assert asked == [(55, None)]
    assert sentinels.rate == LIMITS.slower
    assert "went back to the weights of step 50" in done.message
    assert not sentinels.usual(63)
    assert sentinels.usual(64)


def doubtful(sentinel: str = "reward fall", bound: float = 0.5, reached: int = 50) -> Sentinels:
    """Sentinels whose weights have just gone back for a metric that crossed its bound."""
    sentinels = Sentinels(restore=lambda before, best: reached)
    sentinels.history.values |= {"reward/mean": [0.9] * 20, "loss": [1.0] * 20}
    sentinels.roll_back(replace(ALARM, sentinel=sentinel, bound=bound), 0)
    return sentinels


def test_a_reward_that_is_back_after_a_rollback_is_not_doubted_any_more() -> None:
    sentinels = doubtful()
    assert [sentinels.doubted({"reward/mean": 0.8}, 62 + n, False) for n in range(sentinels.thresholds.patience)] == [
        (False, [])
    ] * 5
    assert sentinels.doubt is None
    assert sentinels.rate == LIMITS.slower


def test_batches_that_old_weights_made_say_nothing_of_a_rollback() -> None:
    sentinels = doubtful()
    assert sentinels.doubted({"reward/mean": 0.1}, 61, False) == (False, [])
    assert sentinels.doubt is not None
    assert sentinels.doubt.bad == 0


def test_a_reward_that_stays_low_after_a_rollback_holds_the_weights_and_then_is_what_others_are_compared_with() -> None:
    sentinels = doubtful()
    seen = [sentinels.doubted({"reward/mean": 0.2}, 62 + n, False) for n in range(LIMITS.doubted)]
    assert [left_out for left_out, _ in seen] == [True] * (LIMITS.doubted - 1) + [False]
    said = [(alarm.step, alarm.action, alarm.severity) for _, alarms in seen for alarm in alarms]
    assert said == [(62, "skip", "warning"), (71, "", "warning")]
    assert (sentinels.doubt, sentinels.rate) == (None, 1.0)
    assert "reward/mean" not in sentinels.history.values


def test_a_reward_that_comes_back_by_itself_takes_the_rate_back_to_what_it_was() -> None:
    sentinels = doubtful()
    for n in range(3):
        assert sentinels.doubted({"reward/mean": 0.2}, 62 + n, False)[0]
    for n in range(5):
        assert not sentinels.doubted({"reward/mean": 0.8}, 65 + n, False)[0]
    assert (sentinels.doubt, sentinels.rate) == (None, 1.0)


def test_a_loss_that_stays_high_after_a_rollback_is_what_others_are_compared_with() -> None:
    sentinels = doubtful("loss jump", bound=2.0)
    for n in range(LIMITS.doubted):
        sentinels.doubted({"loss": 3.0}, 62 + n, True)
    assert sentinels.doubt is None
    assert "loss" not in sentinels.history.values


def test_what_had_nothing_to_go_back_to_leaves_no_batch_out() -> None:
    sentinels = Sentinels()
    sentinels.roll_back(ALARM, 0)
    seen = [sentinels.doubted({"reward/mean": 0.2}, 62 + n, False) for n in range(LIMITS.doubted)]
    assert not any(left_out for left_out, _ in seen)
    assert [alarm.action for _, alarms in seen for alarm in alarms] == [""]
    assert sentinels.doubt is None


def test_one_rollback_too_many_stops_the_run() -> None:
    sentinels = Sentinels(restore=lambda before, best: 0)
    severities = [sentinels.roll_back(replace(ALARM, step=60 + 10 * n), 0).severity for n in range(4)]
    assert severities == ["warning"] * 3 + ["fatal"]


def test_rollbacks_long_ago_do_not_count() -> None:
    sentinels = Sentinels(restore=lambda before, best: 0)
    assert {sentinels.roll_back(replace(ALARM, step=600 * n), 0).severity for n in range(1, 8)} == {"warning"}


def test_without_a_checkpoint_a_slow_sign_is_said_and_broken_weights_stop() -> None:
    sentinels = Sentinels()
    assert sentinels.roll_back(ALARM, 0).severity == "warning"
    assert sentinels.roll_back(replace(ALARM, sentinel="non-finite"), 0).severity == "fatal"
    assert sentinels.rate == 1.0


def test_a_reward_that_is_exploited_again_ends_the_stage_with_the_best_weights() -> None:
    asked: list[float | None] = []
    sentinels = Sentinels(restore=lambda before, least: asked.append(least) or 20)  # type: ignore[func-returns-value]
    sentinels.history.values["reward/mean"] = [0.5]
    for times, over in ((1, False), (2, True)):
        sentinels.gold = replace(sentinels.gold, best=(10, 0.9, 0.4), short=[True, True])
        assert sentinels.evaluated(50, {"evaluation/reward": 0.5}, {}) == []
        assert sentinels.due is not None
        sentinels.roll_back(sentinels.due, 0)
        assert (sentinels.gold.times, sentinels.over) == (times, over)
    assert asked == [0.7, 0.7]  # half of what was lost from 0.9 to 0.5 comes back at least


def test_a_reward_that_is_exploited_is_only_said_where_no_checkpoint_is_better() -> None:
    sentinels = Sentinels(restore=lambda before, least: None)
    done = sentinels.roll_back(replace(ALARM, sentinel="gold", action="roll back to the best"), 0)
    assert (done.severity, done.action) == ("warning", "none")
    assert (sentinels.over, sentinels.rate) == (False, 1.0)


def test_a_held_out_reward_that_falls_with_the_trained_one_takes_the_best_weights_and_ends_nothing() -> None:
    sentinels = Sentinels(restore=lambda before, least: 20)
    for _ in range(2):
        sentinels.history.values["reward/mean"] = [0.3]
        sentinels.gold = replace(sentinels.gold, best=(10, 0.9, 0.4), short=[False, False])
        assert sentinels.evaluated(50, {"evaluation/reward": 0.5}, {}) == []
        assert sentinels.due is not None
        assert (sentinels.due.sentinel, sentinels.due.action) == ("held-out fall", "roll back to the best")
        sentinels.roll_back(sentinels.due, 0)
    assert (sentinels.gold.times, sentinels.over) == (0, False)


def test_told_to_warn_gold_is_only_said() -> None:
    sentinels = Sentinels("warn")
    sentinels.history.values["reward/mean"] = [0.5]
    sentinels.gold = GoldWatch((10, 0.9, 0.4), [True, True])
    assert [alarm.sentinel for alarm in sentinels.evaluated(50, {"evaluation/reward": 0.5}, {})] == ["gold"]
    assert sentinels.due is None


def test_minibatches_of_one_batch_are_one_batch_that_was_left_out() -> None:
    sentinels = Sentinels()
    assert {sentinels.skipped("non-finite", "NaN", 7).action for _ in range(16)} == {"skip"}
    assert sentinels.skipped("non-finite", "NaN", 8).action == "skip"
    assert sentinels.skipped("non-finite", "NaN", 9).action == "roll back"


def test_what_an_evaluation_asked_for_survives_a_checkpoint() -> None:
    before, after = Sentinels(), Sentinels()
    before.due = replace(ALARM, sentinel="gold", action="roll back to the best")
    after.load_state(State({}, json.loads(json.dumps(before.state().values))))
    assert after.due == before.due


def test_what_breakers_know_survives_a_checkpoint() -> None:
    before, after = Sentinels(restore=lambda before, best: 50), Sentinels()
    before.history.add({"reward/mean": 0.5, "reward/low": 0.0, "reward/high": 1.0})
    before.gold.best = (10, 0.9, 0.4)
    before.roll_back(ALARM, 1)
    after.load_state(before.state())
    assert after.state() == before.state()
    assert (after.rate, after.history, after.gold) == (before.rate, before.history, before.gold)

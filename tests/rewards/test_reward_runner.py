"""Mixtures of rewards: what they call, how they add, and what a failure touches."""

import asyncio
import functools
import re
import threading
import time
from decimal import Decimal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reward_examples import KEY, make_group, make_sample, mixture, score

from penstock.config.run import RewardSpec
from penstock.core.errors import SpecError
from penstock.core.types import Group, Prompt
from penstock.data.resolve import register
from penstock.rewards.runner import Mixture
from penstock.sandbox.threads import StuckError, Threads


def by_length(sample, columns):
    return len(sample.text)


@pytest.fixture
def release():
    """An event for functions that hang, set when their test is over at the latest."""
    made = threading.Event()
    yield made
    made.set()


def errors(group):
    return [sample.error for sample in group.samples]


def rewards(group):
    return [sample.reward for sample in group.samples]


def ranked(group, columns):
    return [float(rank) for rank in range(len(group.samples))]


def scaled(scale, sample, columns):
    return scale


class Judge:
    async def __call__(self, sample, columns):
        return 10.0


async def of_sample(sample, columns):
    await asyncio.sleep(0.001)
    return 1.0


async def of_group(group, columns):
    return np.array([2.0, 3.0])


@pytest.mark.parametrize(
    ("functions", "expected"),
    [
        ([by_length], [1.0, 3.0]),
        ([ranked], [0.0, 1.0]),
        ([of_sample, of_group, Judge()], [13.0, 14.0]),
        ([functools.partial(scaled, 3)], [3.0, 3.0]),
        ([lambda sample, columns: columns["level"]], [5.0, 5.0]),
        ([lambda sample, columns: columns.pop("level")], [5.0, 5.0]),
    ],
    ids=["of a sample", "of a group by the name of its parameter", "asynchronous", "partial", "of the row's columns",
         "that changes its own columns only"],
)  # fmt: skip
def test_functions_of_all_kinds_score_each_sample(functions, expected):
    group = score(mixture(*functions), make_group("a", "bbb", columns={"level": 5}))
    assert rewards(group) == expected
    assert all(sample.valid for sample in group.samples)


def test_options_are_passed_on():
    def scaled(sample, columns, *, scale):
        return scale

    assert rewards(score(mixture(scaled, options={"scale": 4}), make_group("a"))) == [4.0]


def test_a_float_lands_on_the_last_action_token():
    (sample,) = score(mixture(by_length), make_group("abcd")).samples
    assert sample.reward_T.tolist() == [0, 0, 0, 0, 4]


def test_per_token_and_whole_rewards_add_up():
    group = score(mixture(lambda s, c: [1.0, 2.0, 3.0], lambda s, c: 10), make_group("a"))
    assert group.samples[0].reward_T.tolist() == [0, 0, 1, 2, 13]
    assert group.samples[0].extras["rewards"] == {"r0": 6.0, "r1": 10.0}


SCORES = st.one_of(st.none(), st.floats(-100, 100, width=32), st.lists(st.floats(-100, 100, width=32), min_size=3, max_size=3))


@given(st.lists(st.tuples(SCORES, st.floats(-5, 5)), min_size=1, max_size=4))
def test_a_mixture_is_the_weighted_sum_of_what_applies(parts):
    async def gives(sample, columns, *, value):
        return value

    specs = [RewardSpec(function=f"r{i}", weight=weight, options={"value": value}) for i, (value, weight) in enumerate(parts)]
    made = Mixture(tuple(specs), {spec.function: gives for spec in specs})
    (sample,) = score(made, make_group("a")).samples
    expected = np.zeros(3)
    for value, weight in parts:
        if value is not None:
            expected += weight * np.array(value if isinstance(value, list) else [0, 0, value])
    if all(value is None for value, _ in parts):
        assert "no reward applies" in sample.error
    else:
        assert sample.error is None
        np.testing.assert_allclose(sample.reward_T[2:], expected, rtol=1e-5, atol=1e-4)


def test_none_is_left_out_and_named_nowhere():
    (sample,) = score(mixture(lambda s, c: None, lambda s, c: 2), make_group("a")).samples
    assert (sample.reward, sample.extras["rewards"]) == (2.0, {"r1": 2.0})


def test_a_sample_to_which_nothing_applies_is_failed_never_zero():
    made = mixture(lambda s, c: None if s.text == "a" else 1)
    first, second = score(made, make_group("a", "b")).samples
    assert first.error == "RewardError: no reward applies to prompt gsm8k/0/17#0; every one returned None"
    assert (first.reward, second.reward) == (None, 1.0)
    assert (made.inapplicable, made.failures) == (1, {"r0": 0})


@pytest.mark.parametrize(
    "value",
    [np.float32(1), np.int64(1), np.array(1.0), np.bool_(True), True, torch.tensor(1.0, requires_grad=True),
     torch.tensor(1, dtype=torch.bfloat16), torch.tensor(True)],
    ids=repr,
)  # fmt: skip
def test_numbers_of_numpy_and_torch_and_truth_values_are_scores(value):
    assert rewards(score(mixture(lambda s, c: value), make_group("a"))) == [1.0]


@pytest.mark.parametrize(
    "value", [torch.tensor([0.5, 2.0]), (torch.tensor(0.5), np.float64(2)), np.array([0.5, 2.0])], ids=repr
)
def test_scores_of_a_group_may_be_numbers_of_numpy_and_torch(value):
    def gives(group, columns):
        return value

    assert rewards(score(mixture(gives), make_group("a", "b"))) == [0.5, 2.0]


def test_the_refusal_of_a_score_says_what_was_found():
    (sample,) = score(mixture(lambda s, c: "1.0"), make_group("a")).samples
    assert sample.error == (
        "RewardError: reward \"r0\" returned str '1.0' on prompt gsm8k/0/17#0: "
        "return a number, a list of numbers (one an action token), or None"
    )


def test_a_raising_function_fails_its_sample_and_no_sibling():
    def picky(sample, columns):
        if sample.text == "bad":
            raise ValueError("cannot read it")
        return 1.0

    made = mixture(picky)
    group = score(made, make_group("good", "bad", "good"))
    assert [sample.valid for sample in group.samples] == [True, False, True]
    message = errors(group)[1]
    assert message.startswith('RewardError: reward "r0" raised ValueError on prompt gsm8k/0/17#1: cannot read it (')
    assert "test_reward_runner.py:" in message
    assert (made.failures, made.last_failure) == ({"r0": 1}, message)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (float("nan"), "a score must be finite"),
        (float("-inf"), "a score must be finite"),
        (1e300, "a score must be finite"),
        ([1.0, float("nan"), 1.0], "a score must be finite"),
        ([1.0], "returned 1 numbers .* one for each of the 3 action tokens"),
        ([], "one for each of the 3 action tokens"),
        ("1.0", "returned str .* return a number"),
        ({"score": 1}, "returned dict"),
        (["1", "2", "3"], "returned list"),
        ([[1.0, 2.0, 3.0]], "returned list"),
        ([1.0, [2.0], 3.0], "returned list"),
        (1j, "returned complex"),
        (b"1", "returned bytes"),
        (np.str_("1"), "returned str"),
        (Decimal("1"), "returned Decimal"),
        (np.datetime64("2024-01-05"), "returned date"),
        ({"score": 1.0, "accuracy": 1.0}, "returned dict"),
        (torch.tensor([float("nan"), 1.0, 1.0]), "a score must be finite"),
        (torch.zeros(1, device="meta"), "raised"),
    ],
)
def test_what_is_no_score_fails_its_sample_and_no_sibling(value, says):
    group = score(mixture(lambda s, c: value if s.text == "bad" else 1.0), make_group("bad", "good"))
    assert group.samples[1].valid
    assert re.search(says, errors(group)[0])


def test_a_hanging_function_fails_its_sample_in_time_and_no_sibling(release):
    def hangs(sample, columns):
        return release.wait(30) if sample.text == "bad" else 1.0

    start = time.monotonic()
    group = score(mixture(hangs, deadline=0.2), make_group("good", "bad", "good"))
    assert time.monotonic() - start < 5
    assert errors(group) == [None, 'RewardError: reward "r0" timed out after 0.2 s on prompt gsm8k/0/17#1', None]


def test_a_hanging_async_function_fails_its_sample_even_if_it_refuses_to_end():
    async def stubborn(sample, columns):
        while sample.text == "bad":
            try:
                await asyncio.sleep(0.5)
                return 1.0
            except asyncio.CancelledError:
                continue
        return 1.0

    group = score(mixture(stubborn, deadline=0.1), make_group("good", "bad"))
    assert errors(group) == [None, 'RewardError: reward "r0" timed out after 0.1 s on prompt gsm8k/0/17#1']


def test_ending_the_process_in_a_reward_fails_the_sample_only():
    group = score(mixture(lambda s, c: exit(3) if s.text == "bad" else 1.0), make_group("good", "bad"))
    assert errors(group) == [None, 'RewardError: reward "r0" failed on prompt gsm8k/0/17#1: raised SystemExit']


def test_a_failing_group_function_fails_the_group():
    def breaks(group, columns):
        raise KeyError("x")

    made = mixture(breaks)
    group = score(made, make_group("a", "b"))
    assert all('reward "r0" raised KeyError on prompt gsm8k/0/17:' in error for error in errors(group))
    assert made.failures == {"r0": 2}


@pytest.mark.parametrize("value", [[1.0], [1.0, 2.0, 3.0], 1.0, None, "ab", {0: 1.0, 1: 2.0}, {1.0, 2.0}, np.array(1.0)])
def test_a_group_function_must_give_one_score_a_sample(value):
    def gives(group, columns):
        return value

    group = score(mixture(gives), make_group("a", "b"))
    assert all("return a list of 2, one a sample" in error for error in errors(group))


def test_a_group_function_may_mix_numbers_and_numbers_a_token():
    def gives(group, columns):
        return [1.0, [1.0, 2.0, 3.0], np.ones(3)]

    assert rewards(score(mixture(gives), make_group("a", "b", "c"))) == [1.0, 6.0, 3.0]


def test_one_bad_score_of_a_group_function_fails_one_sample():
    def gives(group, columns):
        return [1.0, float("nan"), None]

    group = score(mixture(gives, lambda s, c: 1.0), make_group("a", "b", "c"))
    assert [sample.valid for sample in group.samples] == [True, False, True]


def test_samples_that_failed_before_are_left_alone():
    asked = []

    def count(group, columns):
        asked.append(len(group.samples))
        return [1.0] * len(group.samples)

    before = make_group("a", "b")
    before = Group(before.prompt, (before.samples[0].failed("GenerationError: x"), before.samples[1]))
    after = score(mixture(count), before)
    assert asked == [1]
    assert errors(after) == ["GenerationError: x", None]
    assert after.samples[1].reward == 1.0


def test_a_sample_without_actions_cannot_carry_a_reward():
    group = Group(Prompt(KEY, ""), (make_sample("a", actions=0),))
    assert "no action token" in errors(score(mixture(by_length), group))[0]


def test_other_extras_are_kept():
    group = Group(Prompt(KEY, ""), (make_sample("a", extras={"turns": 2}),))
    assert score(mixture(by_length), group).samples[0].extras == {"turns": 2, "rewards": {"r0": 1.0}}


def test_plain_functions_run_off_the_main_thread_and_side_by_side():
    barrier = threading.Barrier(4, timeout=60)

    def meets(sample, columns):
        barrier.wait()
        return float(threading.current_thread() is not threading.main_thread())

    assert rewards(score(mixture(meets), make_group("a", "b", "c", "d"))) == [1.0] * 4


def test_the_wait_for_a_thread_does_not_count_against_the_deadline():
    def slow(sample, columns):
        time.sleep(0.03)
        return 1.0

    made = mixture(slow, deadline=0.25)
    made._threads = Threads("rewards", size=1)
    assert rewards(score(made, make_group(*"abcdefghijkl"))) == [1.0] * 12


async def test_a_blocked_loop_does_not_make_a_finished_function_late():
    task = asyncio.create_task(mixture(by_length, deadline=0.05)(make_group("abc")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    time.sleep(0.2)
    assert rewards(await task) == [3.0]


async def test_eight_stuck_functions_stop_the_run(release):
    made = mixture(lambda s, c: release.wait(30), deadline=0.05)
    await made(make_group(*"abcdefgh"))
    with pytest.raises(StuckError, match='reward "r0" on prompt gsm8k/0/17#0: 8 threads of rewards are stuck'):
        await made(make_group("i"))


async def test_a_late_function_gives_its_thread_back(release):
    made = mixture(lambda s, c: release.wait(30), deadline=0.05)
    await made(make_group("a", "b"))
    assert made._threads.abandoned == 2
    release.set()
    await asyncio.sleep(0.2)
    assert made._threads.abandoned == 0


async def test_a_cancelled_group_leaves_the_mixture_usable(release):
    made = mixture(lambda s, c: release.wait(30) and 1.0)
    task = asyncio.create_task(made(make_group("a")))
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    release.set()
    assert rewards(await made(make_group("b"))) == [1.0]


def test_a_mixture_serves_one_event_loop_after_another():
    made = mixture(by_length)
    assert [rewards(asyncio.run(made(make_group("ab")))) for _ in range(3)] == [[2.0]] * 3


def test_names_come_from_the_function():
    made = Mixture((RewardSpec(function="exact_match"), RewardSpec(function=register(by_length))))
    assert list(made.failures) == ["exact_match", "by_length"]


def test_provided_functions_are_used_by_the_name_of_their_spec():
    async def loaded(group, columns):
        return [0.5] * len(group.samples)

    made = Mixture((RewardSpec(function="model:@judge"),), {"model:@judge": loaded})
    assert score(made, make_group("a")).samples[0].extras["rewards"] == {"judge": 0.5}


def test_functions_in_files_are_found_beside_the_run(tmp_path):
    (tmp_path / "mine.py").write_text("def good(sample, columns):\n    return 9\n")
    made = Mixture((RewardSpec(function="mine.py:good"),), base=tmp_path)
    assert rewards(score(made, make_group("a"))) == [9.0]


def one_parameter(sample):
    return 1.0


@pytest.mark.parametrize(
    ("specs", "says"),
    [
        ((), "at least one reward"),
        ((RewardSpec(function="exact_matsh"),), "known are: exact_match, .*math"),
        ((RewardSpec(function="nowhere.py:f"),), "there is no file"),
        ((RewardSpec(function="model:@judge"),), "was not loaded"),
        ((RewardSpec(function="exact_match"), RewardSpec(function="exact_match")), 'two rewards are called "exact_match"'),
        ((RewardSpec(function="exact_match", options={"colum": "a"}),), "unexpected keyword argument 'colum'"),
        ((RewardSpec(function=register(one_parameter)),), "cannot be called as function"),
        ((RewardSpec(function="math", options={"wrong": 1}),), "use column, limit or processes"),
    ],
)
def test_a_mixture_that_cannot_work_is_refused_before_the_run(specs, says):
    with pytest.raises(SpecError, match=says):
        Mixture(specs)


async def test_a_group_of_quick_rewards_takes_milliseconds():
    made = mixture(by_length)
    groups = [make_group(*"abcdefgh") for _ in range(16)]
    await asyncio.gather(*map(made, groups))
    start = time.perf_counter()
    await asyncio.gather(*map(made, groups))
    assert time.perf_counter() - start < 0.5


def of_steps(sample, columns):
    """A step that is right, one that is wrong, and nothing after them."""
    return [1.0, 0.0, None]


def test_none_among_the_rewards_of_tokens_says_where_no_step_ends():
    (sample,) = score(mixture(of_steps), make_group("abcd")).samples
    assert sample.reward_T[sample.action_T].tolist() == [1.0, 0.0, 0.0]
    assert sample.extras["step_ends_T"][sample.action_T].tolist() == [True, True, False]
    assert not sample.extras["step_ends_T"][~sample.action_T].any()
    assert sample.extras["rewards"] == {"r0": 1.0}


def test_a_reward_of_the_whole_answer_beside_steps_ends_one_at_the_last_token():
    (sample,) = score(mixture(of_steps, by_length), make_group("abcd")).samples
    assert sample.reward_T[sample.action_T].tolist() == [1.0, 0.0, 4.0]
    assert sample.extras["step_ends_T"][sample.action_T].tolist() == [True, True, True]


def test_numbers_alone_say_nothing_about_steps():
    (sample,) = score(mixture(lambda sample, columns: [1.0, 0.0, 0.0]), make_group("abcd")).samples
    assert "step_ends_T" not in sample.extras


@pytest.mark.parametrize("value", [3e38, [1.0, 2e9, 0.0]])
def test_a_score_too_large_to_be_trained_on_fails_the_sample(value):
    (sample,) = score(mixture(lambda sample, columns: value), make_group("abc")).samples
    assert "within ±1e+09" in sample.error


def of_trl(completions, ground_truth, **columns):
    return [1.0 for _ in completions]


def of_verl(data_source, solution_str, ground_truth, extra_info=None):
    return 1.0


@pytest.mark.parametrize(("function", "said"), [(of_trl, "TRL's take lists"), (of_verl, "verl's are called so")])
def test_rewards_with_the_arguments_of_others_say_how_they_are_called_here(function, said):
    with pytest.raises(SpecError, match=said):
        Mixture((RewardSpec(function=register(function)),))

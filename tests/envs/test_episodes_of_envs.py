"""One episode of an environment: its order, its limits, rewards by turn, its end, and failures that are data."""

import asyncio
import sys
import time

import numpy as np
import pytest
from env_examples import PROMPT, after, begun, conversation, played, played_without_end, rewards_of_turns

from penstock.core.columns import was_cut
from penstock.core.errors import EnvError, SpecError
from penstock.data.resolve import register
from penstock.envs.env import Env, Turn
from penstock.envs.episode import Episode
from penstock.envs.making import EPISODES, STUCK, env_class
from penstock.envs.spec import EnvironmentSpec
from penstock.sandbox.threads import StuckError, Threads


class Countdown(Env):
    """Says how many turns are left; each is worth one more than the one before."""

    def __init__(self, columns, start=3):
        super().__init__(columns)
        self.left = start

    async def step(self, said):
        self.left -= 1
        metrics = {"letters": len(said.text)}
        return Turn(f"<{self.left}>", reward=float(said.turn), terminated=self.left == 0, metrics=metrics)


def test_a_prompt_is_answered_once():
    episode = Episode(np.array([5, 6]))
    assert asyncio.run(episode.reset()).tolist() == [5, 6]
    assert asyncio.run(episode.step(after(np.array([5, 6]), "a"))) is None
    with pytest.raises(EnvError, match="single-use"):
        asyncio.run(episode.reset())


def test_an_empty_prompt_is_refused():
    with pytest.raises(EnvError, match="at least one token"):
        Episode(np.array([], np.int32))


def test_an_episode_must_begin_before_it_is_stepped_and_ends_once(threads):
    episode = conversation(lambda *_: None, threads)
    with pytest.raises(EnvError, match="unbegun"):
        asyncio.run(episode.step(after(np.array([1]), "a")))
    played(episode, ["a"])
    with pytest.raises(EnvError, match="a finished episode"):
        asyncio.run(episode.step(after(np.array([1]), "a")))


def test_an_episode_has_observations_turns_with_rewards_and_metrics_that_are_added_up(threads):
    sample, heard = played(conversation(Countdown, threads), ["a", "bc", "d"])
    assert heard == ["<2>", "<1>", None]
    begin = len(PROMPT.text)
    assert sample.extras["turns"] == [
        [begin, begin + 2, 0.0, "stop"],
        [begin + 5, begin + 8, 1.0, "stop"],
        [begin + 11, begin + 13, 2.0, "stop"],
    ]
    assert sample.extras["episode"] == {"turns": 3.0, "letters": 4.0, "truncated": 0.0}
    assert sample.extras["truncated"] is False


def test_the_last_turn_is_judged_and_then_cut(threads):
    sample, heard = played(conversation(Countdown, threads, turns=2), ["a", "b"])
    assert heard[-1] is None
    assert rewards_of_turns(sample) == [0.0, 1.0]
    assert was_cut(sample)


def test_an_episode_that_ended_in_a_turn_of_the_longest_length_was_not_cut(threads):
    sample = played_without_end(conversation(Countdown, threads, options={"start": 1}), "abc")
    assert sample.finish == "length"
    assert not was_cut(sample)


def test_an_episode_without_any_reward_has_earned_0_and_a_function_earns_nothing(threads):
    class Silent(Env):
        async def step(self, said):
            return Turn("on")

    sample, _ = played(conversation(Silent, threads, turns=2), ["a", "b"])
    assert rewards_of_turns(sample) == [None, 0.0]
    sample, _ = played(conversation(lambda *_: "on", threads, turns=2), ["a", "b"])
    assert rewards_of_turns(sample) == [None, None]


def test_tokens_limit_an_episode(threads):
    """Each turn is 2 tokens and each observation 3: the second observation would be the tenth token."""
    sample, heard = played(conversation(Countdown, threads, tokens=10), ["a", "b"])
    assert heard == ["<2>", None]
    assert was_cut(sample)


def test_seconds_limit_an_episode(threads):
    episode = conversation(Countdown, threads, seconds=5.0)
    clock = iter([0.0, 4.0, 6.0])
    object.__setattr__(episode.play, "clock", lambda: next(clock))
    sample, heard = played(episode, ["a", "b"])
    assert heard == ["<2>", None]
    assert sample.extras["episode"]["out_of_time"] == 1.0


def test_a_first_observation_may_take_the_prompts_place(threads):
    class Begins(Countdown):
        def reset(self):
            return "dark"

    assert begun(conversation(Begins, threads)) == "dark"


def test_an_environment_may_answer_in_tokens(threads):
    class Tokens(Env):
        def step(self, said):
            return Turn(np.array([65, 66]))

    assert played(conversation(Tokens, threads), ["a"])[1] == ["AB"]


# ---- functions of a turn


async def reads_the_row(sample, columns, turn):
    await asyncio.sleep(0)
    return columns["word"]


class Tool:
    async def __call__(self, sample, columns, turn):
        return "called"


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda sample, columns, turn: f"{sample.text}{turn}", ["w0", "v1"]),
        (reads_the_row, ["yes"] * 2),
        (Tool(), ["called"] * 2),
    ],
    ids=["plain", "asynchronous", "an object that is called"],
)
def test_what_a_function_says_is_appended(function, expected, threads):
    assert played(conversation(function, threads), ["w", "v"])[1] == expected


def test_none_ends_the_episode(threads):
    sample, heard = played(conversation(lambda *_: None, threads), ["a"])
    assert heard == [None]
    assert not was_cut(sample)


def test_the_policy_has_so_many_turns_and_the_function_is_not_asked_after_the_last(threads):
    asked = []

    def answer(sample, columns, turn):
        asked.append(turn)
        return "on"

    sample, heard = played(conversation(answer, threads, turns=3), ["a", "b", "c"])
    assert heard[-1] is None
    assert asked == [0, 1]
    assert was_cut(sample)


def test_a_function_cannot_change_what_other_samples_see(threads):
    def answer(sample, columns, turn):
        columns["word"] = "no"

    played(conversation(answer, threads), ["a"])
    assert PROMPT.columns == {"word": "yes"}


# ---- failures


async def forever(sample, columns, turn):
    await asyncio.Event().wait()


def slow(sample, columns, turn):
    time.sleep(0.5)


def broken(sample, columns, turn):
    raise ValueError("no such page")


@pytest.mark.parametrize(
    ("function", "message", "fact"),
    [
        (forever, r"took longer than 0.05 s in turn 1: raise environment.deadline", "timed_out"),
        (slow, r"took longer than 0.05 s in turn 1", "timed_out"),
        (broken, r"raised ValueError in turn 1: no such page", "crashed"),
        (lambda *_: 3, r"gave int in turn 1: return a Turn", "crashed"),
        (lambda *_: "", r"said nothing in turn 1: end the episode", "crashed"),
        (lambda *_: sys.exit(), r"failed in turn 1: raised SystemExit", "crashed"),
        (lambda *_: Turn("x", reward=float("nan")), r"gave the reward nan in turn 1", "crashed"),
        (lambda *_: Turn("x", reward="1"), r"gave the reward '1' in turn 1", "crashed"),
        (lambda *_: Turn("x", metrics={"a": float("inf")}), r"gave a metric that is not finite", "crashed"),
    ],
)
def test_a_failure_names_the_environment_the_turn_and_the_fix_and_is_counted(threads, function, message, fact):
    episode = conversation(function, threads, deadline=0.05)
    with pytest.raises(EnvError, match=message):
        played(episode, ["a"])
    failed = episode.annotated(after(np.array([1]), "a").failed("it"))
    assert failed.extras["episode"] == {"turns": 1.0, fact: 1.0, "truncated": 0.0}


def test_an_environment_that_cannot_be_made_fails_its_episode(threads):
    class Broken(Env):
        def __init__(self, columns):
            raise ValueError("no database")

        def step(self, said):
            return Turn(terminated=True)

    with pytest.raises(EnvError, match="raised ValueError in turn 1: no database"):
        played(conversation(Broken, threads), ["a"])


def test_an_error_in_close_keeps_the_sample_and_is_counted(threads):
    class Leaking(Countdown):
        def close(self):
            raise OSError("still open")

    sample, _ = played(conversation(Leaking, threads, turns=1), ["a"])
    assert sample.error is None
    assert sample.extras["episode"]["close_failed"] == 1.0


def test_an_environment_is_closed_also_where_its_episode_is_cancelled(threads):
    closed = []

    class Slow(Env):
        async def step(self, said):
            await asyncio.sleep(10)

        async def close(self):
            await asyncio.sleep(0.01)
            closed.append(True)

    async def cancelled():
        episode = conversation(Slow, threads)

        async def play():
            try:
                await episode.step(after(await episode.reset(), "a"))
            finally:
                await episode.close()

        task = asyncio.create_task(play())
        for wait in (0.01, 0.0):
            await asyncio.sleep(wait)
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.sleep(0.05)

    asyncio.run(cancelled())
    assert closed == [True]


def test_the_deadline_counts_from_when_a_thread_begins(threads):
    """12 episodes of a 0.1 s tool on 4 threads: the last waits 0.2 s, longer than its deadline."""
    episodes = [conversation(lambda *_: time.sleep(0.1) or "done", threads, deadline=0.19) for _ in range(12)]

    async def play():
        samples = [after(await episode.reset(), "a") for episode in episodes]
        return await asyncio.gather(*(e.step(s) for e, s in zip(episodes, samples, strict=True)))

    assert all(context_T is not None for context_T in asyncio.run(play()))


def test_after_257_plain_functions_that_hang_the_next_episode_is_answered(release):
    """One more than may work at a time, all at once, with the limits of a run."""
    threads = Threads("environment", EPISODES, STUCK)

    async def play():
        async def hung():
            episode = conversation(lambda *_: release.wait(60) and None, threads, deadline=0.01)
            with pytest.raises(EnvError, match="took longer"):
                await episode.step(after(await episode.reset(), "a"))

        await asyncio.gather(*(hung() for _ in range(257)))
        return threads.abandoned

    assert asyncio.run(play()) == 257
    assert played(conversation(lambda *_: "free", threads, deadline=60.0), ["a"])[1] == ["free"]


def test_with_too_many_hung_calls_the_run_stops(release):
    threads = Threads("environment", 4, most_abandoned=1)
    with pytest.raises(EnvError, match="took longer"):
        played(conversation(lambda *_: release.wait(5) and None, threads, deadline=0.05), ["a"])
    with pytest.raises(StuckError, match=r'environment ".*": 1 threads of environment are stuck'):
        played(conversation(lambda *_: "free", threads), ["a"])


# ---- specs


def test_a_name_that_nobody_registered_is_refused():
    with pytest.raises(SpecError, match='environment "toolz" is unknown; known are: tools'):
        env_class(EnvironmentSpec(function="toolz"), None)


def test_options_that_do_not_fit_are_refused_before_anything_starts(tmp_path):
    (tmp_path / "mine.py").write_text("def answer(sample, columns, turn, *, patience): ...\n")
    with pytest.raises(SpecError, match=r"cannot be called as \(sample, columns, turn, \*\*options\)"):
        EnvironmentSpec(function="mine.py:answer").check(tmp_path)


def test_an_environment_without_a_step_is_refused_before_the_run():
    class Mute(Env):
        """Never answers."""

    with pytest.raises(SpecError, match=r"has no step; write: async def step\(self, said\)"):
        env_class(EnvironmentSpec(function=register(Mute)), None)


class Graded(Env):
    """Says what an episode is worth that a limit has cut."""

    async def step(self, said):
        return Turn("<more>", reward=None)

    def cut(self):
        return Turn(reward=0.25, metrics={"graded": 1})


@pytest.mark.parametrize("limits", [{"turns": 2}, {"tokens": 10}, {"turns": 1}], ids=str)
def test_a_cut_episode_is_worth_what_its_environment_says(threads, limits):
    sample, heard = played(conversation(Graded, threads, **limits), ["a", "b"][: limits.get("turns", 2)])
    assert heard[-1] is None
    assert was_cut(sample)
    assert rewards_of_turns(sample)[-1] == 0.25
    assert sample.extras["episode"]["graded"] == 1.0


def test_a_turn_that_begins_within_a_thought_is_known_as_such(threads):
    heard = []

    class Thinks(Env):
        async def reset(self):
            return "go<think>\n"

        async def step(self, said):
            heard.append(said.thinking)
            return Turn("on", terminated=said.turn == 1)

    played(conversation(Thinks, threads), ["a", "b"])
    assert heard == [True, False]

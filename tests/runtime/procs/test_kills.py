"""Processes that are killed: nothing is lost, nothing is trained twice, and the weights are those of an undisturbed run."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest
from runs import BATCH, Start, Undisturbed, processes

ROLES = ("generator-0", "reward-0", "learner")


@pytest.mark.parametrize(("recipe", "rounds"), [("letters", 2), pytest.param("experts", 1, id="routes of groups that wait")])
def test_after_kills_of_every_role_a_run_ends_as_if_nothing_had_happened(
    recipe: str, rounds: int, start: Start, undisturbed: Undisturbed
) -> None:
    words = (recipe, "--steps", str(8 * rounds), "--delay", "0.02", "--hold", str(32 * rounds - 4))
    run = start(*words)
    for number, name in enumerate(ROLES * rounds):
        run.until_step(1 + 2 * number)
        run.signal(name, signal.SIGKILL)
    run.assert_ends(undisturbed(*words), 8 * rounds)


def test_noise_of_rewards_is_the_same_after_kills_and_in_one_process(start: Start, undisturbed: Undisturbed) -> None:
    words = ("letters", "--steps", "8", "--reward", "noisy", "--hold", "28")
    run = start(*words)
    for step, name in ((1, "reward-0"), (3, "learner"), (5, "reward-0")):
        run.until_step(step)
        run.signal(name, signal.SIGKILL)
    run.assert_ends(undisturbed(*words), 8)


def test_after_the_kill_of_a_rank_of_the_learner_a_run_ends_as_if_nothing_had_happened(
    start: Start, undisturbed: Undisturbed
) -> None:
    words = ("letters", "--steps", "10", "--grpo.learner.strategy", "FSDP2", "--grpo.learner.strategy.ranks", "2")
    run = start(*words, "--hold", "24")
    run.until_step(5, seconds=120)
    (rank,) = run.ranks_of(run.roles["learner"])
    os.kill(rank, signal.SIGKILL)
    run.assert_ends(undisturbed(*words), 10)
    assert "rank 1 of 2 is gone" in run.text


def test_after_twenty_kills_of_each_role_a_run_ends_as_if_nothing_had_happened(start: Start, undisturbed: Undisturbed) -> None:
    """Twenty rounds; in each, every role dies at a moment of its own, and then the run gets on by a step at least."""
    draws, steps = random.Random(0), 300
    words = ("letters", "--steps", str(steps), "--delay", "0.02", "--hold", str(steps * BATCH - 1))
    run = start(*words)
    run.until_step(1)
    for _ in range(20):
        moments = sorted((draws.random() * 0.5, name) for name in ROLES)
        began, killed = time.monotonic(), dict[str, int]()
        for moment, name in moments:
            time.sleep(max(0.0, began + moment - time.monotonic()))
            killed[name] = run.roles[name]
            assert killed[name] in dict(processes())
            run.signal(name, signal.SIGKILL)
        assert set(killed) == set(ROLES)
        run.until_step(run.step + 1)
        run.until(lambda killed=killed: not killed.items() & run.roles.items(), what="successors")
    assert run.step < steps
    run.assert_ends(undisturbed(*words[:3]), steps)


def test_a_learner_may_die_as_often_as_it_likes_while_it_gets_on_offline(start: Start, undisturbed: Undisturbed) -> None:
    after_each_save = """
def deadly(function, store, *arguments, **more):
    found = function(store, *arguments, **more)
    if arguments[0].position.stage == "judge":
        os.kill(os.getpid(), signal.SIGKILL)
    return found
if name == "learner":
    wrap("penstock.ckpt.store:CheckpointStore.write", deadly)
"""
    words = ("critic", "--judge.steps", "18", "--steps", "2")
    run = start(*words, in_roles=after_each_save)
    run.assert_ends(undisturbed(*words))


MOMENTS = (
    {"learner": ("penstock.runtime.stages.remote_online:save_model", 1)},
    {"learner": ("verb:begin", 1), "generator-0": ("verb:admit", 4), "reward-0": ("verb:take", 2)},
    {"learner": ("penstock.weights.folder:OwnedFolder.__init__", 1), "generator-0": ("penstock.models.files:load_model", 1)},
    {"learner": ("penstock.weights.shared_memory:SharedMemoryPublisher._write", 1), "generator-0": ("verb:put", 6)},
    {"learner": ("penstock.weights.shared_memory:SharedMemoryPublisher._write", 6), "reward-0": ("verb:write", 7)},
    {"learner": ("verb:announce", 5)},
    {"learner": ("verb:lease", 5), "generator-0": ("penstock.weights.shared_memory:_copy", 3)},
    {"learner": ("penstock.stream.stream:LearnerClient.trained", 4), "generator-0": ("penstock.engine.driver:switch", 3)},
    {"learner": ("verb:release", 3)},
    {"learner": ("verb:release", 8)},
    {"learner": ("penstock.ckpt.files:write_manifest", 2)},
    {"learner": ("verb:end", 1)},
    {"learner": ("penstock.runtime.stages:save_model", 1)},
    {"learner": ("penstock.runtime.session:write_json", 1)},
)
"""A role dies once, at the call of this number. The moments of generators and rewards share a run with one of the learner's."""


@pytest.mark.parametrize(
    "moments", MOMENTS, ids=lambda moments: "+".join(f"{place}-{count}" for place, count in moments.values())
)
def test_after_kills_at_delicate_moments_a_run_ends_as_if_nothing_had_happened(
    moments: dict[str, tuple[str, int]], start: Start, undisturbed: Undisturbed
) -> None:
    once = f"""
def kill():
    open(f"killed-{{name}}", "w").close()
    os.kill(os.getpid(), signal.SIGKILL)
for role, (place, count) in {moments!r}.items():
    if name == role and not os.path.exists(f"killed-{{role}}"):
        arm(place, count, kill)
"""
    run = start("letters", "--steps", "8", in_roles=once)
    run.until(lambda: all((run.folder / f"killed-{role}").exists() for role in moments), what="kills")
    run.assert_ends(undisturbed("letters", "--steps", "8"), 8)

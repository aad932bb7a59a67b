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


MOMENTS = {
    "learner": (
        ("penstock.runtime.stages.remote_online:save_model", 1),
        ("verb:begin", 1),
        ("penstock.weights.folder:OwnedFolder.__init__", 1),
        ("penstock.weights.shared_memory:SharedMemoryPublisher._write", 1),
        ("penstock.weights.shared_memory:SharedMemoryPublisher._write", 6),
        ("verb:announce", 5),
        ("verb:lease", 5),
        ("penstock.stream.stream:LearnerClient.trained", 4),
        ("verb:release", 3),
        ("verb:release", 8),
        ("penstock.ckpt.files:write_manifest", 2),
        ("verb:end", 1),
        ("penstock.runtime.stages:save_model", 1),
        ("penstock.runtime.session:write_json", 1),
    ),
    "generator-0": (
        ("penstock.models.files:load_model", 1),
        ("verb:admit", 4),
        ("verb:put", 6),
        ("penstock.weights.shared_memory:_copy", 3),
        ("penstock.engine.driver:switch", 3),
    ),
    "reward-0": (
        ("verb:take", 2),
        ("verb:write", 7),
    ),
}


@pytest.mark.parametrize(("name", "place", "count"), [(name, *at) for name in MOMENTS for at in MOMENTS[name]])
def test_after_a_kill_at_a_delicate_moment_a_run_ends_as_if_nothing_had_happened(
    name: str, place: str, count: int, start: Start, undisturbed: Undisturbed
) -> None:
    once = f"""
if name == {name!r} and not os.path.exists("killed"):
    def kill():
        open("killed", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    arm({place!r}, {count}, kill)
"""
    run = start("letters", "--steps", "8", in_roles=once)
    run.until(lambda: (run.folder / "killed").exists(), what="kill")
    run.assert_ends(undisturbed("letters", "--steps", "8"), 8)

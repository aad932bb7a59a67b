"""Runs with several of a role, with lag, and with stages of their own: all end, and train every batch they should."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from runs import BATCH, Start, Started, events, trained

LAG = ("letters", "--roles.generators", "2", "--grpo.max_lag", "2", "--delay", "0.02")
VARIANTS = {
    "with groups to choose from": ("--grpo.on_stale", "drop", "--grpo.oversample", "3"),
    "with replaced groups": ("--grpo.dynamic_sampling", "2"),
    "over files": ("--roles.channel", "disk"),
    "over a process group": ("--roles.channel", "process group"),
    "with several reward workers": ("--roles.rewards", "2"),
    "at batch borders": ("--grpo.kv", "drain"),
}
"""What else the runs of the next test do not have."""


def assert_all_batches(run: Started, steps: int) -> None:
    """Each version was trained on a full batch, and no ordinal twice."""
    run.assert_ends()
    batches = trained(run.folder)
    assert sorted(batches) == list(range(steps))
    assert all(len(batch) == BATCH for batch in batches.values())
    assert len({ordinal for batch in batches.values() for ordinal in batch}) == steps * BATCH
    told = {event["step"] for event in events(run.run) if event["kind"] == "metrics"}
    assert told == set(range(1, steps + 1))


@pytest.mark.parametrize("variant", VARIANTS)
def test_two_generators_with_lag_train_every_batch(variant: str, start: Start) -> None:
    assert_all_batches(start(*LAG, "--steps", "12", *VARIANTS[variant]), 12)


@pytest.mark.parametrize("on_stale", ["wait", "drop", "mask"])
def test_kills_of_roles_that_run_ahead_lose_and_double_nothing(on_stale: str, start: Start) -> None:
    draws = random.Random(on_stale)
    run = start(*LAG, "--steps", "60", "--hold", "239", "--grpo.on_stale", on_stale)
    run.until_step(1)
    for number in range(10):
        name = ("generator-0", "learner", "generator-1", "reward-0", "learner")[number % 5]
        time.sleep(draws.random() * 0.2)
        killed = run.signal(name, signal.SIGKILL)
        run.until(lambda name=name, killed=killed: run.roles[name] != killed, what="a successor")
        run.until_step(min(run.step + 1, 58))
    run.go()
    assert_all_batches(run, 60)


def test_a_reward_model_scores_in_processes_of_its_own(start: Start) -> None:
    assert_all_batches(start("critic", "--steps", "6", "--roles.generators", "2", "--ppo.max_lag", "2"), 6)


COLUMNS = """
import numpy
def keeping(function, labeller, groups):
    found = function(labeller, groups)
    rows = [numpy.asarray(row) for group in found["reference"] for row in group]
    with open(f"reference-{len(os.listdir('.'))}.npy", "wb") as out:
        numpy.save(out, numpy.concatenate(rows))
    return found
if name == "learner":
    wrap("penstock.loops.learn:Labeller.columns", keeping)
"""


def test_a_reference_of_its_own_agrees_with_the_learners(start: Start, tmp_path: Path) -> None:
    found = {}
    for references in ("0", "1"):
        home = tmp_path / references
        home.mkdir()
        run = start("anchored", "--steps", "1", "--roles.references", references, folder=home, in_roles=COLUMNS)
        run.assert_ends()
        assert ("reference-0" in run.roles) is (references == "1")
        (file,) = home.glob("reference-*.npy")
        found[references] = np.load(file)
    np.testing.assert_allclose(found["1"], found["0"], rtol=0, atol=1e-5)

"""A run killed anywhere resumes to the very bytes of a run that was not."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_examples import RECIPES, Outcome
from processes import Server, metrics, outcome

MOMENTS = {
    "in the offline stage": ("tiny", "penstock.loops.learn:Trainer.step", 3),
    "in the online stage": ("tiny", "penstock.loops.learn:Trainer.step", 7),
    "in a later evaluation": ("tiny", "penstock.runtime.measuring:evaluate", 2),
    "in a checkpoint of the second stage": ("tiny", "penstock.ckpt.files:write_manifest", 3),
    "between stages": ("tiny", "penstock.runtime.session:prepare", 2),
    "between a stage's model and its summary": ("tiny", "penstock.runtime.session:Session.finished", 2),
    "in a reward model": ("everything", "penstock.loops.learn:Trainer.step", 5),
    "between two minibatches of PPO": ("everything", "penstock.loops.learn:Trainer.step", 6 + 4 * 2 + 2),
    "in the last checkpoint of PPO": ("everything", "penstock.ckpt.files:write_manifest", 6),
    "in the PPO of an encoder-decoder": ("encoder_decoder", "penstock.loops.learn:Trainer.step", 6 + 4 * 2 + 2),
}


def assert_same(folder: Path, whole: Path) -> None:
    assert outcome(folder) == outcome(whole)
    assert metrics(folder) == metrics(whole)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_run_ends_as_if_nothing_had_happened(
    moment: str, server: Server, tmp_path: Path, assert_goes_on: Callable[..., Outcome]
) -> None:
    recipe, place, count = MOMENTS[moment]
    killed = server.run(tmp_path, "train", f"{RECIPES}:{recipe}", "--name", "run", first=f"arm({place!r}, {count})")
    assert killed.code == -9, killed.text
    assert_goes_on(recipe=recipe)


def test_a_run_killed_again_and_again_ends_as_if_nothing_had_happened(
    server: Server, tmp_path: Path, assert_goes_on: Callable[..., Outcome]
) -> None:
    words = ("train", f"{RECIPES}:everything", "--name", "run")
    for count in (4, 5, 3, 6):
        killed = server.run(tmp_path, *words, first=f"arm('penstock.loops.learn:Trainer.step', {count})")
        assert killed.code == -9, killed.text
        words = ("train", "--resume", "runs/run")
    assert_goes_on(recipe="everything")


def test_the_same_seed_gives_the_same_bytes(server: Server, tmp_path: Path, uninterrupted: Callable[..., Path]) -> None:
    again = server.run(tmp_path, "train", f"{RECIPES}:everything", "--name", "run")
    assert again.code == 0, again.text
    assert_same(tmp_path / "runs" / "run", uninterrupted("everything"))


def test_another_seed_gives_another_model(uninterrupted: Callable[..., Path]) -> None:
    assert outcome(uninterrupted("tiny", 1)) != outcome(uninterrupted("tiny", 0))


CALLS = {
    "penstock.loops.learn:Trainer.step": {"tiny": (1,), "everything": (10, 14)},
    "penstock.runtime.measuring:evaluate": {"tiny": (3,), "everything": (1,)},
    "penstock.ckpt.files:write_state": {"tiny": (16,), "everything": (1, 6)},
    "penstock.ckpt.files:write_manifest": {"tiny": (2,), "everything": (1, 3)},
    "penstock.ckpt.store:CheckpointStore._rename": {"tiny": (1, 4), "everything": (2,)},
    "penstock.ckpt.store:CheckpointStore._discard": {"everything": (1, 3)},
    "penstock.core.events:EventLog.emit": {"tiny": (1,), "everything": (11, 21)},
    "penstock.runtime.stages:save_model": {"tiny": (2,), "everything": (1, 3)},
    "penstock.runtime.session:write_json": {"tiny": (1,), "everything": (3, 4)},
}
"""By place, calls in either recipe. Pairwise: the first one and a late one of each place, the first in one recipe alone."""


@pytest.mark.parametrize(("place", "recipe"), [(place, recipe) for place, calls in CALLS.items() for recipe in calls])
def test_a_kill_at_any_call(
    place: str, recipe: str, server: Server, tmp_path: Path, assert_goes_on: Callable[..., Outcome]
) -> None:
    for count in CALLS[place][recipe]:
        name = f"run-{count}"
        killed = server.run(tmp_path, "train", f"{RECIPES}:{recipe}", "--name", name, first=f"arm({place!r}, {count})")
        assert killed.code == -9, killed.text
        assert_goes_on(f"{RECIPES}:{recipe}", recipe=recipe, folder=f"runs/{name}")


def test_kills_at_random_times(server: Server, tmp_path: Path, uninterrupted: Callable[..., Path]) -> None:
    """One run, killed after a random time of each of its lives, until it ends by itself."""
    draws, words, lives = random.Random(0), ("train", f"{RECIPES}:everything", "--name", "run"), 0
    while True:
        started = server.start(tmp_path, *words)
        if lives < 12:
            time.sleep(0.1 + draws.random() * 0.5)
            started.signal(9)
        lives += 1
        if started.wait() == 0:
            break
        if (tmp_path / "runs" / "run" / "run.json").exists():
            words = ("train", "--resume", "runs/run")
    assert lives > 1
    assert_same(tmp_path / "runs" / "run", uninterrupted("everything"))

"""Processes with ``max_lag=0`` do what one process does, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from runs import Start, assert_each_trained_once, weights

OTHERS = ("anchored", "critic", "encoder_decoder", "experts")


@pytest.mark.parametrize("recipe", ["letters", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_processes_end_at_the_weights_of_one_process(
    recipe: str, start: Start, tmp_path: Path, undisturbed: Callable[..., Path]
) -> None:
    run = start(recipe, "--steps", "6")
    assert run.wait() == 0, run.everything()
    assert_each_trained_once(tmp_path, 6)
    assert weights(run.run) == weights(undisturbed(recipe, "--steps", "6"))
    run.assert_clean()


@pytest.mark.slow
def test_a_run_as_a_user_starts_it_ends_at_the_same_weights(
    start: Start, tmp_path: Path, undisturbed: Callable[..., Path]
) -> None:
    """Here every role imports for itself, so it shows what a role knows only because another one is its parent."""
    run = start("letters", "--steps", "6", forking=False)
    assert run.wait(100) == 0, run.everything()
    assert weights(run.run) == weights(undisturbed("letters", "--steps", "6"))
    run.assert_clean()

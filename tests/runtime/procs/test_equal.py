"""Processes with ``max_lag=0`` do what one process does, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from runs import Start, assert_each_trained_once, events, weights

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


def computed(run: Path) -> tuple[list[str], list[float]]:
    """Log-probs of held-out answers, packed, and how far learner and generator were apart at each step."""
    rows = [row for event in events(run) for row in event.get("rows", ()) if row["held_out"]]
    found = [event["values"].get("mismatch/mean") for event in events(run) if event["kind"] == "metrics"]
    return [row["tokens"]["logp"] for row in rows], [gap for gap in found if gap is not None]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "mixed"])
def test_generator_and_evaluator_processes_compute_in_the_learners_type(
    dtype: str, start: Start, undisturbed: Callable[..., Path]
) -> None:
    """In one process they compute with the learner's own weights, in its type."""
    words = ("--steps", "4", "--grpo.evaluation.every", "2", "--grpo.learner.dtype", dtype)
    run = start("examined", *words, "--evaluator")
    assert run.wait() == 0, run.everything()
    here, exact = undisturbed("examined", *words), undisturbed("examined", *words[:4])
    assert weights(run.run) == weights(here) != weights(exact)
    held_out, gaps = computed(run.run)
    assert (held_out, gaps) == computed(here)
    assert len(gaps) == 4
    assert len(held_out) == 3 * 3 != 0
    assert held_out[:3] != computed(exact)[0][:3]
    run.assert_clean()

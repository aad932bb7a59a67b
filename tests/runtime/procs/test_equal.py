"""Processes with ``max_lag=0`` do what one process does, bit for bit."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from runs import Start, Undisturbed, events, weights

OTHERS = ("anchored", "critic", "encoder_decoder", "experts")


@pytest.mark.parametrize("recipe", ["letters", *OTHERS])
def test_processes_end_at_the_weights_of_one_process(
    recipe: str, start: Start, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    run = start(recipe, "--steps", "6")
    run.assert_ends(undisturbed(recipe, "--steps", "6"), 6)


def test_a_run_as_a_user_starts_it_ends_at_the_same_weights(start: Start, tmp_path: Path, undisturbed: Undisturbed) -> None:
    """Here every process imports for itself, so it shows what a role knows only because another one is its parent; each of them
    has a seed of its own for hashes, before the kill and after it, so it shows where the order of a set decides."""
    run = start("letters", "--steps", "6", forking=False)
    run.until_step(2)
    run.signal("supervisor", signal.SIGKILL)
    start(forking=False).assert_ends(undisturbed("letters", "--steps", "6"))


def computed(run: Path) -> tuple[list[str], list[float]]:
    """Log-probs of held-out answers, packed, and how far learner and generator were apart at each step."""
    rows = [row for event in events(run) for row in event.get("rows", ()) if row["held_out"]]
    found = [event["values"].get("mismatch/mean") for event in events(run) if event["kind"] == "metrics"]
    return [row["tokens"]["logp"] for row in rows], [gap for gap in found if gap is not None]


@pytest.mark.parametrize("dtype", ["bfloat16", "mixed"])
def test_generator_and_evaluator_processes_compute_in_the_learners_type(
    dtype: str, start: Start, undisturbed: Undisturbed
) -> None:
    """In one process they compute with the learner's own weights, in its type."""
    words = ("--steps", "4", "--grpo.evaluation.every", "2", "--grpo.learner.dtype", dtype)
    run = start("examined", *words, "--evaluator")
    here, exact = undisturbed("examined", *words), undisturbed("examined", *words[:4])
    run.assert_ends(here)
    assert weights(here) != weights(exact)
    held_out, gaps = computed(run.run)
    assert (held_out, gaps) == computed(here)
    assert len(gaps) == 4
    assert len(held_out) == 3 * 3 != 0
    assert held_out[:3] != computed(exact)[0][:3]

"""Roles are open: one from outside the package is a process of the run, and no group is trained on without its column."""

from __future__ import annotations

from runs import BATCH, Start, trained, whole_lines


def test_a_role_of_ones_own_writes_the_column_that_training_waits_for(start: Start) -> None:
    run = start("lettered", "--steps", "3")
    run.assert_ends()
    assert "letters-0" in run.roles
    ordinals = {ordinal for batch in trained(run.folder).values() for ordinal in batch}
    assert len(ordinals) == 3 * BATCH
    assert ordinals <= set(whole_lines(run.folder / "letters.jsonl"))

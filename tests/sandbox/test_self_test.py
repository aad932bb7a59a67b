"""What the self-test of a jail makes of a program that starts many processes."""

from __future__ import annotations

import pytest

from penstock.sandbox.attacks import Victim
from penstock.sandbox.program import Outcome


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (Outcome(exit=0, stdout="12\n"), []),
        (Outcome(exit=-9, stopped="processes"), []),
        (Outcome(exit=0, stdout="13\n"), ["starts more processes than allowed"]),
        (Outcome(exit=-9, stopped="seconds"), ["the self-test of many processes did not finish (seconds)"]),
    ],
)
def test_a_busy_machine_is_not_taken_for_a_jail_that_lets_processes_through(outcome: Outcome, said: list[str]) -> None:
    assert Victim.many(outcome, 12) == said

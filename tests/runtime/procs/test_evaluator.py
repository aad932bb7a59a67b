"""A process that evaluates beside training measures the version it was asked for."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from runs import Start, Undisturbed, events


def evaluations(run: Path) -> dict[int, float]:
    """The held-out reward by step; each step's is there once."""
    found = (event for event in events(run) if event["kind"] == "metrics")
    measured = [(one["step"], one["values"]["evaluation/reward"]) for one in found if "evaluation/reward" in one["values"]]
    assert len(dict(measured)) == len(measured)
    return dict(measured)


ONCE_OPEN = """
if name == {name!r} and not os.path.exists("killed"):
    def kill():
        open("killed", "w").close()
        {action}
    arm({place!r}, 1, kill)
"""
"""Code of a role that does something the first time that an evaluation is open: it was asked for, and is not answered."""

DIE = "os.kill(os.getpid(), signal.SIGKILL)"
LEARNER_DIES = """import json
        learner = dict(json.loads(line) for line in open("roles.jsonl"))["learner"]
        os.kill(learner, signal.SIGKILL)
        import time; time.sleep(1.0)"""
BOTH_DIE = LEARNER_DIES.replace("import time; time.sleep(1.0)", DIE)


def test_the_evaluator_measures_what_the_learner_would_have_measured(start: Start, undisturbed: Undisturbed) -> None:
    run = start("examined", "--evaluator")
    run.assert_ends()
    assert evaluations(run.run) == evaluations(undisturbed("examined"))
    assert set(evaluations(run.run)) == {0, 3, 6, 9}


DEATHS = {
    "the evaluator, before it looks for the weights": ("penstock.weights.shared_memory:SharedMemorySubscriber.open", DIE),
    "the evaluator, once it has measured": ("verb:answer", DIE),
    "the learner, before the evaluator looks for the weights": (
        "penstock.weights.shared_memory:SharedMemorySubscriber.open", LEARNER_DIES,
    ),
    "the learner, once the evaluator has measured": ("verb:answer", LEARNER_DIES),
    "both": ("verb:answer", BOTH_DIE),
}  # fmt: skip


@pytest.mark.parametrize("death", DEATHS)
def test_an_evaluation_that_is_open_at_a_death_is_neither_lost_nor_doubled(
    death: str, start: Start, undisturbed: Undisturbed
) -> None:
    """A learner that is started again deletes the weights that were to be evaluated, and asks again."""
    place, action = DEATHS[death]
    run = start("examined", "--evaluator", in_roles=ONCE_OPEN.format(name="evaluator-0", place=place, action=action))
    run.until(lambda: (run.folder / "killed").exists(), what="death")
    run.assert_ends()
    assert evaluations(run.run) == evaluations(undisturbed("examined"))
    assert len(run.notes("role restarted")) <= 2


def test_an_evaluation_that_is_open_at_a_stop_is_asked_again_by_the_resume(start: Start, undisturbed: Undisturbed) -> None:
    """The reward of the held-out prompts waits, so that the stop comes while the evaluation of step 3 is open."""
    held = """
if name == "evaluator-0":
    import time
    def late(function, *arguments, **more):
        while arguments[1] == "answer" and not os.path.exists("go"):
            time.sleep(0.01)
        return function(*arguments, **more)
    wrap("penstock.stream.verbs:carried", late)
"""
    run = start("examined", "--evaluator", in_roles=held)
    run.until_step(3)
    run.signal("supervisor", signal.SIGINT)
    run.go()
    assert run.wait() == 130, run.everything()
    run.until_gone()
    resumed = start()
    resumed.assert_ends()
    assert evaluations(resumed.run) == evaluations(undisturbed("examined"))

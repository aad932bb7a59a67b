"""What cannot go on ends by itself, with one line that names the culprit; what can be mended goes on with ``--resume``."""

from __future__ import annotations

import pytest
from runs import Start, Undisturbed, events

LEARNER = "if name == 'learner':\n    "
NO_MORE = """
import resource
def full(function, *arguments, **more):
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    return function(*arguments, **more)
"""
"""``full`` is a call on a disk on which no file may become longer than half a megabyte."""
FULL = "import resource\nif name == {name!r}:\n    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
NOT_LOADED = """
if name == "reward-0":
    wrap("penstock.data.resolve:resolve", lambda *_: 1 / 0)
    wrap("penstock.rewards.runner:resolve", lambda *_: 1 / 0)
"""
HOPELESS: dict[str, tuple[tuple[str, ...], str, tuple[str, ...]]] = {
    "a reward that always hangs": (
        ("--steps", "3", "--reward", "always_hanging"),
        "",
        ("nothing to learn from", 'reward "always_hanging" timed out after 1 s on prompt'),
    ),
    "a reward that cannot be loaded": ((), NOT_LOADED, ("reward-0", "ZeroDivisionError", "logs/reward-0.log")),
    "a generator that cannot start": (
        (),
        "if name == 'generator-0':\n    open('runs/run/roles/grpo/model.safetensors', 'w').close()\n",
        ("generator-0", "cannot do its work", "it last said: ModelError", "logs/generator-0.log"),
    ),
    "a learner that cannot live": (
        (),
        LEARNER + "arm('penstock.loops.learn:Trainer.step', 1)",
        ("the learner was killed by SIGKILL", "without finishing a step"),
    ),
    "no shared memory for weights": (
        ("--roles.channel", "shared memory"),
        NO_MORE + LEARNER + "wrap('penstock.weights.shared_memory:Buffer.__init__', full)",
        ("--shm-size", "channel disk"),
    ),
    "no disk for weights": (
        ("--roles.channel", "disk"),
        NO_MORE + LEARNER + "wrap('penstock.weights.disk:save_file', full)",
        ("cannot be written", "make room"),
    ),
}
"""Options of a run, what its roles do first, and what its last line says."""


@pytest.mark.parametrize("case", HOPELESS)
def test_what_cannot_go_on_ends_the_run_with_a_line_that_names_it(case: str, start: Start) -> None:
    words, in_roles, parts = HOPELESS[case]
    run = start("letters", *words, in_roles=in_roles)
    run.assert_refused(*parts)
    assert case != "a generator that cannot start" or len(run.notes("role restarted")) <= 1


def test_a_reward_that_hangs_fails_its_samples_and_names_them(start: Start, undisturbed: Undisturbed) -> None:
    words = ("letters", "--steps", "3", "--reward", "hanging")
    run = start(*words)
    run.assert_ends(undisturbed(*words))
    errors = [row["error"] for e in events(run.run) if e["kind"] == "samples" for row in e["rows"] if row["error"]]
    assert 'reward "hanging" timed out after 1 s on prompt' in errors[0]


def test_a_prompt_that_kills_its_reward_workers_ends_the_run(start: Start) -> None:
    run = start("letters", "--steps", "4", "--reward", "deadly")
    run.assert_refused("ordinal", "9", "reward-0", "10 workers in a row died", "--resume runs/run")
    assert len(run.notes("role restarted")) >= 1
    assert sorted(e["step"] for e in events(run.run) if e["kind"] == "metrics") == [1, 2]


def test_a_full_disk_is_one_line_and_the_run_goes_on_once_there_is_room(start: Start, undisturbed: Undisturbed) -> None:
    words = ("letters", "--steps", "8")
    full = NO_MORE + LEARNER + "arm('penstock.ckpt.files:write_state', 7, lambda: full(lambda: None))"
    run = start(*words, in_roles=full)
    run.assert_refused("runs/run/checkpoints", "--resume runs/run")
    start().assert_ends(undisturbed(*words), 8)


def test_a_generator_that_cannot_write_its_tape_ends_the_run(start: Start) -> None:
    """Its log cannot be written either, so the run's log must say why."""
    run = start("letters", "--steps", "8", in_roles=FULL.format(name="generator-0"))
    run.assert_refused("generator-0", "--resume runs/run")
    assert "File too large" in run.notes("role failed")[0]["reason"]


def test_a_full_disk_does_not_disturb_a_reward_worker(start: Start, undisturbed: Undisturbed) -> None:
    words = ("letters", "--steps", "8")
    run = start(*words, in_roles=FULL.format(name="reward-0"))
    run.assert_ends(undisturbed(*words))


def test_a_row_that_cannot_travel_ends_the_run_before_anything_is_generated(start: Start) -> None:
    run = start("dated")
    run.assert_refused("rows row", "cannot go to the run's other processes", "date")
    assert "generator-0" not in run.roles

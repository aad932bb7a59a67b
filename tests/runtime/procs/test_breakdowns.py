"""What cannot go on ends by itself, with one line that names the culprit; what can be mended goes on with ``--resume``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from runs import Start, assert_each_trained_once, events, weights

LEARNER = "if name == 'learner':\n    "
NO_MORE = """
import resource
def full(function, *arguments, **more):
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    return function(*arguments, **more)
"""
"""``full`` is a call on a disk on which no file may become longer than half a megabyte."""


@pytest.mark.slow
def test_a_reward_that_hangs_fails_its_samples_and_names_them(start: Start, undisturbed: Callable[..., Path]) -> None:
    words = ("letters", "--steps", "3", "--reward", "hanging")
    run = start(*words)
    assert run.wait() == 0, run.everything()
    errors = [row["error"] for e in events(run.run) if e["kind"] == "samples" for row in e["rows"] if row["error"]]
    assert 'reward "hanging" timed out after 1 s on prompt' in errors[0]
    assert weights(run.run) == weights(undisturbed(*words))
    run.assert_clean()


@pytest.mark.slow
def test_a_reward_that_always_hangs_ends_the_run(start: Start) -> None:
    start("letters", "--steps", "3", "--reward", "always_hanging").assert_refused(
        "nothing to learn from", 'reward "always_hanging" timed out after 1 s on prompt'
    )


@pytest.mark.slow
def test_a_prompt_that_kills_its_reward_workers_ends_the_run(start: Start) -> None:
    run = start("letters", "--steps", "4", "--reward", "deadly")
    run.assert_refused("ordinal", "9", "reward-0", "10 workers in a row died", "--resume runs/run")
    assert len(run.notes("role restarted")) >= 1
    assert sorted(e["step"] for e in events(run.run) if e["kind"] == "metrics") == [1, 2]


@pytest.mark.slow
def test_a_generator_that_cannot_start_ends_the_run(start: Start) -> None:
    damaged = "if name == 'generator-0':\n    open('runs/run/roles/grpo/model.safetensors', 'w').close()\n"
    run = start("letters", in_roles=damaged)
    run.assert_refused("generator-0", "cannot do its work", "it last said: ModelError", "logs/generator-0.log")
    assert len(run.notes("role restarted")) <= 1


@pytest.mark.slow
def test_a_reward_that_cannot_be_loaded_ends_the_run(start: Start, tmp_path: Path) -> None:
    only_in_learner = "if name == 'reward-0':\n    wrap('penstock.data.resolve:resolve', lambda *_: 1 / 0)\n"
    only_in_learner += "    wrap('penstock.rewards.runner:resolve', lambda *_: 1 / 0)\n"
    start("letters", in_roles=only_in_learner).assert_refused("reward-0", "ZeroDivisionError", "logs/reward-0.log")


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_the_run_goes_on_once_there_is_room(start: Start, undisturbed: Callable[..., Path]) -> None:
    words = ("letters", "--steps", "8")
    full = NO_MORE + LEARNER + "arm('penstock.ckpt.files:write_state', 7, lambda: full(lambda: None))"
    run = start(*words, in_roles=full)
    run.assert_refused("runs/run/checkpoints", "--resume runs/run")
    resumed = start()
    assert resumed.wait() == 0, resumed.everything()
    assert_each_trained_once(run.folder, 8)
    assert weights(run.run) == weights(undisturbed(*words))


@pytest.mark.slow
@pytest.mark.parametrize("channel", ["shared memory", "disk"])
def test_no_room_for_weights_says_how_to_mend_it(channel: str, start: Start) -> None:
    place = {"shared memory": "weights.shared_memory:Buffer.__init__", "disk": "weights.disk:save_file"}[channel]
    run = start("letters", "--roles.channel", channel, in_roles=NO_MORE + LEARNER + f"wrap('penstock.{place}', full)")
    told = {"shared memory": ("--shm-size", "channel disk"), "disk": ("cannot be written", "make room")}[channel]
    run.assert_refused(*told)


@pytest.mark.slow
def test_a_generator_that_cannot_write_its_tape_ends_the_run(start: Start) -> None:
    """Its log cannot be written either, so the run's log must say why."""
    run = start("letters", "--steps", "8", in_roles="import resource\n" + FULL.format(name="generator-0"))
    run.assert_refused("generator-0", "--resume runs/run")
    assert "File too large" in run.notes("role failed")[0]["reason"]


FULL = "if name == {name!r}:\n    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"


@pytest.mark.slow
def test_a_full_disk_does_not_disturb_a_reward_worker(start: Start, undisturbed: Callable[..., Path]) -> None:
    words = ("letters", "--steps", "8")
    run = start(*words, in_roles="import resource\n" + FULL.format(name="reward-0"))
    assert run.wait() == 0, run.everything()
    assert weights(run.run) == weights(undisturbed(*words))


@pytest.mark.slow
def test_a_learner_that_cannot_live_ends_the_run(start: Start) -> None:
    run = start("letters", in_roles=LEARNER + "arm('penstock.loops.learn:Trainer.step', 1)")
    run.assert_refused("the learner was killed by SIGKILL", "without finishing a step")


def test_a_row_that_cannot_travel_ends_the_run_before_anything_is_generated(start: Start) -> None:
    run = start("dated")
    run.assert_refused("rows row", "cannot go to the run's other processes", "date")
    assert "generator-0" not in run.roles

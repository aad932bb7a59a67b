"""What ran in several processes is replayed in one, to the same weights."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from runs import Start, Started, whole_lines

EQUAL = "steps replayed: loss, gradient_norm, reward/mean are equal in each, and so are the weights of"
Replay = Callable[..., str]


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Replay:
    """``replayed(run)``: the last line of a replay of a run that has ended in order."""
    from penstock.cli.main import main

    def last_line(run: Started) -> str:
        run.assert_ends()
        monkeypatch.chdir(run.folder)
        capsys.readouterr()
        code = main(["replay", "runs/run"])
        said = capsys.readouterr()
        assert code == 0, said.out + said.err
        return said.out.splitlines()[-1]

    return last_line


CHOICE = ("--grpo.oversample", "2", "--grpo.sampling.max_new_tokens", "24")
RUNS = {
    "one generator that runs ahead": ("letters", "--grpo.sampling.max_new_tokens", "12"),
    "two generators that choose what is ready and recompute": (
        "anchored", *CHOICE, "--grpo.on_stale", "mask", "--grpo.kv", "recompute",
        "--roles.generators", "2", "--roles.references", "1",
    ),
    "groups that are dropped and updates that abort": ("letters", *CHOICE, "--grpo.on_stale", "drop", "--grpo.kv", "abort"),
    "groups that are dropped and updates at borders": ("letters", *CHOICE, "--grpo.on_stale", "drop", "--grpo.kv", "drain"),
}  # fmt: skip


@pytest.mark.parametrize("words", RUNS.values(), ids=RUNS)
def test_a_run_with_lag(words: tuple[str, ...], start: Start, replayed: Replay) -> None:
    assert replayed(start(*words, "--steps", "8", "--grpo.max_lag", "1")).startswith(f"8 {EQUAL}")


def test_turns_of_an_environment_that_once_was_too_slow(start: Start, replayed: Replay) -> None:
    environment = Path(__file__).parents[2] / "cli" / "tiny_recipes.py"
    dialogue = {
        "kind": "EnvironmentSpec", "function": f"{environment}:hesitant", "turns": 3, "deadline": 0.3,
        "options": {"prompt": "aca"},
    }  # fmt: skip
    run = start("letters", "--steps", "8", "--grpo.max_lag", "1", "--grpo.environment", json.dumps(dialogue))
    run.until_step(7)
    (run.folder / "quick").touch()
    assert [line["failed"][0][1] for line in whole_lines(run.run / "schedule/grpo/leases.jsonl") if line["failed"]] == [1]
    assert replayed(run).startswith(f"8 {EQUAL}")


def test_a_run_that_was_stopped_and_went_on(start: Start, replayed: Replay) -> None:
    words = ("letters", "--steps", "10", "--grpo.max_lag", "1", "--delay", "0.02")
    run = start(*words)
    run.until_step(4)
    run.signal("supervisor", signal.SIGINT)
    assert run.wait(30) == 130, run.everything()
    assert replayed(start()).startswith(f"10 {EQUAL}")


def test_a_run_whose_generator_learner_and_whole_were_killed(start: Start, replayed: Replay) -> None:
    run = start("letters", "--steps", "14", "--grpo.max_lag", "1", "--delay", "0.02", "--hold", "52")
    for step, name in ((2, "generator-0"), (5, "learner")):
        run.until_step(step)
        run.signal(name, signal.SIGKILL)
    run.until_step(8)
    run.kill_everyone()
    run.until_gone(15)
    assert replayed(start()).startswith(f"14 {EQUAL}")

"""The commands when all is well: help at once, recipes, explain, eval, generate, report; pipes that close."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_examples import RECIPES, Penstock
from processes import Server

from penstock.cli.commands.generate import harmless
from penstock.cli.main import COMMANDS
from penstock.core.errors import SpecError
from penstock.recipes.quickstart import quickstart
from penstock.runtime.check import check_stages
from penstock.runtime.measuring import pick


def test_help_names_every_command(penstock: Penstock) -> None:
    shown = penstock("--help")
    assert shown.code == 0
    assert all(f" • {command} " in shown.out for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_every_command_has_help(command: str, flag: str, penstock: Penstock) -> None:
    shown = penstock(command, flag)
    assert shown.code == 0
    assert shown.out.startswith(f"usage: penstock {command}")
    assert shown.err == ""


TINY = f"{RECIPES}:tiny"


@pytest.mark.parametrize(
    ("recipe", "parts"),
    [
        (TINY, ("SFT and GRPO on letters.", "--steps INT", "GRPO steps. (default: 4)")),
        (TINY, ("--grpo.FIELD VALUE  of a stage (sft, grpo)", "--grpo.learner.learning_rate 1e-4")),
        ("gsm8k", ("--model STR", "--grpo.FIELD VALUE")),
    ],
    ids=["its purpose and its flags", "how to set any field", "a value that it needs"],
)
def test_a_recipes_help_shows(recipe: str, parts: tuple[str, ...], penstock: Penstock) -> None:
    shown = penstock("train", recipe, "--help")
    assert shown.code == 0
    for part in parts:
        assert part in shown.out


def test_recipes_lists_each_with_its_purpose(penstock: Penstock) -> None:
    shown = penstock("recipes")
    assert shown.code == 0
    names = [line.split()[0] for line in shown.out.splitlines() if line and not line.startswith("penstock ")]
    assert {"quickstart", "sentiment", "gsm8k", "chat_preferences"} <= set(names)
    assert (inspect.getdoc(quickstart) or "nothing").splitlines()[0] in shown.out


@pytest.mark.parametrize(
    "words", [["recipes"], ["--help"], ["explain", "quickstart"], ["train", "--help"], ["replay", "--help"]]
)
def test_a_reader_who_leaves_is_no_error(words: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    code = f"import sys; from penstock.cli.main import main; sys.exit(main({words!r}))"
    done = subprocess.run([sys.executable, "-c", code], stdout=writing, stderr=subprocess.PIPE, timeout=120)
    os.close(writing)
    assert done.returncode == 0
    assert done.stderr == b""


def test_everything_a_built_in_recipe_names_is_there(tmp_path: Path) -> None:
    check_stages(quickstart(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_explain_derives_sizes(penstock: Penstock) -> None:
    shown = penstock("explain", f"{RECIPES}:everything")
    assert shown.code == 0
    assert "8 prompts × 1 samples = 8 sequences" in shown.out
    assert "4 batches × 4 = 16" in shown.out
    assert "3, 4 examples or pairs each = 12" in shown.out


def test_explain_says_which_processes_there_will_be(penstock: Penstock) -> None:
    words = ("--runtime", "procs", "--roles.generators", "3", "--roles.channel", "disk", "--threads", "2", "--ppo.max_lag", "1")
    shown = penstock("explain", f"{RECIPES}:everything", *words).out
    assert "2 CPU threads for each process" in shown
    roles = "a learner, 3 generators, 1 reward worker\n"
    assert f"runtime procs: a supervisor with the stream, and processes of this machine: {roles}" in shown
    assert "weights go to the generators by disk; what the processes say goes to logs/" in shown
    assert "max_lag 1: 16 groups admitted ahead at most, on_stale wait" in shown
    assert "memory: each of 3 generators" in shown


def test_explain_measures_each_way_of_stepping_environments(penstock: Penstock) -> None:
    pytest.importorskip("gymnasium")
    words = ("--control.environments.count", "8", "--control.environments.workers", "1")
    shown = penstock("explain", "cartpole", "--measure", "0.1", *words).out
    rates = re.findall(r"environments\.workers=(\d) +([\d,]+) steps/s", shown)
    assert {ways for ways, _ in rates} >= {"0", "1"}
    assert [rate for _, rate in rates] == sorted((rate for _, rate in rates), key=lambda one: -int(one.replace(",", "")))
    best = rates[0][0]
    assert shown.splitlines()[-1].strip() == (
        "the stage is set so" if best == "1" else f"set --control.environments.workers {best}"
    )
    assert "no stage steps environments" in penstock("explain", f"{RECIPES}:everything", "--measure", "1").out
    assert penstock("explain", "cartpole", "--measure", "-1").code == 2


def test_explain_counts_parameters_as_the_model_has_them(penstock: Penstock, uninterrupted: Callable[..., Path]) -> None:
    from penstock.models.files import load_model

    network = load_model(str(uninterrupted("tiny") / "model")).network
    count = sum(parameter.numel() for parameter in network.parameters()) / 1e6
    shown = penstock("explain", f"{RECIPES}:tiny")
    assert f"preset 1m, {count:.1f}M parameters" in shown.out


def test_eval_of_a_run_repeats_its_last_evaluation(penstock: Penstock, finished: Path) -> None:
    last = json.loads((finished / "summary.json").read_text())["stages"]["grpo"]["last"]["evaluation/reward"]
    shown = penstock("eval", "runs/run")
    assert shown.code == 0
    assert shown.out.splitlines()[0].split() == ["reward", f"{last:.4g}"]


def test_eval_of_a_recipe_with_a_model(penstock: Penstock, finished: Path) -> None:
    shown = penstock("eval", f"{RECIPES}:tiny", "--model", "runs/run/model", "--grpo.evaluation.samples", "2")
    assert shown.code == 0
    assert shown.out.startswith("reward ")


REFUSED = {
    "eval of a stage without samples": ("eval runs/run --stage sft", ("no stage 'sft'", "there are: grpo")),
    "eval that would change a run": ("eval runs/run --seed 3", ("--seed", "evaluated as it was made")),
    "eval of a model that is not there": (f"eval {TINY} --model ./nowhere", ("nowhere: no such folder",)),
    "generate from a prompt longer than the context": (
        f"generate runs/run --device cpu --prompt {'1234567890' * 10}",
        ("context is 64",),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_finished_run_cannot_do_is_refused(case: str, penstock: Penstock, finished: Path) -> None:
    words, parts = REFUSED[case]
    penstock(*words.split()).assert_refused(*parts)


@pytest.mark.parametrize("words", [("eval", "runs/run"), ("generate", "runs/run", "--prompt", "x")], ids=["eval", "generate"])
def test_a_run_without_a_model_yet_is_refused(words: tuple[str, ...], penstock: Penstock, halted: Path) -> None:
    penstock(*words).assert_refused("runs/run: the run has no model yet", "train --resume runs/run")


def test_generate_takes_a_run_folder(penstock: Penstock, finished: Path) -> None:
    shown = penstock("generate", "runs/run", "--prompt", "ab", "--samples", "3", "--max-new-tokens", "2", "--device", "cpu")
    assert shown.code == 0
    assert shown.out.count("ab") >= 3


def test_generate_from_a_file_of_prompts(penstock: Penstock, finished: Path, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("first\n\nsecond\n")
    shown = penstock("generate", "runs/run/model", "--prompts", "prompts.txt", "--temperature", "0", "--device", "cpu")
    assert shown.code == 0
    assert "first" in shown.out
    assert "second" in shown.out


def test_generate_writes_rows_with_their_answers(penstock: Penstock, finished: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"q": "first", "n": 1}\n{"q": "second", "n": 2}\n')
    asked = ("--prompts", "rows.jsonl", "--template", "{{ q }}:", "--samples", "2", "--device", "cpu", "--out", "made.jsonl")
    assert penstock("generate", "runs/run", *asked).out.strip() == "made.jsonl: 2 rows"
    made = [json.loads(line) for line in (tmp_path / "made.jsonl").read_text().splitlines()]
    assert [(row["q"], row["n"], len(row["answers"])) for row in made] == [("first", 1, 2), ("second", 2, 2)]
    penstock("generate", "runs/run", *asked).assert_refused("--out made.jsonl is there already; name a new file")


def test_generate_of_pictures_by_a_model_of_text(penstock: Penstock, finished: Path, tmp_path: Path) -> None:
    (tmp_path / "seen.jsonl").write_text('{"image": "a.png", "prompt": "<image>what?"}\n')
    refused = "a prompt has the mark <image>, and the model reads text alone; give --media"
    penstock("generate", "runs/run", "--prompts", "seen.jsonl", "--device", "cpu").assert_refused(refused)


def test_report_of_a_run(penstock: Penstock, finished: Path) -> None:
    (finished / "report.html").unlink()
    assert penstock("report", "runs/run").out.strip() == "runs/run/report.html"
    assert (finished / "report.html").is_file()


def test_report_of_an_unfinished_run(penstock: Penstock, halted: Path) -> None:
    assert penstock("report", "runs/run").code == 0
    assert (halted / "report.html").is_file()


def test_a_run_ends_with_where_things_are_and_its_headline(penstock: Penstock) -> None:
    ended = penstock("train", f"{RECIPES}:tiny", "--fast")
    assert ended.code == 0
    assert ended.out.splitlines()[-2] == "model runs/tiny/model, report runs/tiny/report.html"
    assert ended.out.splitlines()[-1].startswith("held-out reward ")


def test_a_headline_that_does_not_fit_loses_no_run(penstock: Penstock) -> None:
    ended = penstock("train", f"{RECIPES}:one_step", "--headline", "{last[reward]:.2f}")
    assert ended.code == 0
    assert "does not fit" in ended.out.splitlines()[-1]


def test_a_run_whose_reader_leaves_goes_on(server: Server, tmp_path: Path) -> None:
    first = "import os; reading, writing = os.pipe(); os.close(reading); os.dup2(writing, 1)"
    assert server.run(tmp_path, "train", f"{RECIPES}:one_step", first=first).code == 0
    assert (tmp_path / "runs/one/report.html").is_file()


def test_answers_cannot_command_the_terminal_that_shows_them() -> None:
    assert harmless("a\x1b]0;title\x07b\x9b2J\r\0") == "a�]0;title�b�2J��"
    assert harmless("one\ttwo\n👩‍👧 é") == "one\ttwo\n👩‍👧 é"


def test_eval_of_a_run_without_an_evaluation_says_what_to_set() -> None:
    run = quickstart()
    with pytest.raises(SpecError, match=r"set evaluation=EvaluationSpec\(data=…\) in the recipe"):
        pick(dataclasses.replace(run, stages=run.stages[:1]), "")

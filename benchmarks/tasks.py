"""Does GRPO learn on tasks that no recipe was tuned on, and beside TRL? Twelve of reasoning-gym, a model of 1M parameters each.

    python benchmarks/tasks.py --peer-python PYTHON              # everything; what the record has is not repeated
    python benchmarks/tasks.py --tasks gcd --seeds 0 --record trial.jsonl --arm fast --set grpo.learner.learning-rate=3e-4
    python benchmarks/tasks.py --seeds --write docs/learning.md  # only the table, from the record

A task is learned from right answers first (SFT from scratch), then by GRPO from its own scorer's rewards: by ours, and by TRL
1.16 with its own defaults, from the same weights, prompts, rate and number of samples. One judge, our evaluator, measures all
on the same 1,000 held-out questions: greedy answers, and the mean of four samples at temperature 1. An answer is
right if the scorer gives it a full point. ``docs/learning-tasks.jsonl`` is the record, from which the table is made.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jinja2

from penstock import GRPO, SFT, KLPenalty
from penstock.cli.recipe import build
from penstock.config.run import DataSpec, EvaluationSpec, LearnerSpec, ModelSpec, Offline, Online, RewardSpec, Run
from penstock.core.types import Sampling
from penstock.data.sources import open_source
from penstock.rewards.built_in import gym
from penstock.runtime import launch
from penstock.runtime.measuring import measure

HERE = Path(__file__).resolve()
BEGIN, END = "<!-- tasks: begin -->", "<!-- tasks: end -->"
RATE, STEPS, PROMPTS, SAMPLES, HELD_OUT = 1e-4, 60, 32, 16, 1000


@dataclass(frozen=True)
class Task:
    """What of a row of a task is asked, and how."""

    prompt: str
    """Jinja template over a row: the question without what is the same in every row."""
    longest: int
    """Most tokens (bytes) of an answer, its end included."""
    options: Mapping[str, Any] = field(default_factory=dict)
    sft_steps: int = 300
    puzzle: bool = False
    """Whether it is a game or a puzzle of words and boards."""


TASKS = {
    "gcd": Task("{{ metadata.numbers | join(' ') }} =", 6, {"max_value": 100}, sft_steps=1000),
    "chain_sum": Task("{{ metadata.expression }} =", 8, {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}),
    "basic_arithmetic": Task(
        "{{ metadata.expression }} =", 10, {"min_terms": 2, "max_terms": 3, "min_digits": 1, "max_digits": 2}
    ),
    "number_sequence": Task("{{ metadata.sequence | join(' ') }}", 8, sft_steps=100),
    "number_sorting": Task(
        "{{ metadata.direction[0] }} {{ metadata.original_numbers | join(' ') }} =", 56,
        {"min_numbers": 3, "max_numbers": 5, "min_decimals": 0, "max_decimals": 0},
    ),
    "letter_counting": Task(
        "{{ metadata.target_letter }}: {{ metadata.span | join(' ') }} =", 4, {"min_words": 3, "max_words": 6}
    ),
    "spell_backward": Task("{{ metadata.word }} >", 12, {"min_word_len": 3, "max_word_len": 8}, puzzle=True),
    "palindrome_generation": Task(
        "{{ metadata.letters | join('') }} >", 12, {"min_length": 3, "max_length": 8}, puzzle=True
    ),
    "mini_sudoku": Task(
        "{% for row in metadata.puzzle %}{{ row | join('') }} {% endfor %}=", 34, {"min_empty": 4, "max_empty": 8}, puzzle=True
    ),
    "color_cube_rotation": Task(
        "{{ metadata.initial_state.values() | join(' ') }}/{{ metadata.rotations | join(' ') }}/{{ metadata.target_side }} =",
        12, {"max_rotations": 2}, puzzle=True,
    ),
    "letter_jumble": Task(
        "{{ metadata.scrambled_words | join(' ') }} >", 8,
        {"min_words": 1, "max_words": 1, "min_word_len": 3, "max_word_len": 6}, puzzle=True,
    ),
    "spiral_matrix": Task(
        "{% for row in metadata.matrix %}{{ row | join('') }} {% endfor %}=", 18,
        {"min_n": 3, "max_n": 3}, sft_steps=100, puzzle=True,
    ),
}  # fmt: skip


def right(sample: Any, columns: Mapping[str, Any]) -> float:
    """Whether the task's scorer gives a full point."""
    return float(gym(sample, columns) >= 0.999)


def rows(task: str, seed: int, size: int) -> DataSpec:
    """Questions of a task; other seeds are other questions (chance repeats some where there are few)."""
    chosen = TASKS[task]
    return DataSpec(
        source=f"gym:{task}",
        options={**chosen.options, "seed": seed},
        size=size,
        prompt=chosen.prompt,
        completion="{{ answer }}",
    )


def sft(task: str, seed: int = 0) -> Run:
    """A model of 1M parameters learns from right answers, from scratch; bytes are its tokens."""
    stage = Offline(
        name="sft",
        model=ModelSpec(preset="1m", vocabulary=259, context=320),
        data=rows(task, 10**6 + seed, 64 * TASKS[task].sft_steps // 3),
        algorithm=SFT(),
        learner=LearnerSpec(learning_rate=1e-3, schedule="linear_with_min_lr", warmup=20, token_budget=8192),
        batch=64,
        steps=TASKS[task].sft_steps,
    )
    return Run(name=f"{task}-sft", seed=seed, threads=1, stages=(stage,))


def grpo(task: str, model: str, seed: int = 0) -> Run:
    """The model goes on with GRPO, from the scorer's rewards."""
    held_out = EvaluationSpec(data=rows(task, 3 * 10**6, HELD_OUT), rewards=(RewardSpec(function=f"{HERE}:right"),))
    stage = Online(
        name="grpo",
        model=ModelSpec(path=model),
        data=rows(task, 2 * 10**6 + seed, STEPS * PROMPTS),
        rewards=(RewardSpec(function="gym"),),
        algorithm=GRPO(clip=(0.2, 0.28), kl=KLPenalty(place="loss", estimator="k3", coefficient=0.1)),
        learner=LearnerSpec(learning_rate=RATE, schedule="linear", warmup=10, token_budget=16384),
        sampling=Sampling(max_new_tokens=TASKS[task].longest),
        samples=SAMPLES,
        batch=PROMPTS,
        minibatches=4,
        max_running=512,
        steps=STEPS,
        evaluation=held_out,
    )
    return Run(name=f"{task}-grpo", seed=seed, threads=1, stages=(stage,))


def judged(task: str, seed: int, model: Path) -> dict[str, float]:
    """Accuracy of a model on the held-out questions, greedy and sampled."""
    run = grpo(task, str(model), seed)
    stage = run.stages[0]
    found = {}
    for name, changes in {"greedy": {}, "sampled": {"temperature": 1.0, "samples": 4}}.items():
        asked = replace(stage, evaluation=replace(stage.evaluation, **changes))
        metrics, _ = measure(asked, run, model, str(model))
        found[name] = round(metrics["evaluation/reward"], 4)
    return found


def start(task: str, seed: int, folder: Path) -> Path:
    """The model that GRPO starts from."""
    if not (folder / "summary.json").exists():
        launch(sft(task, seed), folder)
    return folder / "model"


def ours(task: str, seed: int, model: Path, folder: Path, flags: list[str]) -> Path:
    """The model after our GRPO."""
    words = ["--task", task, "--model", str(model), "--seed", str(seed), *flags]
    launch(build(f"{HERE}:grpo", words), folder)
    return folder / "model"


def theirs(python: str, task: str, seed: int, model: Path, folder: Path) -> Path:
    """The model after TRL's GRPO, in its own environment and process."""
    folder.mkdir(parents=True, exist_ok=True)
    spec = rows(task, 2 * 10**6 + seed, STEPS * PROMPTS)
    found, template = open_source(spec, Path.cwd()), jinja2.Template(spec.prompt)
    lines = [
        json.dumps({"prompt": template.render(row), "entry": json.dumps(row["entry"], default=str)})
        for row in (found[index] for index in range(len(found)))
    ]
    (folder / "rows.jsonl").write_text("\n".join(lines), encoding="utf-8")
    work = {
        "task": task, "seed": seed, "model": str(model.resolve()), "rows": str(folder / "rows.jsonl"),
        "out": str(folder / "model"), "threads": 1, "steps": STEPS, "rate": RATE, "prompts": PROMPTS, "samples": SAMPLES,
        "longest": TASKS[task].longest,
    }  # fmt: skip
    (folder / "work.json").write_text(json.dumps(work), encoding="utf-8")
    with (folder / "log.txt").open("w", encoding="utf-8") as log:
        command = [python, str(HERE.parent / "peers/trl_tasks.py"), str(folder / "work.json")]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        subprocess.run(command, check=True, timeout=7200, stdout=log, stderr=subprocess.STDOUT, env=environment)
    return folder / "model"


def recorded(record: Path) -> list[dict[str, Any]]:
    """Lines of the record so far."""
    return [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()] if record.exists() else []


def carry_out(given: argparse.Namespace, task: str, seed: int) -> None:
    """What the record lacks of a task and a seed."""
    there = {line["arm"] for line in recorded(given.record) if (line["task"], line["seed"]) == (task, seed)}
    home = given.runs / f"{task}-{seed}"
    wanted = [*dict.fromkeys(["sft", given.arm])] + (["trl"] if given.peer_python else [])
    for arm in (arm for arm in wanted if arm not in there):
        model = start(task, seed, home / "sft")
        began = time.perf_counter()
        if arm == "trl":
            model = theirs(given.peer_python, task, seed, model, (home / "trl").resolve())
        elif arm != "sft":
            model = ours(task, seed, model, home / arm, [word for pair in given.set for word in ("--" + pair).split("=", 1)])
        line = {
            "task": task,
            "seed": seed,
            "arm": arm,
            **judged(task, seed, model),
            "seconds": round(time.perf_counter() - began),
        }
        with given.record.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(line, flush=True)


def table(lines: list[dict[str, Any]]) -> list[str]:
    """Medians over seeds of the accuracy before, after ours and after TRL's; greedy, and sampled in brackets."""
    found = [
        "| task | seeds | after SFT | GRPO, ours | GRPO, TRL | ours, seeds apart | TRL, seeds apart |",
        "| --- | ---: | ---: | ---: | ---: | --- | --- |",
    ]
    for task, chosen in TASKS.items():
        arms = {
            arm: {line["seed"]: line for line in lines if line["task"] == task and line["arm"] == arm}
            for arm in ("sft", "ours", "trl")
        }
        seeds = sorted(set.intersection(*(set(arm) for arm in arms.values())))
        if seeds:
            cells = [
                f"{statistics.median(arm[seed]['greedy'] for seed in seeds):.1%} "
                f"({statistics.median(arm[seed]['sampled'] for seed in seeds):.1%})"
                for arm in arms.values()
            ]
            each = [" ".join(f"{100 * arms[arm][seed]['greedy']:.1f}" for seed in seeds) for arm in ("ours", "trl")]
            found.append(f"| {task}{' *' if chosen.puzzle else ''} | {len(seeds)} | {' | '.join(cells + each)} |")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--peer-python", default="", help="a Python that has TRL; empty: our side alone")
    parser.add_argument("--arm", default="ours", help="name of our side in the record, for other settings")
    parser.add_argument("--set", nargs="*", default=[], help="settings of ours, such as grpo.learner.learning-rate=3e-4")
    parser.add_argument("--runs", type=Path, default=Path("runs/tasks"))
    parser.add_argument("--record", type=Path, default=HERE.parents[1] / "docs/learning-tasks.jsonl")
    parser.add_argument("--write", type=Path, help="page whose part about tasks is replaced")
    given = parser.parse_args()
    for seed in given.seeds:
        for task in given.tasks:
            carry_out(given, task, seed)
    lines = "\n".join(table(recorded(given.record)))
    print(lines)
    if given.write:
        page = given.write.read_text(encoding="utf-8")
        before, _, rest = page.partition(BEGIN)
        given.write.write_text(f"{before}{BEGIN}\n{lines}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Algorithms side by side on real text: ``python benchmarks/sentiment.py FINISHED_RUN --data FOLDER --algorithms ppo ilql``.

The recipe ``sentiment`` is carried out once (``penstock train sentiment --data FOLDER``); this script takes its language model,
its reward models and its gold classifier, and runs the last stage of each algorithm from them, so that all begin alike. Printed
are the proxy's and gold's probability of praise, how varied the samples are (distinct 2-grams), and the seconds of the stage.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import penstock.algos  # noqa: F401 - registers the algorithms that a spec may name
from penstock.cli.recipe import build
from penstock.config.run import Run
from penstock.config.spec import parse, plain
from penstock.runtime import launch


def from_models(value: Any, models: Path) -> Any:
    """Plain values in which stages that are named (``@sft``) are the folders of a finished run."""
    if isinstance(value, dict):
        if value.get("kind") == "RewardSpec" and not value["name"]:  # or it would be called after the folder
            value = value | {"name": value["function"].rpartition("@")[2]}
        return {key: from_models(item, models) for key, item in value.items()}
    if isinstance(value, list):
        return [from_models(item, models) for item in value]
    head, at, name = value.rpartition("@") if isinstance(value, str) else ("", "", "")
    return f"{head}{models / name}" if at and head in ("", "model:") else value


def last_stage(algorithm: str, words: list[str], models: Path) -> Run:
    """The recipe's last stage alone."""
    values = plain(build("sentiment", ["--algorithm", algorithm, *words]))
    return parse(Run, from_models(values | {"stages": values["stages"][-1:]}, models.resolve()))


def rows(summary: dict[str, Any]) -> list[str]:
    """A line for each strength of the shift (one, where an algorithm has none)."""
    stage = list(summary["stages"].values())[-1]
    first, last, found = stage["first"], stage["last"], []
    for name in (name for name in last if name.endswith("/gold")):
        about = name.removesuffix("gold")
        columns = [f"{first.get(about + key, float('nan')):.2f} → {last[about + key]:.2f}" for key in ("proxy", "gold")]
        varied = f"{first.get(about + 'distinct_2', float('nan')):.2f} → {last.get(about + 'distinct_2', float('nan')):.2f}"
        shift = about.removeprefix("evaluation/").strip("/")
        found.append(f"| {shift or '—'} | {' | '.join(columns)} | {varied} | {stage['seconds']:.0f} |")
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("run", type=Path)
    options.add_argument("--data", required=True, help="folder with pos.txt and neg.txt")
    options.add_argument("--algorithms", nargs="+", default=["ppo", "ilql"])
    options.add_argument("--runs", type=Path, default=Path("runs/sentiment-side-by-side"))
    options.add_argument("--seed", default="0")
    options.add_argument("--threads", default="0")
    chosen = options.parse_args()
    print("| algorithm | shift | proxy | gold | distinct 2-grams | seconds |\n| --- | --- | --- | --- | --- | --- |")
    for algorithm in chosen.algorithms:
        run = last_stage(
            algorithm, ["--data", chosen.data, "--seed", chosen.seed, "--threads", chosen.threads], chosen.run / "models"
        )
        folder = chosen.runs / f"{algorithm}-seed-{chosen.seed}"
        summary = launch(run, folder, resume=folder.exists()).summary
        print("\n".join(f"| {algorithm} {row}" for row in rows(summary)), flush=True)


if __name__ == "__main__":
    main()

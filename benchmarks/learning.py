"""Does every algorithm learn? Runs the random-walks recipe for algorithms × seeds and writes the table of docs/learning.md.

    python benchmarks/learning.py --seeds 0 1 2 3 4                  # every algorithm
    python benchmarks/learning.py --algorithms ilql --seeds 0 1 2    # some of them
    python benchmarks/learning.py --seeds --write docs/learning.md   # only the table, from the runs that are there

Runs that are finished are not repeated, so a benchmark that was stopped goes on; remove their folders to start over.
"""

from __future__ import annotations

import argparse
import json
import statistics
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.cli.recipe import build
from penstock.recipes.randomwalks import Algorithm
from penstock.runtime import launch

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def carry_out(algorithm: str, seed: int, threads: int, folder: Path) -> None:
    """One run, unless it is finished."""
    if (folder / "run.json").exists():
        print(
            f"{algorithm} seed {seed}: {'there' if 'headline' in summary_of(folder) else 'unfinished, left alone'}", flush=True
        )
        return
    run = build("randomwalks", ["--algorithm", algorithm, "--seed", str(seed), "--threads", str(threads)])
    print(f"{algorithm} seed {seed}: {launch(run, folder).headline}", flush=True)


def summary_of(folder: Path) -> dict[str, Any]:
    file = folder / "summary.json"
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return found


def reached(summary: dict[str, Any], measure: str) -> float:
    """The last evaluation of a run's last stage."""
    return float(list(summary["stages"].values())[-1]["last"][measure])


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3f} | {min(values):.3f} to {max(values):.3f}"


def table(home: Path) -> list[str]:
    """Rows of algorithms, by how far they came; ILQL once for each strength of the shift."""
    found = []
    for algorithm in typing.get_args(Algorithm):
        runs = [summary_of(folder) for folder in sorted(home.glob(f"{algorithm}-seed-*"))]
        runs = [summary for summary in runs if "headline" in summary]
        last = list(runs[0]["stages"].values())[-1]["last"] if runs else {}
        for measure in (name for name in last if name.endswith("/reward")):
            shift = measure.removeprefix("evaluation").removesuffix("reward").strip("/").replace("beta=", "β = ")
            values = [reached(summary, measure) for summary in runs]
            seconds = statistics.median(summary["seconds"] for summary in runs)
            name = f"{algorithm} {shift}".strip()
            found.append((statistics.median(values), f"| {name} | {len(runs)} | {spread(values)} | {seconds:.0f} |"))
    head = ["| algorithm | seeds | median | range | seconds a run |", "| --- | --- | --- | --- | --- |"]
    return head + [line for _, line in sorted(found, reverse=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = typing.get_args(Algorithm)
    parser.add_argument("--algorithms", nargs="*", default=names, choices=names)
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=Path, default=Path("runs/learning"))
    parser.add_argument("--write", type=Path, help="page whose measured part is replaced")
    given = parser.parse_args()
    for seed in given.seeds:
        for algorithm in given.algorithms:
            carry_out(algorithm, seed, given.threads, given.runs / f"{algorithm}-seed-{seed}")
    lines = "\n".join(table(given.runs))
    print(lines)
    if given.write:
        page = given.write.read_text(encoding="utf-8")
        before, _, rest = page.partition(BEGIN)
        given.write.write_text(f"{before}{BEGIN}\n{lines}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()

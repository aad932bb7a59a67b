"""Does every algorithm learn? Runs the random-walks recipe for algorithms × seeds and writes the table of docs/learning.md.

    python benchmarks/learning.py --seeds 0 1 2 3 4                  # every algorithm
    python benchmarks/learning.py --algorithms ilql --seeds 0 1 2    # some of them
    python benchmarks/learning.py --graph-seeds 1 2 3 4 --seeds 0 1  # on other graphs than the recipe's, for the second table
    python benchmarks/learning.py --seeds --write docs/learning.md   # only the tables, from the runs that are there

Runs that are finished are not repeated, so a benchmark that was stopped goes on; remove their folders to start over.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.cli.recipe import build
from penstock.recipes.randomwalks import BETAS, Algorithm
from penstock.runtime import launch


def carry_out(algorithm: str, seed: int, graph: int | None, threads: int, home: Path) -> None:
    """One run, unless it is finished; on the recipe's own graph where ``graph`` is None."""
    name = f"{algorithm}-seed-{seed}" if graph is None else f"{algorithm}-graph-{graph}-seed-{seed}"
    folder = home / name
    if (folder / "run.json").exists():
        print(f"{name}: {'there' if 'headline' in summary_of(folder) else 'unfinished, left alone'}", flush=True)
        return
    words = ["--algorithm", algorithm, "--seed", str(seed), "--threads", str(threads)]
    run = build("randomwalks", words if graph is None else [*words, "--graph-seed", str(graph)])
    print(f"{name}: {launch(run, folder).headline}", flush=True)


def summary_of(folder: Path) -> dict[str, Any]:
    file = folder / "summary.json"
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return found


def reached(summary: dict[str, Any], measure: str) -> float:
    """The last evaluation of a run's last stage."""
    return float(list(summary["stages"].values())[-1]["last"][measure])


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3f} | {min(values):.3f} to {max(values):.3f}"


def finished(home: Path, pattern: str) -> list[dict[str, Any]]:
    """Summaries of the finished runs whose folder's name matches."""
    return [summary for folder in sorted(home.glob(pattern)) if "headline" in (summary := summary_of(folder))]


def table(home: Path) -> list[str]:
    """Rows of algorithms, by how far they came; ILQL once for each strength of the shift."""
    found = []
    for algorithm in typing.get_args(Algorithm):
        runs = finished(home, f"{algorithm}-seed-*")
        last = list(runs[0]["stages"].values())[-1]["last"] if runs else {}
        for measure in (name for name in last if name.endswith("/reward")):
            shift = measure.removeprefix("evaluation").removesuffix("reward").strip("/").replace("beta=", "β = ")
            values = [reached(summary, measure) for summary in runs]
            seconds = statistics.median(summary["seconds"] for summary in runs)
            name = f"{algorithm} {shift}".strip()
            found.append((statistics.median(values), f"| {name} | {len(runs)} | {spread(values)} | {seconds:.0f} |"))
    head = ["| algorithm | seeds | median | range | seconds a run |", "| --- | --- | --- | --- | --- |"]
    return head + [line for _, line in sorted(found, reverse=True)]


def other_graphs(home: Path) -> list[str]:
    """Rows of algorithms and graphs: the optimality of each seed, ILQL's at its strongest shift."""
    lines = ["| algorithm | graph | seeds | optimality by seed |", "| --- | --- | --- | --- |"]
    for algorithm in typing.get_args(Algorithm):
        measure = f"evaluation/beta={BETAS[-1]:g}/reward" if algorithm == "ilql" else "evaluation/reward"
        for graph in sorted({int(folder.name.split("-")[-3]) for folder in home.glob(f"{algorithm}-graph-*-seed-*")}):
            values = [reached(summary, measure) for summary in finished(home, f"{algorithm}-graph-{graph}-seed-*")]
            if values:
                numbers = ", ".join(f"{value:.3f}" for value in values)
                lines.append(f"| {algorithm} | {graph} | {len(values)} | {numbers} |")
    return lines


def replaced(page: str, part: str, lines: Sequence[str]) -> str:
    """The page with these lines between the marks of a part."""
    begin, end = f"<!-- {part}: begin -->", f"<!-- {part}: end -->"
    before, _, rest = page.partition(begin)
    return f"{before}{begin}\n{chr(10).join(lines)}\n{end}{rest.partition(end)[2]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = typing.get_args(Algorithm)
    parser.add_argument("--algorithms", nargs="*", default=names, choices=names)
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--graph-seeds", nargs="*", type=int, help="graphs to run on; left out: the recipe's own")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=Path, default=Path("runs/learning"))
    parser.add_argument("--write", type=Path, help="page whose measured part is replaced")
    given = parser.parse_args()
    for seed in given.seeds:
        for graph in given.graph_seeds or [None]:
            for algorithm in given.algorithms:
                carry_out(algorithm, seed, graph, given.threads, given.runs)
    parts = {"measured": table(given.runs), "other graphs": other_graphs(given.runs)}
    print("\n".join(itertools.chain.from_iterable(parts.values())))
    if given.write:
        page = given.write.read_text(encoding="utf-8")
        for part, lines in parts.items():
            if len(lines) > 2:  # with no run of its kind the table stays as it is
                page = replaced(page, part, lines)
        given.write.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()

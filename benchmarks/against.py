"""This tree beside another state of it: ``python benchmarks/against.py OTHER_TREE``, by turns in one run.

OTHER_TREE is a checkout of another commit (``git worktree add OTHER_TREE COMMIT``). Both trees run their own ``vs_trl.py`` and
``offline.py`` (our side), ``stream.py``, ``weights.py`` and ``async_gain.py`` with the same Python, turn by turn in the order
other, this, this, other, so that what else the machine does meets both alike. Printed is, for each number, the median of each
tree over the turns and their ratio, above 1 where this tree is better. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parents[1]
SHARED = HERE.parent / "shared"
ROW = re.compile(r"^\|(.+)\|$", re.MULTILINE)


class Number(NamedTuple):
    """What was measured, and whether more is better."""

    name: str
    value: float
    more: bool


class Benchmark(NamedTuple):
    """A script with its arguments, and how its output is read."""

    script: str
    arguments: tuple[str, ...]
    read: Callable[[str], Iterator[Number]]


def of_training(printed: str) -> Iterator[Number]:
    found = json.loads(printed.strip().splitlines()[-1])
    yield Number("generated tokens/s", found["generation"], True)
    yield Number("tokens/s end to end", found["end to end"], True)


def of_data(printed: str) -> Iterator[Number]:
    for name, speed in re.findall(r"^(\w+) \(default\): ([\d,]+) real tokens/s", printed, re.MULTILINE):
        yield Number(f"{name}: tokens/s", float(speed.replace(",", "")), True)


def of_stream(printed: str) -> Iterator[Number]:
    found = re.findall(r"^(.{16}) (.{28}) +([\d,]+) samples/s.*? ([\d,.]+) µs of processor", printed, re.MULTILINE)
    for load, arm, rate, cost in found:
        name = f"{load.strip()}, {arm.strip()}"
        yield Number(f"{name}: samples/s", float(rate.replace(",", "")), True)
        yield Number(f"{name}: µs of processor a sample", float(cost.replace(",", "")), False)


def of_stall(printed: str) -> Iterator[Number]:
    for line in ROW.findall(printed):
        arm, *cells = [cell.strip() for cell in line.split("|")]
        if re.fullmatch(r"[\d.]+", cells[1]):
            yield Number(f"{arm}: decode step, ms", float(cells[1]), False)


def of_transport(printed: str) -> Iterator[Number]:
    for line in ROW.findall(printed):
        cells = [cell.strip() for cell in line.split("|")]
        if re.fullmatch(r"[\d.]+", cells[10]):
            yield Number(f"{cells[2]} {cells[3]}: ms to publish and open", float(cells[8]) + float(cells[10]), False)


def of_gain(printed: str) -> Iterator[Number]:
    for arm, rate in re.findall(r"^(\S+): (\d+) samples/s", printed, re.MULTILINE):
        yield Number(f"{arm}: samples/s", float(rate), True)


BENCHMARKS = {
    "training": Benchmark("vs_trl.py", ("--side", "ours", "--model", "MODEL", "--steps", "5"), of_training),
    "data": Benchmark("offline.py", ("--model", "MODEL", "--rounds", "1"), of_data),
    "stream": Benchmark("stream.py", ("--repeats", "1", "--rounds", "5"), of_stream),
    "stall": Benchmark("weights.py", ("--part", "stall", "--presets", "3m", "--updates", "10"), of_stall),
    "transport": Benchmark("weights.py", ("--part", "transport", "--presets", "3m", "--rates", "1e-5"), of_transport),
    "gain": Benchmark(
        "async_gain.py",
        ("--conditions", "lognormal", "--arms", "in flight", "separated", "--seeds", "0", "--imitate", "50", "--runs", "RUNS"),
        of_gain,
    ),
}


def measure(tree: Path, benchmark: Benchmark, model: Path) -> list[Number]:
    """The numbers of one tree, from one run."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    if benchmark.script in ("vs_trl.py", "offline.py"):
        environment.pop("OMP_NUM_THREADS")  # one process has both cores
    with tempfile.TemporaryDirectory() as runs:
        places = {"MODEL": str(model), "RUNS": runs}
        words = [places.get(word, word) for word in benchmark.arguments]
        command = [sys.executable, str(tree / "benchmarks" / benchmark.script), *words]
        done = subprocess.run(command, env=environment, cwd=runs, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}")
    return list(benchmark.read(done.stdout))


def compare(name: str, other: Path, rounds: int, model: Path) -> None:
    """Both trees by turns, and a line for each number."""
    order = [other, HERE, HERE, other] * rounds
    found: dict[Path, dict[str, list[float]]] = {other: {}, HERE: {}}
    more: dict[str, bool] = {}
    for tree in order:
        for number in measure(tree, BENCHMARKS[name], model):
            found[tree].setdefault(number.name, []).append(number.value)
            more[number.name] = number.more
    both = [what for what in more if all(what in numbers for numbers in found.values())]
    for what in both:  # what one tree alone measures has no ratio
        better = more[what]
        before, now = (statistics.median(found[tree][what]) for tree in (other, HERE))
        gain = now / before if better else before / now
        values = ", ".join(f"{value:.4g}" for value in found[HERE][what])
        print(f"| {name} | {what} | {before:.4g} | {now:.4g} | {gain:.2f} | {values} |", flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("other", type=Path)
    options.add_argument("--only", nargs="+", default=list(BENCHMARKS), choices=list(BENCHMARKS))
    options.add_argument("--rounds", type=int, default=1, help="of four turns each")
    chosen = options.parse_args()
    print(
        "| benchmark | number | other | this | ratio | this tree's turns |\n| --- | --- | --- | --- | --- | --- |", flush=True
    )
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        subprocess.run([sys.executable, str(SHARED / "bench/make_model.py"), str(model)], check=True, capture_output=True)
        for name in chosen.only:
            compare(name, chosen.other.resolve(), chosen.rounds, model)


if __name__ == "__main__":
    main()

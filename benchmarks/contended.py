"""Training beside other work: ``python benchmarks/contended.py [--loops 4] [--repeats 3]``.

Trains the recipe ``quickstart`` for some steps, as ``penstock train`` does, while busy loops want the same cores: once with the
OpenMP library's own way of waiting at barriers (``GOMP_SPINCOUNT`` 300000, its default) and once with Penstock's, in turn. The
last lines are tokens a second of SFT steps and seconds of a GRPO step (medians over the repeats), and their ratios.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

WAYS = {"library's default": {"GOMP_SPINCOUNT": "300000"}, "Penstock's": {}}
COMMAND = (sys.executable, "-m", "penstock.cli.main", "train", "quickstart")
FLAGS = ("--sft.steps", "12", "--grpo.steps", "3", "--name", "run")
LONGEST = 900.0
"""Seconds that one run may take."""


class Speed(NamedTuple):
    """``sft`` in tokens a second, ``grpo`` in seconds a step."""

    sft: float
    grpo: float


@contextlib.contextmanager
def busy(loops: int) -> Iterator[None]:
    """So many processes that never wait."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True) for _ in range(loops)]
    try:
        yield
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def measured(environment: dict[str, str]) -> Speed:
    """One run in a folder of its own."""
    kept = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "GOMP_SPINCOUNT")}
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            (*COMMAND, *FLAGS), cwd=folder, env={**kept, **environment}, check=True, capture_output=True, timeout=LONGEST
        )
        lines = (Path(folder) / "runs" / "run" / "events.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [event for event in map(json.loads, lines) if event["kind"] == "metrics" and "seconds/trained" in event["values"]]
    sft = [event["values"]["tokens_per_second"] for event in steps if event["stage"] == "sft"]
    grpo = [
        event["values"]["seconds/trained"] + event["values"]["seconds/waited"] for event in steps if event["stage"] == "grpo"
    ]
    return Speed(statistics.median(sft), statistics.median(grpo))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loops", type=int, default=4, help="busy loops beside the run (0: a quiet machine)")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    found: dict[str, list[Speed]] = {way: [] for way in WAYS}
    with busy(options.loops):
        for repeat in range(options.repeats):
            for way, environment in WAYS.items():
                found[way].append(measured(environment))
                print(
                    f"{repeat}  {way:<18} {found[way][-1].sft:8.0f} tokens/s  {found[way][-1].grpo:6.2f} s a step", flush=True
                )
    middle = {way: Speed(*(statistics.median(values) for values in zip(*speeds, strict=True))) for way, speeds in found.items()}
    before, after = middle.values()
    print(
        f"{options.loops} busy loops: SFT {before.sft:.0f} → {after.sft:.0f} tokens/s, {after.sft / before.sft:.2f} x; "
        f"GRPO {before.grpo:.2f} → {after.grpo:.2f} s a step, {before.grpo / after.grpo:.2f} x"
    )


if __name__ == "__main__":
    main()

"""Pong from pixels, training included: agent steps a second (4 frames each) next to Sample Factory and RLlib.

    python benchmarks/pong.py --seconds 60 --sample-factory /path/to/python --rllib /path/to/python

The peers' Pythons have sample-factory and envpool, and ray[rllib] and gymnasium[atari]. One after another, each with the
machine's cores; the rate is that between the first tenth and the end of its seconds, so that starting is left out.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()


def rate_of(clock: list[tuple[float, float]], seconds: float) -> dict[str, Any]:
    """Steps a second from pairs of seconds since the start and steps so far."""
    kept = [pair for pair in clock if pair[0] <= seconds]
    first = next((pair for pair in kept if pair[0] >= seconds / 10), kept[0])
    last = kept[-1]
    return {"steps": last[1], "seconds": last[0], "rate": (last[1] - first[1]) / (last[0] - first[0])}


def ours(seconds: float) -> dict[str, Any]:
    """The recipe in this process, ended after so many seconds."""
    for late in ("session", "stages.control"):
        importlib.import_module(f"penstock.runtime.{late}")
    from penstock.recipes.pong import pong
    from penstock.runtime import launch

    clock: list[tuple[float, float]] = []
    began = time.perf_counter()

    def listen(event: dict[str, Any]) -> None:
        values = event.get("values", {})
        if "environment/steps" in values:
            clock.append((time.perf_counter() - began, values["environment/steps"]))
            if clock[-1][0] > seconds:
                print(json.dumps(rate_of(clock, seconds)), flush=True)
                os._exit(0)  # a measurement: nothing of the run is kept

    with tempfile.TemporaryDirectory() as folder:
        launch(pong(steps=100_000), Path(folder) / "run", [listen])
    return rate_of(clock, seconds)


def measured(name: str, command: list[str], patience: float) -> dict[str, Any]:
    """What a process group prints on its last line; the group is ended then."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=out, stderr=errors, start_new_session=True)
        try:
            code = process.wait(patience)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        out.seek(0)
        errors.seek(0)
        if code:
            raise SystemExit(f"{name} failed:\n{errors.read()[-2000:]}")
        found: dict[str, Any] = json.loads(out.read().strip().splitlines()[-1])
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--sample-factory", default="")
    parser.add_argument("--rllib", default="")
    parser.add_argument("--one", action="store_true", help="run ours in this process, and print it")
    given = parser.parse_args()
    if given.one:
        print(json.dumps(ours(given.seconds)))
        return
    commands = {"ours": [sys.executable, str(HERE), "--one", "--seconds", str(given.seconds)]}
    for name, python in (("sample_factory", given.sample_factory), ("rllib", given.rllib)):
        if python:
            commands[name] = [python, str(HERE.parent / "peers" / f"{name}_pong.py"), "--seconds", str(given.seconds)]
    rates = {}
    for name, command in commands.items():
        found = measured(name, command, 3 * given.seconds + 120)
        rates[name] = found["rate"]
        print(f"{name:<15} {found['rate']:8,.0f} steps/s  {found['steps']:,.0f} steps in {found['seconds']:.0f} s", flush=True)
    for name in rates.keys() - {"ours"}:
        print(f"ours takes {rates['ours'] / rates[name]:.2f} times the steps of {name}")


if __name__ == "__main__":
    main()

"""Pong from pixels, training included: agent steps a second (4 frames each) next to Sample Factory and RLlib; and return next
to Stable-Baselines3 after the same seconds.

    python benchmarks/pong.py --seconds 60 --sample-factory PYTHON --rllib PYTHON --sb3 PYTHON
    python benchmarks/pong.py --seconds 300 --sb3 PYTHON --seeds 5 --together --device cuda --threads 3

The peers' Pythons have sample-factory and envpool, ray[rllib] and gymnasium[atari], stable-baselines3 and envpool. One side
after another; with ``--together`` all seeds of a side at a time, else these too in turn. The rate is that between the first
tenth and the end of its seconds, so that starting is left out; the return is the mean of the latest 100 episodes.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()


Clock = list[tuple[float, float, float | None]]
"""Seconds since the start, steps so far, and the mean return of the latest 100 episodes."""


def rate_of(clock: Clock, seconds: float) -> dict[str, Any]:
    """Steps a second, and the return at the end."""
    kept = [(0.0, 0.0, None), *(noted for noted in clock if noted[0] <= seconds)]
    first = next((noted for noted in kept if noted[0] >= seconds / 10), kept[0])
    last = kept[-1]
    rate = (last[1] - first[1]) / (last[0] - first[0])
    quarters = [next(noted[2] for noted in reversed(kept) if noted[0] <= seconds * part / 4) for part in (1, 2, 3, 4)]
    return {"steps": last[1], "seconds": last[0], "rate": rate, "return": last[2], "quarters": quarters}


def ours(given: argparse.Namespace) -> None:
    """Prints the clock of the recipe in this process, ended after so many seconds."""
    for late in ("session", "stages.control"):
        importlib.import_module(f"penstock.runtime.{late}")
    from penstock.recipes.pong import pong
    from penstock.runtime import launch

    clock: Clock = []
    began = time.perf_counter()

    def listen(event: dict[str, Any]) -> None:
        values = event.get("values", {})
        if "environment/steps" in values:
            clock.append((time.perf_counter() - began, values["environment/steps"], values.get("episode/return")))
            if clock[-1][0] > given.seconds:
                print(json.dumps({"clock": clock}), flush=True)
                os._exit(0)  # a measurement: nothing of the run is kept

    run = pong(seed=given.seed, steps=100_000)
    stage: Any = replace(run.stages[0], evaluation=None)  # type: ignore[call-arg]
    if given.threads:
        options = {**stage.environments.options, "num_threads": max(1, given.threads // 2)}  # of each of two blocks
        stage = replace(stage, environments=replace(stage.environments, options=options))
    run = replace(run, device=given.device, stages=(stage,))
    with tempfile.TemporaryDirectory() as folder:
        launch(run, Path(folder) / "run", [listen])


class Measured:
    """A process of a benchmark's side, in a group of its own."""

    def __init__(self, name: str, command: list[str]) -> None:
        self.name = name
        self.out, self.errors = (tempfile.TemporaryFile("w+") for _ in range(2))  # noqa: SIM115 - open as long as the process
        self.process = subprocess.Popen(command, stdout=self.out, stderr=self.errors, start_new_session=True)

    def found(self, patience: float, seconds: float) -> dict[str, Any]:
        """What it prints on its last line; its group is ended then."""
        try:
            code = self.process.wait(patience)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.out.seek(0)
        self.errors.seek(0)
        if code:
            raise SystemExit(f"{self.name} failed:\n{self.errors.read()[-2000:]}")
        found: dict[str, Any] = json.loads(self.out.read().strip().splitlines()[-1])
        return rate_of([tuple(noted) for noted in found["clock"]], seconds) if "clock" in found else found


def commands_of(given: argparse.Namespace) -> dict[str, list[str]]:
    """How each side is started, but for its seed."""
    shared = ["--seconds", str(given.seconds)]
    placed = [*shared, "--device", given.device, "--threads", str(given.threads)]
    commands = {} if given.only_peers else {"ours": [sys.executable, str(HERE), "--one", *placed]}
    for name, python in (("sample_factory", given.sample_factory), ("rllib", given.rllib)):
        if python:
            commands[name] = [python, str(HERE.parent / "peers" / f"{name}_pong.py"), *shared]
    for kind in given.settings if given.sb3 else ():
        commands[f"sb3 {kind}"] = [given.sb3, str(HERE.parent / "peers" / "sb3_pong.py"), "--settings", kind, *placed]
    return commands


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--sample-factory", default="")
    parser.add_argument("--rllib", default="")
    parser.add_argument("--sb3", default="")
    parser.add_argument("--settings", nargs="+", choices=("zoo", "same"), default=("zoo", "same"), help="of Stable-Baselines3")
    parser.add_argument("--seeds", type=int, default=1, help="of ours and of Stable-Baselines3's")
    parser.add_argument("--together", action="store_true", help="all seeds of a side at a time")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=0, help="of EnvPool in each run; 0: one for each core")
    parser.add_argument("--only-peers", action="store_true")
    parser.add_argument("--one", action="store_true", help="run ours in this process, and print it")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.one:
        ours(given)
        return
    rates, patience = {}, 3 * given.seconds + 120
    for name, command in commands_of(given).items():
        seeded = name in ("ours", "sb3 zoo", "sb3 same")
        rows = [[*command, "--seed", str(seed)] for seed in range(given.seeds)] if seeded else [command]
        if given.together:
            started = [Measured(name, row) for row in rows]
            found = [one.found(patience, given.seconds) for one in started]
        else:
            found = [Measured(name, row).found(patience, given.seconds) for row in rows]
        rates[name] = statistics.median(one["rate"] for one in found)
        for seed, one in enumerate(found):
            print(f"{name:<15} seed {seed}  {json.dumps(one)}", flush=True)
    for name in rates.keys() - {"ours"} if "ours" in rates else ():
        print(f"ours takes {rates['ours'] / rates[name]:.2f} times the steps of {name}")


if __name__ == "__main__":
    main()

"""What monitors cost a step: ``python benchmarks/monitors.py live | dead [--pairs 30] [--steps 20] [--monitors otlp,mlflow]``.

One run of the recipe randomwalks with GRPO, whose monitors hear every event in one block of steps and none in the next, by
turns, so that what else happens on the machine falls on both. A pair is two neighbouring blocks, of which the first step is
left out. Of the differences within pairs: the median, with a bootstrap interval, as a share of a step without monitors; of
wall time, of CPU time of the process and its children (W&B works in one), and of both parts of it: the learner's thread, whose
work differs from step to step, and all else, which is what monitors use.

``live``: each service in a process of its own or in its local store: Prometheus is scraped every 5 seconds, an OTLP receiver,
MLflow in SQLite, TensorBoard's files, trackio's store, W&B in offline mode. ``dead``: where nobody listens. That a service is
opened, which happens once, is not in it; its seconds are printed. Looks at the machine are timed apart.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from penstock.config.keeping import CheckpointSpec
from penstock.config.run import Online, Run
from penstock.core.events import Event
from penstock.observe.machine import EVERY, Machine
from penstock.recipes.randomwalks import randomwalks
from penstock.runtime import launch, launching
from penstock.runtime.listeners import Delivery

WARM = 40.0
"""Seconds in which services are opened."""
SERVER = """
import http.server, sys, threading, time, urllib.request
class Takes(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"])); self.send_response(200); self.end_headers()
    def log_message(self, *given): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Takes)
print(server.server_port, flush=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
while True:
    time.sleep(5)
    try: urllib.request.urlopen(sys.argv[1], timeout=5).read()
    except OSError: pass
"""
"""Takes OTLP requests and scrapes Prometheus."""


@dataclass
class Switch:
    """Hears each event before the monitors do, passes it on or not, and measures the time between steps."""

    block: int
    pairs: int
    targets: Sequence[Delivery] = ()
    began: float = 0.0
    warm: int = 0
    """Steps in which services are opened."""
    marks: list[tuple[float, float, float]] = field(default_factory=list)
    """Wall, CPU and thread seconds at each step after those."""

    def on(self) -> bool:
        return (len(self.marks) // self.block) % 2 == 0

    def __call__(self, event: Event) -> None:
        if self.on():
            for target in self.targets:
                target(event)
        if event["kind"] != "metrics":
            return
        now = time.perf_counter()
        self.began = self.began or now
        if now - self.began < WARM and not self.marks:
            self.warm += 1
            return
        self.marks.append((now, cpu(), time.thread_time()))
        if len(self.marks) > 2 * self.block * self.pairs:
            raise KeyboardInterrupt

    def blocks(self) -> np.ndarray:
        """Seconds a step by block and kind of time."""
        whole = (len(self.marks) - 1) // (2 * self.block) * 2 * self.block
        marks = np.array(self.marks[:whole]).reshape(-1, self.block, 3)
        return (marks[:, -1] - marks[:, 1]) / (self.block - 2)


def cpu() -> float:
    """CPU seconds of this process and of those it has started."""
    import psutil

    spent = time.process_time()
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            spent += sum(child.cpu_times()[:2])
    return spent


def watched(run: Run, folder: Path, switch: Switch) -> float:
    """Carry the run out with the switch before its monitors; gives the seconds until its end from the last step on."""
    delivering = launching.delivering

    @contextlib.contextmanager
    def switched(listeners: Any, monitors: Any = ()) -> Iterator[list[Any]]:
        with delivering(listeners, monitors) as switch.targets:
            yield [switch]

    launching.delivering = switched  # type: ignore[assignment]
    try:
        with contextlib.suppress(KeyboardInterrupt):
            launch(run, folder)
    finally:
        launching.delivering = delivering
    return time.perf_counter() - switch.marks[-1][0]


def task(steps: int, monitors: Sequence[str]) -> Run:
    """GRPO of randomwalks from random weights; neither checkpoints nor evaluations are between the steps."""
    run = randomwalks("grpo")
    stage = next(stage for stage in run.stages if isinstance(stage, Online))
    stage = replace(stage, model=run.stages[0].model, evaluation=None, reference=None, steps=steps)
    return replace(run, stages=(stage,), monitors=tuple(monitors), checkpoint=CheckpointSpec(every=0), headline="", threads=1)


def services(kind: str, folder: Path, held: contextlib.ExitStack) -> dict[str, str]:
    """The monitors by name as a run names them, their servers started, their environment set."""
    port = free_port()
    os.environ |= {"TRACKIO_DIR": str(folder / "trackio"), "WANDB_API_KEY": "0" * 40, "TRACKIO_WRITE_TOKEN": "none"}
    if kind == "dead":
        nowhere = f"http://127.0.0.1:{free_port()}"
        os.environ |= {"WANDB_BASE_URL": nowhere, "TRACKIO_SERVER_URL": nowhere}
        mlflow, otlp = nowhere, nowhere
    else:
        os.environ["WANDB_MODE"] = "offline"
        command = [sys.executable, "-c", SERVER, f"http://127.0.0.1:{port}/metrics"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        held.callback(server.kill)
        assert server.stdout is not None
        mlflow, otlp = f"sqlite:///{folder / 'mlflow.db'}", f"http://127.0.0.1:{int(server.stdout.readline())}"
    entries = (f"prometheus:{port}", f"otlp:{otlp}", "wandb", f"mlflow:{mlflow}", "tensorboard", "trackio")
    return {entry.partition(":")[0]: entry for entry in entries}


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def line(name: str, on: np.ndarray, off: np.ndarray, step: float) -> str:
    """The median of the differences, in milliseconds and as a share of ``step``, with its interval of 95% by bootstrap."""
    differences = on - off
    draws = np.random.default_rng(0).choice(differences, (10_000, len(differences)))
    low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
    middle = float(np.median(differences))
    return (
        f"{name:<28} step {1e3 * step:8.2f} ms  more by {1e3 * middle:7.3f} ms  "
        f"{middle / step:7.2%} ({low / step:.2%} to {high / step:.2%})"
    )


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("kind", choices=("live", "dead"))
    given.add_argument("--pairs", type=int, default=30)
    given.add_argument("--steps", type=int, default=20, help="steps of a block")
    given.add_argument("--monitors", default="", help="names with commas; all by default")
    chosen = given.parse_args()
    with contextlib.ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory()))
        held.enter_context(contextlib.chdir(folder))  # MLflow puts samples next to where it is called
        named = services(chosen.kind, folder, held)
        entries = [named[name] for name in chosen.monitors.split(",")] if chosen.monitors else list(named.values())
        switch = Switch(chosen.steps, chosen.pairs)
        ending = watched(task(1_000_000, entries), folder / "run", switch)
        found = switch.blocks()
        print(json.dumps({"kind": chosen.kind, "monitors": entries, "blocks": len(found), "warm steps": switch.warm}))
        print(f"from the last step to the end {ending:.1f} s; missed {[target.missed for target in switch.targets]} events")
        for name, seconds in (
            ("wall", found[:, 0]),
            ("CPU", found[:, 1]),
            ("CPU of learner's thread", found[:, 2]),
            ("CPU of all else", found[:, 1] - found[:, 2]),
        ):
            print(line(name, seconds[0::2], seconds[1::2], float(np.median(found[1::2, 1 if name[0] == "C" else 0]))))
    machine = Machine("learner")
    looks = []
    for _ in range(200):
        began = time.thread_time()
        machine.look()
        looks.append(time.thread_time() - began)
    look = statistics.median(looks)
    print(f"a look at the machine: {1e3 * look:.2f} ms of CPU every {EVERY:.0f} s, {look / EVERY:.3%} of one core")


if __name__ == "__main__":
    main()

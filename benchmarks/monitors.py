"""What monitors cost a step: ``python benchmarks/monitors.py live | dead [--pairs 8] [--times 1] [--monitors otlp,mlflow]``.

One run of the recipe randomwalks with GRPO, whose monitors hear every event for 31 seconds and none for the next 31, by turns,
so that what else happens on the machine falls on both. Monitors work every 10 seconds, so what was heard in one block is worked
off at the begin of the next: 11 seconds of each are left out, and 20 are two of theirs. Wall time and CPU time of the learner's
thread: the mean of the differences within pairs of neighbouring blocks, with a bootstrap interval. CPU time of the monitors:
that of all threads and processes that they have (W&B works in one) while they hear, nothing subtracted. All are shares of a
step without monitors, in wall time and in CPU time of the learner's thread; where other programs take the cores, a step lasts
longer, and the share of CPU time says too much, because monitors work by the second. ``--times 7`` makes steps longer: batches
of seven times as many prompts.

``live``: each service in a process of its own or in its local store: Prometheus is scraped every 5 seconds, an OTLP receiver,
MLflow in SQLite, TensorBoard's files, trackio's store, W&B in offline mode. ``dead``: where nobody listens. That a service is
opened, which happens once, and the first 200 steps, which services are sent one by one, are not in it. Looks at the machine are
timed apart.

``--pace 0.15`` has no learner: monitors are fed a step of 40 numbers and four samples every 0.15 seconds, and their CPU time is
measured in as many blocks of 20 seconds. That is the measure for a machine whose cores others take, where a real step lasts
several times as long as its work.
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
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from penstock.config.keeping import CheckpointSpec
from penstock.config.run import Online, Run
from penstock.core.events import Event
from penstock.observe.machine import EVERY, Machine
from penstock.observe.monitors import monitors_of
from penstock.observe.monitors.monitor import ALL, SPACING
from penstock.recipes.randomwalks import randomwalks
from penstock.runtime import launch, launching
from penstock.runtime.listeners import Delivery

WARM = 45.0
"""Seconds in which services are opened."""
BLOCK, SKIPPED = 31.0, 11.0
"""Seconds of a block, and those at its begin that are left out."""
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
    """Hears each event before the monitors do, passes it on or not, and measures blocks of steps."""

    pairs: int
    targets: Sequence[Delivery] = ()
    steps: int = 0
    border: float = 0.0
    """When the block began; until the first does, when the run did."""
    start: tuple[int, np.ndarray] | None = None
    """Step and clocks from which on the block is measured."""
    blocks: list[np.ndarray] = field(default_factory=list)
    """Seconds a step: wall, CPU of the learner's thread and of the monitors, which hear of every other block from the first."""
    warm: int = 0

    def __call__(self, event: Event) -> None:
        if len(self.blocks) % 2 == 0:
            for target in self.targets:
                target(event)
        if event["kind"] != "metrics":
            return
        now = time.perf_counter()
        self.border, self.steps = self.border or now, self.steps + 1
        if not self.warm:
            # Services are sent all of the first steps, and later ones as far as they are so long apart.
            if now - self.border >= WARM and (self.steps > ALL or now - self.border > SPACING * self.steps):
                self.warm, self.border = self.steps, now
        elif self.start is None:
            if now - self.border >= SKIPPED:
                self.start = self.steps, clocks()
        elif now - self.border >= BLOCK:
            step, before = self.start
            self.blocks.append((clocks() - before) / (self.steps - step))
            self.start, self.border = None, now
            if len(self.blocks) == 2 * self.pairs:
                raise KeyboardInterrupt


OTHERS = {"MainThread", "rewards", "machine"}
"""Threads of a run that are not those of its monitors."""


def clocks() -> np.ndarray:
    """Seconds of wall time, of CPU time of this thread, and of CPU time of the monitors' threads and processes."""
    spent = time.process_time()
    for thread in threading.enumerate():
        if thread.name in OTHERS and thread.ident is not None:
            spent -= time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "http.server" not in " ".join(child.cmdline()):  # the service
                spent += sum(child.cpu_times()[:2])
    return np.array([time.perf_counter(), time.thread_time(), spent])


def watched(run: Run, folder: Path, switch: Switch) -> float:
    """Carry the run out with the switch before its monitors; gives the seconds from its last block to its end."""
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
    return time.perf_counter() - switch.border


def task(times: int, monitors: Sequence[str]) -> Run:
    """GRPO of randomwalks from random weights; neither checkpoints nor evaluations are between the steps."""
    run = randomwalks("grpo")
    stage = next(stage for stage in run.stages if isinstance(stage, Online))
    stage = replace(
        stage, model=run.stages[0].model, evaluation=None, reference=None, steps=1_000_000, batch=times * stage.batch
    )
    return replace(run, stages=(stage,), monitors=tuple(monitors), checkpoint=CheckpointSpec(every=0), headline="", threads=1)


def fed(run: Run, folder: Path, pace: float, blocks: int) -> np.ndarray:
    """CPU seconds of the monitors a step by block, where a step comes every ``pace`` seconds."""
    folder.mkdir()
    draw, names, found = np.random.default_rng(0), [f"numbers/of-{place}" for place in range(40)], []
    rows = [{"prompt": "0 1 2", "text": "0 4 7 2", "reward": 0.5, "rewards": {"walk": 0.5}, "length": 4}] * 4
    with launching.delivering([], monitors_of(run, folder)) as targets:
        step, before = ALL, np.zeros(3)
        for block in range(blocks + 1):  # the first is for opening
            count, end = 0, time.perf_counter() + (BLOCK - SKIPPED if block else WARM)
            while time.perf_counter() < end:
                step, count = step + 1, count + 1
                about = {"time": time.time(), "stage": run.stages[0].name, "step": step}
                values = dict(zip(names, draw.random(len(names)).tolist(), strict=True))
                for target in targets:
                    target({"kind": "metrics", "values": values, **about})
                    target({"kind": "samples", "rows": rows, **about})
                time.sleep(pace)
            now = clocks()
            found.append((now - before)[2] / count)
            before = now
    return np.array(found[1:])


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


def interval(values: np.ndarray) -> tuple[float, float, float]:
    """The mean, and its interval of 95% by bootstrap."""
    draws = np.random.default_rng(0).choice(values, (10_000, len(values))).mean(axis=1)
    low, high = np.percentile(draws, [2.5, 97.5])
    return float(values.mean()), float(low), float(high)


def report(blocks: np.ndarray) -> None:
    """Milliseconds a step and shares of it."""
    on, off = blocks[0::2], blocks[1::2]
    wall, learner, _ = off.mean(axis=0)
    print(f"a step without monitors: {1e3 * wall:.1f} ms, {1e3 * learner:.1f} ms of CPU")
    for name, values, step in (
        ("wall, more by", on[:, 0] - off[:, 0], wall),
        ("CPU of the learner's thread, more by", on[:, 1] - off[:, 1], learner),
        ("CPU of the monitors", on[:, 2], learner),
        ("the same, of wall time", on[:, 2], wall),
        ("CPU of the monitors while they hear nothing", off[:, 2], learner),
    ):
        mean, low, high = interval(values)
        print(f"{name:<44} {1e3 * mean:7.3f} ms a step, {mean / step:6.2%} ({low / step:.2%} to {high / step:.2%})")


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("kind", choices=("live", "dead"))
    given.add_argument("--pairs", type=int, default=8)
    given.add_argument("--times", type=int, default=1, help="how many times as many prompts a step trains on")
    given.add_argument("--pace", type=float, default=0.0, help="seconds between steps of no learner")
    given.add_argument("--monitors", default="", help="names with commas; all by default")
    chosen = given.parse_args()
    with contextlib.ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory()))
        held.enter_context(contextlib.chdir(folder))  # MLflow puts samples next to where it is called
        named = services(chosen.kind, folder, held)
        entries = [named[name] for name in chosen.monitors.split(",")] if chosen.monitors else list(named.values())
        if chosen.pace:
            mean, low, high = interval(fed(task(1, entries), folder / "run", chosen.pace, chosen.pairs))
            shares = f"{mean / chosen.pace:.2%} ({low / chosen.pace:.2%} to {high / chosen.pace:.2%})"
            print(f"CPU of the monitors {1e3 * mean:.3f} ms in each step of {chosen.pace} s, {shares}")
            return
        switch = Switch(chosen.pairs)
        ending = watched(task(chosen.times, entries), folder / "run", switch)
        found = np.array(switch.blocks)
        print(json.dumps({"kind": chosen.kind, "monitors": entries, "blocks": len(found), "warm steps": switch.warm}))
        print(f"from the last step to the end {ending:.1f} s; missed {[target.missed for target in switch.targets]} events")
        report(found)
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

"""How quick the live page is with a long run: first paint, curves, a change of step, memory.

Makes a run of 10,000 steps with 10 samples each (as a run would write it: ``EventLog``, ``Spans``), starts ``penstock ui`` on
it, asks it what the page asks, and, where Chromium is, opens the page. Prints a table.

    python benchmarks/live_page.py [--steps 10000] [--rows 10] [--runs 200] [--folder FOLDER]
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from penstock.core.events import EventLog
from penstock.core.spans import Spans

WORDS = [
    "water",
    "gate",
    "turbine",
    "pipe",
    "flow",
    "head",
    "valve",
    "dam",
    "river",
    "wheel",
    "power",
    "stream",
    "slot",
    "batch",
]
METRICS = 36
"""Numbers of a step, as many as a GRPO run logs."""


def make_run(folder: Path, name: str, steps: int, rows: int, seed: int = 0) -> Path:
    """A run as ``penstock train`` would have left it, with made-up numbers."""
    path, draw = folder / name, random.Random(seed)
    path.mkdir(parents=True)
    stage = {"kind": "Online", "name": "grpo", "steps": steps}
    (path / "run.json").write_text(
        json.dumps({"kind": "Run", "name": name, "seed": seed, "stages": [stage], "sentinels": "on"})
    )
    log = EventLog(path / "events.jsonl")
    log.stage = "grpo"
    log.lifecycle(0, "stage started", steps=steps)
    for step in range(1, steps + 1):
        reward = 1 / (1 + math.exp(4 - 8 * step / steps)) + draw.gauss(0, 0.05)
        values = {
            "reward/mean": reward,
            "kl/reference": step * 1e-5,
            "entropy/sampled": 2 - step / steps,
            "loss": draw.gauss(0, 0.1),
        }
        values |= {f"other/number {place}": draw.gauss(place, 1) for place in range(METRICS - len(values))}
        log.metrics(step, values)
        if rows:
            log.samples(step, [sample(draw, step, place) for place in range(rows)])
    log.close()
    spans = Spans(path / "spans" / "learner.jsonl", "learner")
    for step in range(min(steps, 2000)):
        spans.add("wait", step * 2.0, step * 2.0 + 0.5)
        spans.add("train", step * 2.0 + 0.5, step * 2.0 + 1.9, step=step, lag={0: 10, 1: 100})
    spans.close()
    return path


def sample(draw: random.Random, step: int, place: int) -> dict[str, Any]:
    """One made-up row of 100 words."""
    words = draw.choices(WORDS, k=100)
    return {
        "prompt": f"Prompt {(step * 5 + place // 2) % 997}: describe a {words[0]}.",
        "text": " ".join(words),
        "reward": draw.random(),
        "rewards": {"quality": draw.random()},
        "length": 100,
        "finish": "stop",
        "error": None,
        "key": f"rows/0/{step}#{place}",
        "version": step - 1,
        "held_out": False,
    }


def timed(url: str, count: int = 1) -> tuple[float, int, Any]:
    """Median seconds of asking, bytes, and the last answer."""
    times, body = [], b""
    for _ in range(count):
        began = time.perf_counter()
        with urllib.request.urlopen(url, timeout=120) as answer:
            body = answer.read()
        times.append(time.perf_counter() - began)
    return statistics.median(times), len(body), json.loads(body)


def resident(process: int) -> float:
    """MB of memory that a process holds now."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{process}/status").read_text())
    return int(found[1]) / 1024 if found else math.nan


def measure_server(base: str, run: str, process: int, steps: int) -> None:
    """What the page asks for, one after the other."""
    print(f"memory at the start: {resident(process):.0f} MB")
    began = time.perf_counter()
    asked = 0
    while True:
        seconds, _, head = timed(f"{base}/api/runs/{run}")
        asked += 1
        if asked == 1:
            print(f"first answer about the run: {seconds * 1e3:.0f} ms ({head['share']:.0%} of the log read)")
        if head["complete"]:
            break
    print(f"the whole log read: {time.perf_counter() - began:.2f} s in {asked} requests")
    curves = f"{base}/api/runs/{run}/curves?stage=grpo&smooth=1"
    seconds, size, _ = timed(curves)
    print(f"curves, first: {seconds * 1e3:.0f} ms, {size / 1024:.0f} KB; again: {timed(curves, 9)[0] * 1e3:.1f} ms")
    some = [timed(f"{base}/api/runs/{run}/samples?stage=grpo&step={1 + (place * 7919) % steps}")[0] for place in range(50)]
    print(f"a step's samples: median {statistics.median(some) * 1e3:.1f} ms, largest {max(some) * 1e3:.1f} ms, of 50")
    print(f"steps that have samples: {timed(f'{base}/api/runs/{run}/steps?stage=grpo', 5)[0] * 1e3:.1f} ms")
    same = timed(f"{base}/api/runs/{run}/same?stage=grpo&step=5&row=0")
    print(f"same prompt at other steps: {same[0] * 1e3:.0f} ms, {len(same[2]['steps'])} steps named")
    first, again = timed(f"{base}/api/runs/{run}/time")[0], timed(f"{base}/api/runs/{run}/time")[0]
    print(f"timeline: {first * 1e3:.0f} ms; again: {again * 1e3:.0f} ms")
    print(f"memory with the run's index: {resident(process):.0f} MB")


def measure_page(link: str, run: str) -> None:
    """What a person waits for, in Chromium."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        print("playwright is not installed; the page itself was not measured")
        return
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        print("chromium is not installed; the page itself was not measured")
        return
    with sync_playwright() as driver:
        page = driver.chromium.launch(executable_path=program).new_page(viewport={"width": 1280, "height": 860})
        began = time.perf_counter()
        page.goto(f"{link.split('#')[0]}#/run/{run}/curves")
        page.wait_for_selector(".curve path.line")
        paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0")
        print(f"page: first contentful paint {paint:.0f} ms, first curve drawn {(time.perf_counter() - began) * 1e3:.0f} ms")
        page.click("text=Samples")
        page.wait_for_selector(".answer")
        times = []
        for _ in range(20):
            before = page.text_content("output.step")
            began = time.perf_counter()
            page.keyboard.press("ArrowLeft")
            page.wait_for_function("before => document.querySelector('output.step').textContent !== before", arg=before)
            page.wait_for_function("() => document.querySelector('.answer') !== null")
            times.append(time.perf_counter() - began)
        print(f"page: a step back by key: median {statistics.median(times) * 1e3:.0f} ms")
        heap = page.evaluate("performance.memory?.usedJSHeapSize ?? 0") / 2**20
        print(f"page: {heap:.0f} MB of script memory")


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--steps", type=int, default=10_000)
    given.add_argument("--rows", type=int, default=10)
    given.add_argument("--runs", type=int, default=200)
    given.add_argument("--folder", type=Path, default=None)
    chosen = given.parse_args()
    folder = chosen.folder or Path(tempfile.mkdtemp(prefix="live-page-"))
    if not (folder / "long").exists():
        make_run(folder, "long", chosen.steps, chosen.rows)
        for place in range(chosen.runs - 1):
            make_run(folder, f"short-{place}", 200, 0, seed=place)
    print(f"a log of {(folder / 'long/events.jsonl').stat().st_size / 2**20:.0f} MB, {chosen.steps * chosen.rows:,} samples")
    command = [sys.executable, "-m", "penstock.cli.main", "ui", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        link = server.stdout.readline().split(" at ")[1].split(" ")[0]
        base = link.split("/#")[0]
        try:
            first, again = timed(f"{base}/api/runs")[0], timed(f"{base}/api/runs", 5)[0]
            print(f"listing of {chosen.runs} runs: first {first * 1e3:.0f} ms, again {again * 1e3:.0f} ms")
            measure_server(base, "long", server.pid, chosen.steps)
            measure_page(link, "long")
        finally:
            server.terminate()


if __name__ == "__main__":
    main()

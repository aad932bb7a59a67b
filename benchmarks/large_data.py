"""How soon training begins on a file of many rows, and how much memory each process takes for it.

    python benchmarks/large_data.py --folder large                    # 10 million rows of 2 kB, 20 GB
    python benchmarks/large_data.py --folder large --rows 100000      # 200 MB

The file is written once into ``--folder``. Fine-tuning in one process and GRPO in processes begin on it twice: the first time
the file is read through and its index is kept, the second time the index is used. The same runs on 1,000 rows say what model
and program take.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from penstock.algos import GRPO, SFT
from penstock.config.run import CheckpointSpec, DataSpec, LearnerSpec, ModelSpec, Offline, Online, RewardSpec, Run
from penstock.core.types import Sampling

FEW = 1000
WORDS = "the sky over the harbour was of a colour that nobody in town had a name for "
MODEL = ModelSpec(preset="1m", vocabulary=300, context=2048)
LEARNER = LearnerSpec(learning_rate=1e-4)


def write(path: Path, rows: int) -> None:
    """Rows of about 2 kB, a prompt and a completion each."""
    long = WORDS * 24
    with path.open("w", encoding="utf-8") as out:
        for number in range(rows):
            row = {
                "prompt": f"{number} plus {number % 97} is",
                "completion": f" {number + number % 97}.",
                "context": f"{number} {long}",
            }
            out.write(json.dumps(row) + "\n")


def short(sample: Any, columns: Any) -> float:
    """A reward."""
    return -float(len(sample.text))


def sft(rows: str, corpus: str) -> Run:
    """Fine-tuning of a small model."""
    first = Offline(
        name="tokens", algorithm=SFT(), model=MODEL, data=DataSpec(source=corpus), learner=LEARNER, batch=8, steps=1
    )
    model = ModelSpec(path="@tokens")
    stage = Offline(name="many", algorithm=SFT(), model=model, data=DataSpec(source=rows), learner=LEARNER, batch=8, steps=2)
    return Run(name="large", stages=(first, stage), device="cpu", threads=1, checkpoint=CheckpointSpec(every=1))


def grpo(rows: str, corpus: str) -> Run:
    """GRPO of the same model."""
    first = sft(rows, corpus).stages[0]
    stage = Online(
        name="many",
        algorithm=GRPO(),
        model=ModelSpec(path="@tokens"),
        data=DataSpec(source=rows),
        rewards=(RewardSpec(function=f"{__file__}:short"),),
        sampling=Sampling(max_new_tokens=8),
        learner=LEARNER,
        batch=4,
        samples=4,
        steps=2,
    )
    return Run(name="large", stages=(first, stage), device="cpu", threads=1, checkpoint=CheckpointSpec(every=1))


def peaks(group: int) -> dict[int, tuple[str, int]]:
    """Peak memory in bytes, and the name, of each living process of a session."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(entry.name)) != group and os.getpgid(int(entry.name)) != group:
                parent = int((entry / "stat").read_text().rpartition(") ")[2].split()[1])
                if parent != group:
                    continue
            status = dict(line.split(":", 1) for line in (entry / "status").read_text().splitlines())
            words = (entry / "cmdline").read_bytes().split(b"\0")[:-1]
            name = words[-1].decode() if b"penstock.runtime.role" in words else "supervisor"
            found[int(entry.name)] = name, int(status["VmHWM"].split()[0]) << 10
        except (OSError, KeyError, IndexError):
            continue
    return found


def measure(recipe: str, data: Path, corpus: Path, folder: Path) -> tuple[float, dict[str, int]]:
    """Seconds from the command to the first step of the stage that reads ``data``, and the peak of each process."""
    shutil.rmtree(folder / "runs", ignore_errors=True)
    runtime = "local" if recipe == "sft" else "procs"
    command = [sys.executable, "-m", "penstock.cli.main", "train", f"{Path(__file__).resolve()}:{recipe}", "--rows", str(data)]
    command += ["--corpus", str(corpus), "--name", "large", "--runtime", runtime]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(folder / "cache")}
    began = time.time()
    process = subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True, stdout=subprocess.DEVNULL)
    highest: dict[str, int] = {}
    while process.poll() is None:
        for name, peak in peaks(process.pid).values():
            highest[name] = max(peak, highest.get(name, 0))
        time.sleep(0.05)
    assert process.returncode == 0, f"{recipe} ended with {process.returncode}"
    events = [json.loads(line) for line in (folder / "runs/large/events.jsonl").read_text().splitlines()]
    stepped = next(event["time"] for event in events if event["kind"] == "metrics" and event.get("stage") == "many")
    return stepped - began, highest


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--folder", type=Path, required=True)
    asked.add_argument("--rows", type=int, default=10_000_000)
    given = asked.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    few, many = given.folder / "few.jsonl", given.folder / f"rows-{given.rows}.jsonl"
    write(few, FEW)
    if not many.exists():
        write(many, given.rows)
    print(f"{given.rows:,} rows, {many.stat().st_size / 1e9:.2f} GB")
    for recipe in ("sft", "grpo"):
        shutil.rmtree(given.folder / "cache", ignore_errors=True)
        model, alone = measure(recipe, few, few, given.folder)
        for what in ("read through", "from the index"):
            seconds, highest = measure(recipe, many, few, given.folder)
            memory = ", ".join(f"{name} {(peak - alone.get(name, 0)) / 1e6:+.0f} MB" for name, peak in sorted(highest.items()))
            print(
                f"{recipe}, {what}: first step after {seconds:.1f} s, with {FEW} rows {model:.1f} s; memory: {memory}",
                flush=True,
            )


if __name__ == "__main__":
    main()

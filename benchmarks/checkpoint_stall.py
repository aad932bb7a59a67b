"""How long training waits for a checkpoint: written before the next step, or next to it, or uploaded as well.

    python benchmarks/checkpoint_stall.py [--layers 16] [--steps 40]

One fine-tuning run of a model of about 100 MB (300 MB of masters and moments) in each way, by turns, twice.
The first way is the second with the copy in memory left out, so that only the order of things differs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from penstock.algos import SFT
from penstock.ckpt.entries import Pending
from penstock.config.run import CheckpointSpec, DataSpec, LearnerSpec, ModelSpec, Offline, Run
from penstock.runtime import launch

EVERY = 8
IN_PIECES = Pending.in_pieces


def rows() -> list[dict[str, Any]]:
    return [{"prompt": f"{number} and {number + 1} are ", "answer": f"{2 * number + 1}"} for number in range(512)]


def run_of(layers: int, steps: int, store: str, every: int) -> Run:
    stage = Offline(
        name="sft",
        algorithm=SFT(),
        model=ModelSpec(preset="10m", layers=layers, vocabulary=512, context=64),
        data=DataSpec(source=f"{__file__}:rows", completion="{{ answer }}"),
        learner=LearnerSpec(learning_rate=1e-4),
        batch=64,
        steps=steps,
    )
    return Run(name="stall", stages=(stage,), device="cpu", threads=1, checkpoint=CheckpointSpec(every=every, store=store))


def measure(layers: int, steps: int, way: str) -> dict[str, list[float]]:
    """Seconds of steps, and seconds that the loop waited for each save but the last, whose end the run waits for."""
    with tempfile.TemporaryDirectory() as place:
        Pending.in_pieces = property(lambda self: True) if way == "before the next step" else IN_PIECES  # type: ignore[assignment, method-assign]
        store = f"file://{place}/bucket" if way.endswith("uploaded") else ""
        folder = Path(place) / "run"
        result = launch(run_of(layers, steps, store, 0 if way == "no saves" else EVERY), folder)
        lines = [json.loads(line) for line in (folder / "spans/learner.jsonl").read_text().splitlines()]
        stalls = [
            line["end"] - line["start"] for line in lines if line.get("name") == "save" and line.get("step", steps) < steps
        ]
        times = [event["time"] for event in result.metrics if "loss" in event["values"]]
        trained = [line["end"] - line["start"] for line in lines if line.get("name") == "train" and line["step"] > 1]
        sizes = [path.stat().st_size for path in (folder / "model").glob("*.safetensors")]
        return {"stall": stalls, "step": trained, "all": [times[-1] - times[1]], "bytes": [float(sum(sizes))]}


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--layers", type=int, default=16)
    asked.add_argument("--steps", type=int, default=40)
    given = asked.parse_args()
    ways = ("no saves", "before the next step", "next to training", "next to training, uploaded")
    found: dict[str, dict[str, list[float]]] = {way: {} for way in ways}
    for _ in range(2):
        for way in ways:
            for name, values in measure(given.layers, given.steps, way).items():
                found[way].setdefault(name, []).extend(values)
    print(f"model of {found[ways[0]]['bytes'][0] / 1e6:.0f} MB, one thread, {given.steps} steps, twice each")
    for way, values in found.items():
        stall = statistics.median(values["stall"]) if values["stall"] else 0.0
        longest = max(values["stall"], default=0.0)
        print(
            f"{way}: a save stalls {stall:.3f} s (longest {longest:.3f}), a step takes "
            f"{statistics.median(values['step']):.3f} s, steps 2 to {given.steps} take {statistics.mean(values['all']):.1f} s"
        )


if __name__ == "__main__":
    main()

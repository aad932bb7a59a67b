"""SFT, DPO and a reward model beside TRL on the same work, in one run: ``python benchmarks/offline.py --peer-python PYTHON``.

Work: 20 optimizer steps of each on the bench model (3.2M parameters), float32: 24 GSM8K solutions a step, or 16 pairs of
dialogues of at most 256 tokens. Speed is real tokens a second, counted as the peer's script counts them (a prompt that two
rows share counts twice). The peer's script and the model's maker are in ``../shared/bench``; the peer needs an environment
with ``torch==2.13.0 transformers trl==1.16 datasets``. Without ``--peer-python`` only our side is measured. Rounds of both
sides alternate, and medians are compared: ``sft R x``, ``dpo R x``, ``reward R x``.

``--settings default whole mixed`` measures our side in several settings, whose rounds alternate too, and prints each beside the
first: the whole last block (``whole``), and matrix products in bfloat16 (``mixed``) or everything (``bfloat16``).
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SHARED = Path(__file__).resolve().parents[2] / "shared"
STEPS = 20
SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "default": ({}, {}),
    "whole": ({}, {"narrow": False}),
    "mixed": ({"dtype": "mixed"}, {}),
    "bfloat16": ({"dtype": "bfloat16"}, {}),
}
"""Fields of the learner's spec, and attributes of its policy."""


def _length(text: str) -> int:
    from penstock.models.files import load_text

    if "text" not in _KNOWN:
        _KNOWN["text"] = load_text(os.environ["BENCH_MODEL"])
    return len(_KNOWN["text"].encode(text))


_KNOWN: dict[str, Any] = {}


def solutions() -> list[dict[str, str]]:
    """The peer's examples."""
    lines = (SHARED / "data/gsm8k/train.jsonl").read_text(encoding="utf-8").splitlines()[:1024]
    return [json.loads(line) for line in lines]


def preferences() -> list[dict[str, str]]:
    """The peer's pairs: the first 512 of at most 256 tokens."""
    found = []
    with gzip.open(SHARED / "data/hh-rlhf/harmless-base-test.jsonl.gz", "rt", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            cut = row["chosen"].rfind("\n\nAssistant:") + 12
            if row["chosen"][:40] == row["rejected"][:40] and max(_length(row["chosen"]), _length(row["rejected"])) <= 256:
                found.append({"prompt": row["chosen"][:cut], "chosen": row["chosen"][cut:], "rejected": row["rejected"][cut:]})
    return found[:512]


def ours(model: str, setting: str = "default") -> dict[str, float]:
    """Real tokens a second of our side, by stage."""
    fields, attributes = SETTINGS[setting]
    os.environ["BENCH_MODEL"] = model
    from penstock.algos import DPO, SFT, BradleyTerry
    from penstock.config.run import DataSpec, LearnerSpec, ModelSpec, Offline, Run
    from penstock.runtime.build import Models
    from penstock.runtime.stages import prepare
    from penstock.train.device import set_up

    here = str(Path(__file__).resolve())
    examples = DataSpec(source=f"{here}:solutions", prompt="{{ question }}\n", completion="{{ answer }}")
    pairs = DataSpec(source=f"{here}:preferences")
    work: dict[str, tuple[Any, DataSpec, int]] = {
        "sft": (SFT(), examples, 24),
        "dpo": (DPO(), pairs, 16),
        "reward": (BradleyTerry(), pairs, 16),
    }
    speeds = {}
    for name, (algorithm, data, batch) in work.items():
        spec, learner = ModelSpec(path=model), LearnerSpec(**fields)
        stage = Offline(name=name, model=spec, data=data, algorithm=algorithm, learner=learner, batch=batch, steps=STEPS)
        run = Run(name="bench", stages=(stage,), device="cpu")
        device = set_up(run.device, run.threads)
        with tempfile.TemporaryDirectory() as folder:
            made = prepare(stage, run, Models(lambda name, at=folder: Path(at) / name, device, 0), Path.cwd())

            for attribute, value in attributes.items():
                setattr(made.learner.policy, attribute, value)

            async def walk(ready: Any = made) -> float:
                return sum([step.metrics["tokens/trained"] async for step in ready.steps(0)])

            began = time.perf_counter()
            tokens = asyncio.run(walk())
            speeds[name] = tokens / (time.perf_counter() - began)
    return speeds


def theirs(python: str, model: str) -> dict[str, float]:
    """Real tokens a second of the peer, as its script prints them."""
    with tempfile.TemporaryDirectory() as folder:
        script = [python, str(SHARED / "bench/trl_offline.py"), str(Path(model).resolve())]
        done = subprocess.run(script, cwd=folder, capture_output=True, text=True, check=False)
    found = {name: float(speed) for name, speed in re.findall(r"^(sft|dpo|reward) (\d+) real tok/s", done.stdout, re.M)}
    if len(found) < 3:
        raise SystemExit(f"the peer gave {found or 'nothing'}:\n{done.stdout[-1000:]}\n{done.stderr[-2000:]}")
    return found


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--peer-python", default="", help="python of an environment with TRL")
    words.add_argument("--model", default="", help="folder of the bench model; made if it is not given")
    words.add_argument("--rounds", type=int, default=3)
    words.add_argument("--settings", nargs="+", choices=SETTINGS, default=["default"])
    given = words.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if not given.model:
            subprocess.run([sys.executable, str(SHARED / "bench/make_model.py"), f"{folder}/model", "60"], check=True)
        model = given.model or f"{folder}/model"
        mine: dict[str, list[dict[str, float]]] = {setting: [] for setting in given.settings}
        peers = []
        for number in range(given.rounds):
            for setting, found in mine.items():
                found.append(ours(model, setting))
                speeds = ", ".join(f"{name} {speed:,.0f}" for name, speed in found[-1].items())
                print(f"round {number + 1}: ours ({setting}) {speeds}", flush=True)
            if given.peer_python:
                peers.append(theirs(given.peer_python, model))
                print(f"round {number + 1}: TRL  " + ", ".join(f"{n} {v:,.0f}" for n, v in peers[-1].items()), flush=True)
    first, *_ = mine
    for name in mine[first][0]:
        for setting, rounds in mine.items():
            speed = statistics.median(found[name] for found in rounds)
            beside = [(first, mine[first])] if setting != first else []
            beside += [("TRL", peers)] if peers else []
            ratios = [f", {speed / statistics.median(found[name] for found in other):.2f} x {who}" for who, other in beside]
            print(f"{name} ({setting}): {speed:,.0f} real tokens/s{''.join(ratios)}")


if __name__ == "__main__":
    main()

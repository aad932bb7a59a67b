"""DDPO next to TRL's, on one denoiser: pictures a second, generated and trained, and what a gold classifier reads.

    python benchmarks/denoising.py --seeds 3 --steps 60 --peer /path/to/python

``--peer`` is a Python that has trl 0.23.1, the last with DDPO, and diffusers (``benchmarks/peers/trl_ddpo.py``);
without it only ours runs. A denoiser of handwritten digits is trained on labels of which half are wrong, once a seed;
then both go on from its weights: 16 prompts x 16 samples of ten DDIM transitions a batch, nine of them trained on, four
updates of AdamW, the same rate, clip and reward. Every run is a process of its own with one thread. Seconds are those
of the loop without its first two batches: generation, rewards, advantages and updates, for ours the event log and
checkpoints as well.

``--flow``: ours alone, Flow-GRPO in step and in processes with updates in flight (``max_lag`` 2).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
PEER = HERE.parent / "peers" / "trl_ddpo.py"
WARM = 2
IMAGES = 256


def pretrained(seed: int, algorithm: str, folder: Path) -> Path:
    """A denoiser of the recipe, saved with the tokens of its prompts next to it."""
    from penstock.recipes.digits import digits
    from penstock.runtime import launch

    run: Any = digits(algorithm=algorithm, seed=seed)  # type: ignore[arg-type]
    made = launch(replace(run, stages=run.stages[:1]), folder).model_path
    from tokenizers import Tokenizer

    reads = Tokenizer.from_file(str(made / "tokenizer.json"))
    (made / "prompts.json").write_text(json.dumps({str(digit): reads.encode(str(digit)).ids for digit in range(10)}))
    return Path(made)


def ours(seed: int, algorithm: str, steps: int, start: str, runtime: str) -> dict[str, Any]:
    """The second stage of the recipe in this process, from a saved denoiser."""
    from penstock.recipes.digits import digits
    from penstock.runtime import launch

    run: Any = digits(algorithm=algorithm, seed=seed, steps=steps)  # type: ignore[arg-type]
    stage = run.stages[1]
    model = replace(stage.model, path=start)
    evaluation = replace(stage.evaluation, every=steps)
    with tempfile.TemporaryDirectory() as folder:
        stage = replace(stage, model=model, evaluation=evaluation, max_lag=2 if runtime == "procs" else 0)
        used: list[float] = []
        clock = lambda event: used.append(time.process_time()) if "seconds/trained" in event.get("values", {}) else None  # noqa: E731
        result = launch(replace(run, stages=(stage,), runtime=runtime), Path(folder) / "run", [clock])
        events = [event for event in result.metrics if "seconds/trained" in event["values"]]
    times = [event["time"] for event in events]
    return {
        "images": IMAGES * (len(events) - WARM),
        "seconds": times[-1] - times[WARM - 1],
        "cpu_seconds": used[-1] - used[WARM - 1],
        "generating": sum(event["values"]["seconds/generated"] for event in events[WARM:]),
        "gold": result.summary["stages"][stage.name]["last"]["evaluation/gold"],
    }


def measured(command: list[str]) -> dict[str, Any]:
    """What a process prints on its last line."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--peer", default="")
    parser.add_argument("--flow", action="store_true")
    parser.add_argument("--one", nargs=3, default=(), metavar=("SEED", "FOLDER", "RUNTIME"), help="run ours in this process")
    parser.add_argument("--before", nargs=2, default=(), metavar=("SEED", "FOLDER"), help="pre-train in this process")
    given = parser.parse_args()
    algorithm = "flow" if given.flow else "ddpo"
    if given.before:
        print(json.dumps(str(pretrained(int(given.before[0]), algorithm, Path(given.before[1])))))
        return
    if given.one:
        print(json.dumps(ours(int(given.one[0]), algorithm, given.steps, given.one[1], given.one[2])))
        return
    here = [sys.executable, str(HERE), "--steps", str(given.steps), *(["--flow"] if given.flow else [])]
    found: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(given.seeds):
            start: Any = measured([*here, "--before", str(seed), f"{folder}/{seed}"])
            commands = {"ours": [*here, "--one", str(seed), start, "local"]}
            if given.flow:
                commands["ours, in flight"] = [*here, "--one", str(seed), start, "procs"]
            if given.peer:
                commands["TRL"] = [given.peer, str(PEER), start, "--steps", str(given.steps), "--seed", str(seed)]
            for name, command in commands.items():
                found.setdefault(name, []).append(measured(command))
                print(f"seed {seed}  {name:<16} {json.dumps(found[name][-1])}", flush=True)
    for name, runs in found.items():
        rates = [one["images"] / one["seconds"] for one in runs]
        drawn = [one["images"] / one["generating"] for one in runs]
        used = statistics.median([1000 * one["cpu_seconds"] / one["images"] for one in runs])
        ratio = statistics.median(rates) / statistics.median([one["images"] / one["seconds"] for one in found["ours"]])
        print(
            f"{name:<16} {statistics.median(rates):8,.0f} pictures/s in all ({ratio:.2f} of ours), "
            f"{statistics.median(drawn):8,.0f} generated, {used:.2f} ms of the process's CPU a picture; "
            f"gold {[round(one['gold'], 3) for one in runs]}"
        )


if __name__ == "__main__":
    main()

"""``penstock.train`` with processes, from a script and from a cell whose event loop runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from runs import last_step

SCRIPT = """
import asyncio, sys
import penstock
import procs_recipes
from dataclasses import replace
from penstock.config.keeping import RolesSpec

ROWS = [{"prompt": a + b, "row": n} for n, (a, b) in enumerate(zip("abcdefgh", "ijklmnop"))]

def score(sample, columns):
    return columns["row"] / 8 if sample.text else 0.0

def run(steps=2):
    made = procs_recipes.letters(steps=steps)
    stage = replace(made.stages[0], data=penstock.rows(ROWS), rewards=(penstock.reward(score),))
    return replace(made, stages=(stage,), runtime="procs")

def train(**more):
    return penstock.train(run(more.pop("steps", 2)), folder="runs/run", **more)
"""
GUARDED = '\nif __name__ == "__main__":\n'
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


def script(folder: Path, end: str) -> list[str]:
    (folder / "script.py").write_text(f"import sys\nsys.path.append({str(Path(__file__).parent)!r})\n{SCRIPT}{end}")
    return [sys.executable, "script.py"]


def ran(folder: Path, end: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(script(folder, end), cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)


def interrupted(process: subprocess.Popen[str], folder: Path) -> str:
    """What a run says at its end that is interrupted once it has taken a step more."""
    reached, deadline = last_step(folder / "runs/run"), time.monotonic() + 300
    while last_step(folder / "runs/run") <= reached:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    return process.communicate(timeout=120)[1]


def test_a_script_trains_with_rows_and_a_reward_of_its_own(tmp_path: Path) -> None:
    end = GUARDED + "    result = train()\n    print(len(result.metrics), result.headline)\n"
    done = ran(tmp_path, end)
    assert done.returncode == 0, done.stderr
    shown = done.stdout.splitlines()
    assert any(line.startswith("grpo 1/2") for line in shown), "progress is shown by the process that launched"
    assert shown[-1].startswith("2 ")
    assert (tmp_path / "runs/run/report.html").is_file()


@pytest.mark.usefixtures("cold")  # a fork has read the script already
def test_a_script_without_a_guard_is_told_of_it(tmp_path: Path) -> None:
    done = ran(tmp_path, "\ntrain(progress=False)\n")
    assert done.returncode == 1
    assert 'below if __name__ == "__main__":' in done.stderr.splitlines()[-1]


def test_a_cell_trains_is_interrupted_and_goes_on(tmp_path: Path) -> None:
    end = GUARDED + (
        "    async def cell():\n"
        "        return train(steps=200 if len(sys.argv) < 2 else int(sys.argv[1]), progress=False)\n"
        "    asyncio.run(cell())\n"
    )
    command = script(tmp_path, end)
    process = subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    said = interrupted(process, tmp_path)
    assert "KeyboardInterrupt: stopped after step" in said.splitlines()[-1]
    assert "go on with: penstock train --resume runs/run" in said
    spec = json.loads((tmp_path / "runs/run/run.json").read_text())
    assert Path(spec["stages"][0]["data"]["source"]).is_file()
    resumed = subprocess.Popen(
        [sys.executable, "-m", "penstock.cli.main", "train", "--resume", "runs/run"],
        cwd=tmp_path, env={**ENVIRONMENT, "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{Path(__file__).parent}"},
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    interrupted(resumed, tmp_path)
    assert resumed.returncode == 130

"""The batch script in a real Slurm: a run that is preempted, or near its time limit, is queued again, goes on and finishes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from followed import LETTERS, Followed
from slurm_cluster import OneNode, missing

pytestmark = [
    pytest.mark.skipif(bool(missing()), reason=f"not installed: {', '.join(missing())} (Debian: slurm-wlm, munge)"),
]

STEPS = 20


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneNode]:
    made = OneNode(tmp_path_factory.mktemp("slurm"))
    yield made
    made.close()


def deploy(slurm: OneNode, folder: Path, *words: str) -> str:
    """What ``penstock deploy`` prints."""
    named = ["deploy", LETTERS, "--target", "slurm", "--name", "run", "--steps", str(STEPS), "--delay", "0.1"]
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", *named, "--cpus", "1", "--memory", "2G", *words],
        cwd=folder, env=slurm.environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


class BatchRun(Followed):
    """A run that Slurm has been given."""

    def __init__(self, slurm: OneNode, folder: Path, *words: str, apply: bool = False) -> None:
        self.slurm, self.logs, self.run = slurm, folder, folder / "runs" / "run"
        slurm.environment |= {"OMP_NUM_THREADS": "1", "PATH": f"{Path(sys.executable).parent}:{slurm.environment['PATH']}"}
        if apply:
            answer = deploy(slurm, folder, *words, "--apply")
        else:
            answer = slurm.ask("sbatch", given=deploy(slurm, folder, *words), folder=folder)
        assert answer.startswith("Submitted batch job"), answer
        self.job, self.hurried = answer.split()[-1], False

    def look(self) -> str:
        """Slurm starts a job that was queued again after two minutes; here after three seconds, since within one it takes
        it for the one that it has just ended."""
        shown = self.slurm.ask("scontrol", "show", "job", self.job)
        if "JobState=PENDING" in shown and "Restarts=1" in shown and not self.hurried:
            self.slurm.ask("scontrol", "update", f"JobId={self.job}", "StartTime=now+3seconds")
            self.hurried = True
        return shown

    def until_done(self) -> None:
        self.until(lambda: self.slurm.state(self.job) in ("COMPLETED", "FAILED", "CANCELLED"), "end")
        assert self.slurm.state(self.job) == "COMPLETED", self.log + self.slurm.ask("scontrol", "show", "job", self.job)
        assert self.steps() == list(range(1, STEPS + 1))
        assert (self.run / "model").is_dir()

    def restarts(self) -> int:
        """How often Slurm has begun the job again."""
        return int(self.slurm.ask("scontrol", "show", "job", self.job).partition("Restarts=")[2].split()[0])


def test_a_run_that_is_preempted_goes_on_and_finishes(slurm: OneNode, tmp_path: Path) -> None:
    """In processes; before a time limit, below, in one."""
    run = BatchRun(slurm, tmp_path, "--runtime", "procs")
    run.until(lambda: len(run.steps()) >= 4, "fourth step")
    assert run.restarts() == 0
    slurm.ask("scontrol", "requeue", run.job)
    run.until(run.resumed, "second attempt")
    run.until_done()
    assert run.restarts() == 1


def test_before_its_time_limit_a_run_saves_and_is_queued_again(slurm: OneNode, tmp_path: Path) -> None:
    run = BatchRun(slurm, tmp_path, "--runtime", "local", "--checkpoint.every", "0", apply=True)
    run.until(lambda: len(run.steps()) >= 4, "fourth step")
    slurm.ask("scancel", "--batch", "--signal=USR1", run.job)
    run.until(lambda: "everything is saved" in run.log, "save")
    before = len(run.steps())
    run.until_done()
    assert run.resumed() == [f"step {before} of {STEPS}"]
    assert run.restarts() == 1


def test_wrong_input_is_not_tried_again(slurm: OneNode, tmp_path: Path) -> None:
    run = BatchRun(slurm, tmp_path, "--grpo.data.source", "nowhere.jsonl")
    run.until(lambda: slurm.state(run.job) == "FAILED", "end")
    assert "nowhere.jsonl" in run.log
    shown = slurm.ask("scontrol", "show", "job", run.job)
    assert "Restarts=0" in shown
    assert "ExitCode=2:0" in shown

"""Does a run live through a cluster's life? Begun by one kind of launcher, ended in every way, continued by another, elsewhere.

    python benchmarks/lives.py                 # 40 lives, about a quarter of an hour on 2 cores
    python benchmarks/lives.py --lives 6 --lease 45   # with the real lease

Launchers: a shell, Slurm (a real one of one node, where it is installed), the container's command and variables of two
Kubernetes manifests (a JobSet counts its attempts, a TrainJob does not), and another folder, into which the run is brought
from its object store. Each life is on one of three machines: this one under three names, with clocks an hour before, at and
after the time; a process elsewhere is known by its claim alone. A life ends by SIGKILL, by SIGTERM, by being stopped until
long after the next one has begun, or because the next one takes over. In between a second process tries to enter the run, and
must be refused.

Fails where a life does not go on, a second process gets in, two processes write in turn, or the weights at the end are not
those of an undisturbed run; no file is ever removed by hand. ``--lease`` shortens the 45 seconds of a lease, and its beats
with it.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "deploy"), str(TESTS / "runtime" / "procs")]

from runs import events, weights  # noqa: E402
from slurm_cluster import OneNode, missing  # noqa: E402
from strict_schemas import objects  # noqa: E402

from penstock.ckpt.lease import ATTEMPT, FolderClaims, read_claim  # noqa: E402
from penstock.cli.recipe import build  # noqa: E402
from penstock.deploy.job import SPEC  # noqa: E402
from penstock.deploy.options import Options  # noqa: E402
from s3_server import S3Server  # noqa: E402

RECIPE = f"{TESTS / 'runtime' / 'procs' / 'procs_recipes.py'}:letters"
MACHINES = {"north": -3600.0, "middle": 0.0, "south": 3600.0}
"""Names, and how far their clocks are off, in seconds."""
BOUND = 240.0
"""Seconds in which a life must have written a checkpoint of its own."""
SITE = """
import json, os, time
if os.environ.get("LIVES_MACHINE"):
    real, ahead = time.time, float(os.environ["LIVES_CLOCK"])
    time.time = lambda: real() + ahead
    from penstock.ckpt import lease, mirror, store
    from penstock.core import events
    machine = {"host": os.environ["LIVES_MACHINE"], "boot": "1", "container": "1"}
    lease._machine = lambda: machine
    lease.LEASE = float(os.environ["LIVES_LEASE"])
    lease.FolderClaims.beat, lease.StoreClaims.beat = lease.LEASE / 9, lease.LEASE / 3
    def noted(write, place):
        def write_and_note(*given, **more):
            done = write(*given, **more)
            with open(os.environ["LIVES_LOG"], "a") as log:
                log.write(os.environ["LIVES_LIFE"] + " " + (place or os.getcwd()) + "\\n")
            return done
        return write_and_note
    store.CheckpointStore._rename = noted(store.CheckpointStore._rename, "")
    events.EventLog.metrics = noted(events.EventLog.metrics, "")
    mirror.Mirror._send_folder = noted(mirror.Mirror._send_folder, "store")
"""
"""What each process executes first: another machine, another clock, and a note whenever it writes into the run."""


class Lives:
    """The run, wherever its folder is by now, and what has become of it."""

    def __init__(self, home: Path, steps: int, lease: float, store: str, slurm: OneNode | None) -> None:
        self.home, self.steps, self.lease, self.url, self.slurm = home, steps, lease, store, slurm
        self.folder, self.log, self.number = home / "folder-0", home / "writes.txt", 0
        self.folder.mkdir()
        (home / "site").mkdir()
        (home / "site" / "sitecustomize.py").write_text(SITE)
        self.attempts: dict[str, int] = collections.Counter()
        self.words = [RECIPE, "--name", "run", "--steps", str(steps), "--delay", "0.3", "--checkpoint.store", store]
        self.started: dict[int, subprocess.Popen[bytes]] = {}
        self.intruders = 0

    @property
    def run(self) -> Path:
        return self.folder / "runs" / "run"

    @property
    def saved(self) -> int:
        """The step of the newest checkpoint in the folder."""
        return max((int(path.name[-6:]) for path in self.run.glob("checkpoints/stage-*")), default=0)

    def holder(self) -> dict[str, Any]:
        claims = FolderClaims(self.run)
        return read_claim(claims.read(max(claims.numbers(), default=0)))

    def environment(self, machine: str, **more: str) -> dict[str, str]:
        self.number += 1
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        site = os.pathsep.join(filter(None, [str(self.home / "site"), os.environ.get("PYTHONPATH", "")]))
        return {
            **os.environ, "PATH": path, "PYTHONPATH": site, "OMP_NUM_THREADS": "1", "COLUMNS": "200",
            "LIVES_MACHINE": machine, "LIVES_CLOCK": str(MACHINES[machine]), "LIVES_LEASE": str(self.lease),
            "LIVES_LOG": str(self.log), "LIVES_LIFE": str(self.number), **more,
        }  # fmt: skip

    def start(self, command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        with open(self.home / f"life-{environment['LIVES_LIFE']}.log", "wb") as out:
            process = subprocess.Popen(
                command, cwd=self.folder, env=environment, stdout=out, stderr=out, start_new_session=True
            )
        self.started[int(environment["LIVES_LIFE"])] = process
        return process

    def said(self, life: int) -> str:
        file = self.home / f"life-{life}.log"
        return file.read_text(errors="replace")[-3000:] if file.exists() else ""

    def until(self, ready: Callable[[], Any], what: str, life: int) -> None:
        deadline = time.monotonic() + BOUND
        while not ready():
            failed = life in self.started and self.started[life].poll() not in (None, 0)
            if failed or time.monotonic() > deadline:
                raise SystemExit(f"life {life}: no {what}\n{self.said(life)}")
            time.sleep(0.05)

    # ---- launchers

    def shell(self, machine: str, take_over: bool) -> None:
        known = ["--resume", "runs/run"] if self.run.exists() else self.words
        self.start(["penstock", "train", *known, *["--take-over"] * take_over], self.environment(machine))

    def store(self, machine: str, take_over: bool) -> None:
        """Another folder: from here on all launchers find the run there."""
        self.folder = self.home / f"folder-{self.number + 1}"
        self.folder.mkdir()
        self.start(
            ["penstock", "train", "--resume", f"{self.url}/run", *["--take-over"] * take_over], self.environment(machine)
        )

    def pod(self, machine: str, take_over: bool, target: str) -> None:
        made = objects(
            build(RECIPE, self.words[1:]), target, Options(image="penstock:test", claim="runs", secret="aws", cpus=1)
        )
        spec = self.folder / "spec" / "run.json"
        spec.parent.mkdir(exist_ok=True)
        text = next(one for one in made if one["kind"] == "ConfigMap")["data"]["run.json"]
        spec.write_text(re.sub(r'"monitors": \[.*?\]', '"monitors": []', text))  # a port that other lives would want
        (container,) = re.findall(r'"command": (\["bash", "-c", "[^"]*penstock train [^"]*"\])', json.dumps(made))
        command = json.loads(container.replace(SPEC, str(spec)))
        command[-1] += " --take-over" * take_over
        counts = f'"name": "{ATTEMPT}", "valueFrom"' in json.dumps(made)
        attempt = str(self.attempts[target] % 3) if counts else "0"  # a new job after each third
        self.attempts[target] += 1
        self.start(command, self.environment(machine, **{ATTEMPT: attempt}))

    def jobset(self, machine: str, take_over: bool) -> None:
        self.pod(machine, take_over, "jobset")

    def trainjob(self, machine: str, take_over: bool) -> None:
        self.pod(machine, take_over, "trainjob")

    def batch(self, machine: str, take_over: bool) -> None:
        """A job of Slurm's, as ``penstock deploy`` has it; it says nothing of taking over, so that is said before it."""
        assert self.slurm is not None
        environment = self.environment(machine) | {name: self.slurm.environment[name] for name in ("SLURM_CONF",)}
        environment["PATH"] += f":{self.slurm.environment['PATH']}"
        deploy = ["penstock", "deploy", *self.words, "--target", "slurm", "--cpus", "1", "--memory", "2G", "--retries", "0"]
        script = subprocess.run(
            deploy, cwd=self.folder, env={**environment, "LIVES_MACHINE": ""}, capture_output=True, text=True, check=True
        ).stdout
        if take_over:
            script = script.replace("--or-resume", "--or-resume --take-over")
        out = subprocess.run(["sbatch"], input=script, cwd=self.folder, env=environment, capture_output=True, text=True)
        if not out.stdout.startswith("Submitted"):
            raise SystemExit(f"sbatch: {out.stdout}{out.stderr}")

    # ---- lives

    def live(self, launcher: str, machine: str, take_over: bool, chance: random.Random) -> float:
        """Start a life, and wait until it has saved something new; gives the seconds until it held the run."""
        before, began = self.saved if launcher != "store" else 0, time.monotonic()
        getattr(self, launcher)(machine, take_over)
        life = self.number
        self.until(lambda: self._holds(machine) and not self.holder().get("ended"), "lease", life)
        held = time.monotonic() - began
        wanted = max(before, self.saved) + 3 * chance.randint(1, 2)
        self.until(lambda: self.saved >= min(wanted, self.steps), f"checkpoint of step {wanted}", life)
        return held

    def _holds(self, machine: str) -> bool:
        found = self.holder()
        return found.get("host") == machine and self._life_of(found.get("process", 0)) == str(self.number)

    def _life_of(self, process: int) -> str:
        with suppress(OSError):
            found = re.search(rb"LIVES_LIFE=(\d+)", Path(f"/proc/{process}/environ").read_bytes())
            return found[1].decode() if found else ""
        return ""

    def intrude(self, machine: str) -> None:
        """A second process must be refused, with the first one's name."""
        intruder = self.start(["penstock", "train", "--resume", "runs/run"], self.environment(machine))
        code, text = intruder.wait(BOUND), self.said(self.number)
        holder = self.holder()
        if code != 2 or f"process {holder['process']} on {holder['host']}" not in text:
            raise SystemExit(f"an intruder ended with {code}: {text}")
        self.intruders += 1

    def end(self, how: str) -> int:
        """End the life that holds the run; gives its process."""
        process = self.holder()["process"]
        number = {"killed": signal.SIGKILL, "terminated": signal.SIGTERM, "stopped": signal.SIGSTOP}.get(how)
        if number is not None:
            os.kill(process, number)
        if how == "killed":
            self.until(lambda: self._life_of(process) == "", "end of the killed process", self.number)
        return int(process)

    def wake(self, process: int) -> None:
        """One that was stopped goes on, finds that it lost the run, and ends."""
        os.kill(process, signal.SIGCONT)
        self.until(lambda: self._life_of(process) == "", "end of a process that woke up", self.number)

    def require_one_writer_at_a_time(self) -> None:
        """In each folder, and in the store; two folders of one run, of which one is not gone on with, are no fault."""
        wrote = [line.partition(" ")[::2] for line in self.log.read_text().splitlines()]
        for place in dict.fromkeys(where for _, where in wrote):
            lives = [life for life, where in wrote if where == place]
            turns = [life for at, life in enumerate(lives) if at == 0 or lives[at - 1] != life]
            twice = [life for life, count in collections.Counter(turns).items() if count > 1]
            if twice:
                raise SystemExit(f"{place}: lives {', '.join(twice)} wrote after another had begun to: {' '.join(turns)}")

    def close(self) -> None:
        for process in self.started.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(15)


def tell(lives: Lives, number: int, launcher: str, machine: str, seconds: float, how: str) -> None:
    print(f"| {number} | {launcher} | {machine} | {seconds:.1f} | {lives.saved} | {how} |", flush=True)


def lead(lives: Lives, count: int, seed: int) -> None:
    chance = random.Random(seed)
    launchers = ["shell", "jobset", "trainjob", "store", *(["batch"] if lives.slurm else [])]
    asleep: list[int] = []
    how, slept = "", ""
    print("| life | begun by | on | holds the run after, s | saved | ended |\n| ---: | --- | --- | ---: | ---: | --- |")
    for number in range(count):
        launcher = "shell" if number == 0 else launchers[number % len(launchers)]
        machine = chance.choice([name for name in MACHINES if name != slept])
        seconds = lives.live(launcher, machine, how == "taken over", chance)
        while asleep:
            lives.wake(asleep.pop())
        if number % 4 == 1:
            lives.intrude(chance.choice(list(MACHINES)))
        how = ["killed", "stopped", "terminated", "taken over"][number % 4 if launcher != "store" or number % 2 else 0]
        process = lives.end(how)
        slept = machine if how == "stopped" else ""  # where it would be known to be there
        if slept:
            asleep.append(process)
        tell(lives, number + 1, launcher, machine, seconds, how)
    last = lives.start(
        ["penstock", "train", "--resume", "runs/run", *["--take-over"] * (how == "taken over")], lives.environment("middle")
    )
    if last.wait(900) != 0:
        raise SystemExit(f"the last life failed: {lives.said(lives.number)}")
    while asleep:
        lives.wake(asleep.pop())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lives", type=int, default=40)
    parser.add_argument("--lease", type=float, default=9.0, help="seconds of a lease (45 where users run)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    home, steps = Path(tempfile.mkdtemp(prefix="lives-")), 60 + 14 * arguments.lives
    home.chmod(0o755)
    began = time.monotonic()
    server = S3Server()
    server.start()
    os.environ.update(server.environment)
    slurm = None
    if not missing():
        (home / "slurm").mkdir()
        slurm = OneNode(home / "slurm")
    with ExitStack() as held:
        held.callback(server.stop)
        if slurm is not None:
            held.callback(slurm.close)
        lives = Lives(home, steps, arguments.lease, "s3://runs/team", slurm)
        with closing(lives):
            lead(lives, arguments.lives, arguments.seed)
            whole = lives.home / "undisturbed"
            whole.mkdir()
            words = [word for word in lives.words if word not in ("--checkpoint.store", lives.url)]
            subprocess.run(["penstock", "train", *words], cwd=whole, check=True, capture_output=True,
                           env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"})  # fmt: skip
            lives.require_one_writer_at_a_time()
            trained = [one["step"] for one in events(lives.run) if one["kind"] == "metrics" and "loss" in one["values"]]
            if trained != list(range(1, steps + 1)):
                raise SystemExit(f"the log has steps {trained}")
            if weights(lives.run) != weights(whole / "runs" / "run"):
                raise SystemExit("the weights are not those of an undisturbed run")
    refused, minutes = lives.intruders, (time.monotonic() - began) / 60
    print(f"\n{arguments.lives} lives: one writer at any time, {refused} others refused, after {steps} steps the weights of an")
    print(f"undisturbed run. {minutes:.0f} minutes.")


if __name__ == "__main__":
    main()

"""Are runs that are killed as good as others? SIGKILLs at random moments, to every role, and the table of docs/reliability.md.

    python benchmarks/kills.py                                        # 200 kills, about half an hour on 2 cores
    python benchmarks/kills.py --kills 40 --places local procs        # fewer, and not on Ray
    python benchmarks/kills.py --write docs/reliability.md            # the table goes into the page

Each place trains a tiny model again and again until its share of kills is reached: one process; processes with max_lag 0, which
end at the weights of an undisturbed run; processes with max_lag 2; nodes of a Ray cluster. A run is killed, role by role or the
whole of it, as soon as it is beyond the step at which it was killed before. The benchmark fails where a prompt is lost or
trained twice, an evaluation is missing or logged twice, weights differ, a process is left, a role is started more often than it
was killed, or a run is not beyond that step after two minutes.
"""

from __future__ import annotations

import argparse
import collections
import functools
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parents[1] / "tests" / "runtime"
sys.path[:0] = [str(HERE / "procs"), str(HERE / "on_ray"), str(HERE.parent)]

from runs import BATCH, RECIPES, Started, events, processes, trained, weights  # noqa: E402

import warm  # noqa: E402

warm.begin()
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
STEPS, RAY_STEPS = 40, 16
BOUND = 120.0
"""Seconds in which a killed run must be beyond the step at which it was killed."""
SUPERVISOR = "supervisor"
ROLES = ("learner", "generator-0", "reward-0", "reference-0", "evaluator-0")
WITH_ALL = ("--runtime", "procs", "--roles.references", "1", "--roles.evaluator", "true")


class Kill(NamedTuple):
    """One death: where, of which role, and how long the run took to get beyond it."""

    place: str
    role: str
    seconds: float


class Reached:
    """The newest version that a run's learner has trained, read from what it appends to ``trained.jsonl``."""

    def __init__(self, folder: Path) -> None:
        self.file, self._read, self._version = folder / "trained.jsonl", 0, -1

    def __call__(self) -> int:
        if self.file.exists():
            with open(self.file, "rb") as lines:
                lines.seek(self._read)
                whole, cut, _ = lines.read().rpartition(b"\n")
            self._read += len(whole) + len(cut)
            for line in whole.splitlines():
                self._version = max(self._version, int(line[1 : line.index(b",")]))
        return self._version


def beyond(reached: Reached, version: int) -> bool:
    return reached() > version


def living(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    return any(pid == found for found, _ in processes())


def wait(ready: Callable[[], Any], ended: Callable[[], Any], what: str) -> bool:
    """Wait until ``ready()``; False if the run ended first. Raises SystemExit after :data:`BOUND` seconds."""
    deadline = time.monotonic() + BOUND
    while not ready():
        if ended() is not None:
            return False
        if time.monotonic() > deadline:
            raise SystemExit(f"{what}: not done after {BOUND:.0f} s")
        time.sleep(0.01)
    return True


def require(holds: bool, what: str, run: Any) -> None:
    if not holds:
        raise SystemExit(f"{what}\n{run.everything()}")


# ---- processes of this machine


def round_of_kills(
    place: str, words: tuple[str, ...], roles: tuple[str, ...], undisturbed: Path | None, chance: random.Random
) -> Iterator[Kill]:
    """One run from its first step to its end, killed again and again on its way; then it is looked at."""
    folder = Path(tempfile.mkdtemp(prefix="kills-"))
    named = ["train", f"{RECIPES}:thorough", "--name", "run", "--steps", str(STEPS), *words]
    first = "" if WITH_ALL[0] in words else "record_trained()"
    run, reached = Started(folder, *named, first=first), Reached(folder)
    restarts: collections.Counter[str] = collections.Counter()
    try:
        while wait(functools.partial(beyond, reached, reached()), run.poll, f"{place}: a step"):
            time.sleep(chance.random() * 0.3)
            role, before, began = chance.choice(roles), reached(), time.monotonic()
            if run.poll() is not None or not living(run.pid if role == SUPERVISOR else run.roles.get(role, 0)):
                continue
            run.signal(role, signal.SIGKILL)
            restarts[role] += 1
            if role == SUPERVISOR:
                wait(lambda run=run: run.poll() is not None, lambda: None, f"{place}: the end of the killed process")
                run.until_gone()
                if run.code == 0:  # it was done a moment before
                    break
                run = Started(folder, "train", "--resume", "runs/run", first=first)
            done = wait(functools.partial(beyond, reached, before), run.poll, f"{place}: a step after the kill of {role}")
            yield Kill(place, role, time.monotonic() - began)
            if not done:
                break
        look_at(run, place, restarts, undisturbed)
    finally:
        run.kill_everyone()
    shutil.rmtree(folder, ignore_errors=True)


def look_at(run: Started, place: str, kills: collections.Counter[str], undisturbed: Path | None) -> None:
    """What has to hold of a run that was killed and has ended."""
    require(run.wait() == 0, f"{place}: the run did not end in order", run)
    batches = trained(run.folder)
    consumed = [ordinal for version in sorted(batches) for ordinal in batches[version]]
    require(sorted(batches) == list(range(STEPS)), f"{place}: a batch is missing", run)
    require(len(set(consumed)) == len(consumed) == STEPS * BATCH, f"{place}: a prompt was trained twice", run)
    require(sorted(consumed) == list(range(len(consumed))), f"{place}: a prompt was lost", run)
    found = evaluations(run.run)
    require(sorted(found) == list(range(0, STEPS + 1, 5)), f"{place}: evaluations {sorted(found)}", run)
    if undisturbed is not None:
        require(weights(run.run) == weights(undisturbed), f"{place}: the weights are others", run)
        require(found == evaluations(undisturbed), f"{place}: evaluations differ", run)
    started = collections.Counter(note["role"] for note in run.notes("role restarted"))
    require(all(started[role] <= kills[role] for role in started), f"{place}: restarts {started} after kills {kills}", run)
    run.until_gone()


def evaluations(run: Path) -> dict[int, list[float]]:
    """The held-out rewards by step, in the order of the log; one each if all is well."""
    found: dict[int, list[float]] = {}
    for event in events(run):
        if event["kind"] == "metrics" and "evaluation/reward" in event["values"]:
            found.setdefault(event["step"], []).append(event["values"]["evaluation/reward"])
    for step, values in found.items():
        if len(values) != 1:
            raise SystemExit(f"{run}: the evaluation of step {step} stands in the log {len(values)} times")
    return found


# ---- nodes of a cluster


def rounds_on_ray(kills: int, chance: random.Random) -> Iterator[Kill]:
    """Runs on three nodes of a Ray cluster, whose roles and driver are killed."""
    from runs_on_ray import Nodes, RunOnRay

    nodes = Nodes(head_cores=2)
    nodes.add()
    nodes.add()
    left, roles = kills, ("learner", "generator-0", "reward-0", SUPERVISOR)
    try:
        with tempfile.TemporaryDirectory() as home:
            whole = RunOnRay(Path(home), "letters", "--steps", str(RAY_STEPS), runtime="local")
            require(whole.wait() == 0, "the undisturbed run failed", whole)
            same = weights(whole.run)
        while left > 0:
            folder = Path(tempfile.mkdtemp(prefix="kills-ray-"))
            words = ("--steps", str(RAY_STEPS), "--delay", "0.3", "--roles.channel", "disk")
            run = RunOnRay(folder, "letters", *words, address=nodes.address)
            try:
                while wait(lambda run=run, last=run.step: run.step > last, run.process.poll, "Ray: a step"):
                    time.sleep(chance.random() * 0.5)
                    role, before, began = chance.choice(roles), run.step, time.monotonic()
                    roles_now = run.roles
                    if left <= 0 or run.process.poll() is not None or (role != SUPERVISOR and role not in roles_now):
                        continue
                    left -= 1
                    if role == SUPERVISOR:
                        run.kill_everyone()
                        run = RunOnRay(folder, "", address=nodes.address)
                    else:
                        with suppress(ProcessLookupError):
                            os.killpg(roles_now[role], signal.SIGKILL)
                    done = wait(
                        lambda run=run, b=before: run.step > b, run.process.poll, f"Ray: a step after the kill of {role}"
                    )
                    yield Kill("Ray nodes", role, time.monotonic() - began)
                    if not done:
                        break
                require(run.wait() == 0, "Ray: the run did not end in order", run)
                consumed = [ordinal for batch in run.batches() for ordinal in batch]
                require(consumed == list(range(RAY_STEPS * BATCH)), "Ray: a prompt was lost, or trained twice", run)
                require(weights(run.run) == same, "Ray: the weights are others", run)
            finally:
                run.kill_everyone()
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        nodes.close()


# ---- all of it


WAYS = {
    "local": ("one process", (), (SUPERVISOR,)),
    "procs": ("processes, max_lag 0", WITH_ALL, (*ROLES, SUPERVISOR)),
    "lag": ("processes, max_lag 2", (*WITH_ALL, "--grpo.max_lag", "2"), (*ROLES, SUPERVISOR)),
}
"""What the place is called, how a run is started there, and what is killed."""


def undisturbed(words: tuple[str, ...]) -> Path:
    """The folder of a run that nobody kills."""
    home = Path(tempfile.mkdtemp(prefix="kills-whole-"))
    whole = Started(home, "train", f"{RECIPES}:thorough", "--name", "run", "--steps", str(STEPS), *words)
    require(whole.wait() == 0, "the undisturbed run failed", whole)
    return whole.run


def kills_of(places: list[str], kills: int, seed: int) -> Iterator[Kill]:
    chance = random.Random(seed)
    share = {"local": 0.15, "procs": 0.45, "lag": 0.3, "ray": 0.1}
    total = sum(share[place] for place in places)
    for place in places:
        wanted, made = int(-(-kills * share[place] // total)), 0
        if place == "ray":
            yield from rounds_on_ray(wanted, chance)
            continue
        name, words, roles = WAYS[place]
        whole = undisturbed(words) if place != "lag" else None  # what runs ahead depends on the clock
        while made < wanted:
            for kill in round_of_kills(name, words, roles, whole, chance):
                made += 1
                yield kill


def table(kills: list[Kill], seconds: float) -> list[str]:
    lines = ["| where | role | kills | beyond the step after, s: median (most) |", "| --- | --- | --- | --- |"]
    for place, role in dict.fromkeys((kill.place, kill.role) for kill in sorted(kills)):
        found = [kill.seconds for kill in kills if (kill.place, kill.role) == (place, role)]
        named = {"one process": "the process"}.get(place, "the whole run" if role == SUPERVISOR else role.removesuffix("-0"))
        lines.append(f"| {place} | {named} | {len(found)} | {statistics.median(found):.1f} ({max(found):.1f}) |")
    lines.append(
        f"| all | | {len(kills)} | {statistics.median(k.seconds for k in kills):.1f} ({max(k.seconds for k in kills):.1f}) |"
    )
    return [
        *lines,
        "",
        f"Lost 0, trained twice 0, evaluations missing or doubled 0, other weights 0. {seconds / 60:.0f} minutes.",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument(
        "--places", nargs="+", default=["local", "procs", "lag", "ray"], choices=["local", "procs", "lag", "ray"]
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path, help="the page whose table is replaced")
    arguments = parser.parse_args()
    began, kills = time.monotonic(), list[Kill]()
    for kill in kills_of(arguments.places, arguments.kills, arguments.seed):
        kills.append(kill)
        print(f"{len(kills):>4} {kill.place}: {kill.role} killed, {kill.seconds:.1f} s", flush=True)
    lines = table(kills, time.monotonic() - began)
    print("\n".join(lines))
    if arguments.write:
        page = arguments.write.read_text(encoding="utf-8")
        before, _, rest = page.partition(BEGIN)
        arguments.write.write_text(
            f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{rest.partition(END)[2]}", encoding="utf-8"
        )


if __name__ == "__main__":
    main()

"""The feedback service under load, and killed: is a vote lost or doubled, and how long do annotators wait?

    python benchmarks/feedback_load.py --annotators 200 --votes 50000 --kills 20 --think 5
    python benchmarks/feedback_load.py --store postgresql --annotators 200 --votes 50000 --kills 20 --think 5

A real ``penstock feedback serve`` on a store of its own; annotators in another process, each with a session and a kept-alive
connection, who think for a time (exponential, ``--think`` seconds in the mean) about each task and fetch the next one
meanwhile. 8% of what they get is gold, 4% are repeats; 1% they skip, 3% they send twice, 1% they take back. The service is
killed by SIGKILL when a random number of votes is in and a random part of 0.3 seconds has passed, and started again on the same
port.

At the end the log is compared with what the annotators' side was told: every acknowledged event is there once and with its
meaning, nothing else is there, and at no moment had a task more judgements than its overlap. Exit code 1 if not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from private_postgresql import private_postgresql

from penstock.feedback.bodies import as_items
from penstock.feedback.records import JUDGEMENTS, Annotator, Event, Item, Response, Task
from penstock.feedback.service.annotate import stored_key
from penstock.feedback.service.sessions import Session, Sessions
from penstock.feedback.store import Store

OVERLAP = 3
STARTING_SECONDS = 60.0
COMING_BACK = 10.0
"""Seconds after a start in which those who waited come back; latencies are reported without and with them."""


@dataclass(frozen=True)
class Load:
    """What is done to the service."""

    annotators: int = 200
    votes: int = 50_000
    kills: int = 20
    think: float = 5.0
    seed: int = 0


def prepare(place: str, load: Load) -> list[dict[str, str]]:
    """Enrol annotators, sign them in, and add more tasks than they will need; gives their sessions."""
    with Store.open(place) as store:
        wanted = load.votes // OVERLAP + 2 * load.annotators
        tasks = [Task(item=item(number), overlap=OVERLAP) for number in range(wanted)]
        gold = [
            Task(item=item(f"gold {n}"), overlap=0, purpose="gold", gold={"preference": 1}) for n in range(wanted // 20 + 1)
        ]
        for first in range(0, len(tasks), 2000):
            store.ask(tasks[first : first + 2000])
        store.ask(gold)
        sessions, people = Sessions(store.database, store.now), []
        for number in range(load.annotators):
            who = Annotator(f"person{number}")
            store.enrol(who)
            session = Session(sessions.begin(who.name), who)
            people.append({"name": who.name, "session": session.id, "csrf": session.csrf})
    return people


def item(name: object) -> Item:
    """A prompt and two answers of the length that people see."""
    filler = "A penstock carries water from the reservoir to the turbine, and a gate holds it back. " * 6
    answers = (Response(f"First answer to {name}. {filler}"), Response(f"Second answer to {name}. **{filler}**"))
    return Item(f"What is a penstock, and what is it for? ({name})", answers)


@dataclass
class Service:
    """``penstock feedback serve`` on a fixed port, started again after each kill."""

    place: str
    port: int
    process: subprocess.Popen[bytes] | None = None
    cpu_seconds: float = 0.0
    """What serving took, without starting."""
    down: list[tuple[float, float]] = field(default_factory=list)
    """From each kill until it answered again, on the monotonic clock."""

    def start(self) -> None:
        """Start it and wait until it answers."""
        words = [sys.executable, "-m", "penstock.cli.main", "feedback", "serve", self.place, "--port", str(self.port)]
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + STARTING_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                self.cpu_seconds -= cpu_seconds(self.process.pid)
                return
            time.sleep(0.02)
        raise SystemExit("penstock feedback serve did not start")

    def end(self, number: int) -> None:
        """Send it a signal and add up the CPU that it took."""
        assert self.process is not None
        self.process.send_signal(number)
        _, status, used = os.wait4(self.process.pid, 0)
        self.process.returncode = os.waitstatus_to_exitcode(status)
        self.cpu_seconds += used.ru_utime + used.ru_stime

    def kill_and_start(self) -> None:
        self.end(signal.SIGKILL)
        began = time.monotonic()
        self.start()
        self.down.append((began, time.monotonic()))


def cpu_seconds(process: int) -> float:
    """CPU that a process has taken, with its children that have ended and those that have not. Linux only."""

    def ticks(stat: Path) -> tuple[int, int]:
        fields = stat.read_text().rpartition(")")[2].split()
        return int(fields[1]), sum(map(int, fields[11:15]))

    found = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent, used = ticks(stat)
            found += used if process in (parent, int(stat.parent.name)) else 0
    return found / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


class Annotators:
    """The other process, and how many votes it has had acknowledged."""

    def __init__(self, folder: Path) -> None:
        script = Path(__file__).with_name("feedback_load_clients.py")
        self.process = subprocess.Popen([sys.executable, str(script), str(folder)], stdout=subprocess.PIPE, text=True)
        self.votes = 0
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.votes = int(line)


def drive(place: str, folder: Path, load: Load) -> tuple[dict[str, Any], Service]:
    """Let annotators work and kill the service; gives what they measured."""
    draw, service = random.Random(load.seed), Service(place, free_port())
    people = prepare(place, load)
    settings = {"port": service.port, "people": people, "votes": load.votes, "think": load.think, "seed": load.seed}
    (folder / "clients.json").write_text(json.dumps(settings))
    moments = sorted(draw.randrange(load.votes // 50, load.votes - load.votes // 50) for _ in range(load.kills))
    service.start()
    annotators = Annotators(folder)
    try:
        for moment in moments:
            while annotators.votes < moment and annotators.process.poll() is None:
                time.sleep(0.02)
            time.sleep(draw.uniform(0.0, 0.3))
            if annotators.process.poll() is None:
                service.kill_and_start()
        if annotators.process.wait():
            raise SystemExit("the annotators' process failed")
    finally:
        annotators.process.kill()
        if service.process is not None and service.process.returncode is None:
            service.end(signal.SIGTERM)
    return json.loads((folder / "latencies.json").read_text()), service


def check(place: str, folder: Path) -> dict[str, Any]:
    """Compare the log with what was acknowledged. Raises AssertionError."""
    with Store.open(place) as store:
        state, events = store.verify(), store.events()
        overlap = {name: task.overlap for name, task in store.tasks_of(events).items()}
    by_key = {event.key: event for event in events}
    assert len(by_key) == len(events), "no key twice"
    lines = [line.split() for line in (folder / "acknowledged").read_text().splitlines()]
    for name, kind, key, sequence, preference in lines:
        event = by_key.get(stored_key(key, name))
        assert event is not None, f"an acknowledged {kind} of {name} is lost"
        assert (event.sequence, event.kind, event.annotator) == (int(sequence), kind, name)
        assert kind != "vote" or event.body["preference"] == as_items(int(preference), event.order)
    answers = [event for event in events if event.kind not in ("undo", "promote")]  # what is gold says the store itself
    assert len(lines) == len(answers) == len({line[3] for line in lines}), "nothing is there that was not acknowledged"
    most = most_at_once(events)
    assert all(count <= overlap[task] for task, count in most.items() if overlap[task]), "an overlap was exceeded"
    kinds = Counter(event.kind for event in events)
    return {"events": len(events), **kinds, "standing": len(state.judgements()), "tasks": len(overlap)}


def most_at_once(events: Sequence[Event]) -> dict[str, int]:
    """The most judgements that each task ever had at a time."""
    by_sequence = {event.sequence: event for event in events}
    now, most = Counter[str](), Counter[str]()
    for event in events:
        judged = by_sequence[event.target] if event.target else event
        now[event.task] += (judged.kind in JUDGEMENTS) * (-1 if event.target else 1)
        most[event.task] = max(most[event.task], now[event.task])
    return dict(most)


def quantiles(seconds: Sequence[float]) -> dict[str, float]:
    """Of latencies, in milliseconds."""
    ordered = sorted(seconds)
    places = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    found = {name: ordered[min(len(ordered) - 1, int(len(ordered) * share))] for name, share in places.items()}
    return {"requests": len(ordered), **{name: round(value * 1000, 1) for name, value in {**found, "max": ordered[-1]}.items()}}


def measure(place: str, load: Load, database: int | None = None) -> dict[str, Any]:
    """One run on an empty store: what was found, with latencies by route.

    Args:
        database: the process id of the database's server, if it has one.
    """
    before = cpu_seconds(database) if database else 0.0
    with tempfile.TemporaryDirectory(prefix="penstock-load-") as name:
        clients, service = drive(place, Path(name), load)
        used = cpu_seconds(database) - before if database else 0.0
        found = check(place, Path(name))
    sent = {route: [tuple(pair) for pair in pairs] for route, pairs in clients["up"].items()}
    requests, seconds = sum(map(len, sent.values())), clients["seconds"]
    return {
        "log": found,
        "down_seconds": [round(end - begin, 1) for begin, end in service.down],
        "seconds": round(seconds, 1),
        "votes_a_second": round(found["vote"] / seconds, 1),
        "requests_a_second": round(requests / seconds, 1),
        "service_cpu_share": round(service.cpu_seconds / seconds, 3),
        "service_cpu_ms_a_request": round(service.cpu_seconds / requests * 1000, 2),
        "database_cpu_share": round(used / seconds, 3),
        "clients_cpu_share": round(clients["cpu_seconds"] / seconds, 3),
        "tries_lost": clients["tries_lost"],
        "refused": clients["refused"],
        "milliseconds": {
            "steady": by_route({route: steady(pairs, service.down) for route, pairs in sent.items()}),
            "answered": by_route({route: [took for _, took in pairs] for route, pairs in sent.items()}),
            "with down time": by_route(clients["whole"]),
        },
    }


def steady(sent: Sequence[tuple[float, float]], down: Sequence[tuple[float, float]]) -> list[float]:
    """Latencies of the requests that were sent while nobody was coming back after a kill."""
    return [took for moment, took in sent if not any(begin <= moment < end + COMING_BACK for begin, end in down)]


def by_route(latencies: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float]]:
    together = [value for values in latencies.values() for value in values]
    return {name: quantiles(values) for name, values in {"all": together, **latencies}.items() if values}


def main() -> None:
    parser = argparse.ArgumentParser(description=re.split(r"\n\n", __doc__ or "")[0])
    parser.add_argument("--store", choices=("sqlite", "postgresql"), default="sqlite")
    for name, value in vars(Load()).items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    given = vars(parser.parse_args())
    kind, load = given.pop("store"), Load(**given)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))  # and end what was started
    with contextlib.ExitStack() as stack:
        if kind == "postgresql":
            place, server = stack.enter_context(private_postgresql("max_connections=60"))
        else:
            server = None
            place = str(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-load-"))) / "feedback.db")
        try:
            found = measure(place, load, server)
        except AssertionError as error:
            raise SystemExit(f"{error}") from error
    tables = found.pop("milliseconds")
    for name, value in {"store": kind, **vars(load), **found}.items():
        print(f"{name}: {value if isinstance(value, str) else json.dumps(value)}")
    for table, routes in tables.items():
        for route, values in routes.items():
            print(f"{table}, {route}: {json.dumps(values)}")


if __name__ == "__main__":
    main()

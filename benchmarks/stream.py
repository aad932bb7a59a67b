"""Throughput of the stream between processes: ``python benchmarks/stream.py --peer-python PYTHON``.

One process makes samples and puts them into the hub's stream through its connection, as a generator does; another leases,
reads and releases batches of them, as a learner does. Arms: the consumer in the process of the hub (two processes), and in a
process of its own (three, as in a run). Samples of 1 kB (59 tokens in five columns) in groups of 16, and samples with a payload
of megabytes. Beside it, in the same run and by turns, TransferQueue alone with its simple storage, on batches of the same
samples; it needs ``--peer-python``, a Python with ``TransferQueue==0.1.11``. The first round of each arm warms up; printed are
medians of the others: samples/s by the clock, and the processor time of all processes of the arm for one sample, which a busy
machine distorts less. Linux only, for the processor time of other processes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import secrets
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from penstock.core.errors import ConnectionLost
from penstock.core.types import Group, Prompt, PromptKey, Sample, SampleKey
from penstock.net.rpc import connect
from penstock.runtime.hub import Hub, Stage
from penstock.runtime.remote import HubClient, RemoteLearner
from penstock.stream.entry import Ticket
from penstock.stream.gate import Ledger
from penstock.stream.rules import Rules
from penstock.stream.stream import DEADLINE, LearnerClient

PEER = Path(__file__).parent / "peers/transfer_queue_stream.py"
WIDTH = 59
"""Tokens of a sample: five columns of 17 bytes a token make 1,003 bytes."""
STAGE = "bench"
WORKERS = 8
"""Groups that the producer has on their way at a time."""


class Load(NamedTuple):
    """What is sent: groups of samples, each with a payload of some bytes; a round is some batches of groups."""

    name: str
    batch: int
    samples: int
    payload: int
    steps: int
    max_lag: int

    @property
    def bytes_per_sample(self) -> int:
        return self.payload or WIDTH * 17


class Round(NamedTuple):
    """Seconds by the clock, and of processors."""

    wall: float
    processor: float


def group_of(load: Load, ticket: Ticket) -> Group:
    key, ordinal = PromptKey("bench", 0, ticket.ordinal), ticket.ordinal
    width = 1 if load.payload else WIDTH
    whole, real, actions = np.full(width, ordinal, np.int32), np.zeros(width, np.float32), np.ones(width, bool)
    version = np.full(width, ticket.min_version, np.int32)
    extras = {"payload": np.zeros(load.payload, np.uint8)} if load.payload else {}
    made = (SampleKey(key, number) for number in range(load.samples))
    return Group(
        Prompt(key, ""),
        tuple(Sample(one, {"tokens_T": whole}, actions, real, version, "stop", reward_T=real, extras=extras) for one in made),
    )


def read(load: Load, group: Group) -> None:
    """The consumer looks at every sample; a wrong one fails the benchmark."""
    for sample in group.samples:
        assert sample.tokens_T[0] == group.key.ordinal
        assert not load.payload or len(sample.extras["payload"]) == load.payload


async def produce(address: str, load: Load) -> None:
    """The generator's process: groups for tickets until the hub has gone."""
    client = await connect(address, os.environ["STREAM_TOKEN"], name="generator-0", role="generator")
    hub = HubClient(client)
    await hub.role.join(STAGE)

    async def worker() -> None:
        while True:
            for ticket in await hub.worker.admit(most=max(1, load.batch // WORKERS)):
                await hub.worker.put(ticket, group_of(load, ticket))

    with contextlib.suppress(ConnectionLost):
        await asyncio.gather(*(worker() for _ in range(WORKERS)))


async def nothing(stage: str) -> None:
    """The benchmark starts its roles itself."""


@contextlib.asynccontextmanager
async def serving(load: Load) -> AsyncIterator[tuple[Hub, str]]:
    hub = Hub(lambda stage: Rules(load.batch, load.max_lag), os.environ["STREAM_TOKEN"], nothing, nothing)
    try:
        yield hub, await hub.start()
    finally:
        await hub.stop()


async def serve(load: Load) -> None:
    """The hub's process: says where it listens and serves until its input ends."""
    async with serving(load) as (_, address):
        print(address, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def child(role: str, load: Load, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--role", role, "--load", json.dumps(load), *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def processor_seconds(processes: list[int]) -> float:
    """What processes have used so far, by their ids."""
    fields = [Path(f"/proc/{one}/stat").read_text(encoding="utf-8").rpartition(")")[2].split() for one in processes]
    return sum(int(one[11]) + int(one[12]) for one in fields) / os.sysconf("SC_CLK_TCK")


async def consume(stream: LearnerClient, load: Load, rounds: int, others: list[int]) -> list[Round]:
    """Each round but the first; ``others`` are the ids of the other processes."""
    ends = []
    for version in range(load.steps * (rounds + 1)):
        lease = await stream.lease(version)
        for group in lease.groups:
            read(load, group)
        stream.trained(lease)
        stream.acknowledge()
        await stream.release(lease)
        if (version + 1) % load.steps == 0:
            ends.append((time.perf_counter(), processor_seconds([os.getpid(), *others])))
    return [Round(later[0] - earlier[0], later[1] - earlier[1]) for earlier, later in itertools.pairwise(ends)]


async def two_processes(load: Load, rounds: int) -> list[Round]:
    async with serving(load) as (hub, address):
        rules = Rules(load.batch, load.max_lag)
        hub.stage = Stage(STAGE, rules, DEADLINE, Ledger().values())
        producer = child("produce", load, "--address", address)
        try:
            return await consume(LearnerClient(rules, hub.stage.stream), load, rounds, [producer.pid])
        finally:
            producer.kill()
            producer.communicate()


async def three_processes(load: Load, rounds: int) -> list[Round]:
    hub = child("serve", load)
    assert hub.stdout is not None
    address = hub.stdout.readline().strip()
    learner = await connect(address, os.environ["STREAM_TOKEN"], name="learner", role="learner")
    client = RemoteLearner(Rules(load.batch, load.max_lag), lambda what, **fields: None)
    await client.begin(HubClient(learner), STAGE)
    producer = child("produce", load, "--address", address)
    try:
        return await consume(client, load, rounds, [producer.pid, hub.pid])
    finally:
        await learner.close()
        for process in (producer, hub):
            process.kill()
            process.communicate()


def peer(python: str, load: Load, rounds: int, in_flight: int) -> list[Round]:
    options = {"batch": load.batch * load.samples, "width": WIDTH, "payload": load.payload, "steps": load.steps}
    command = [python, str(PEER), "--in-flight", str(in_flight), "--rounds", str(rounds)]
    command += itertools.chain.from_iterable((f"--{name}", str(value)) for name, value in options.items())
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"TransferQueue failed:\n{done.stderr[-2000:]}")
    return [Round(*one) for one in json.loads(done.stdout.splitlines()[-1])]


def row(load: Load, arm: str, rounds: list[Round]) -> None:
    samples = load.batch * load.samples * load.steps
    rates = sorted(samples / one.wall for one in rounds)
    median, cost = statistics.median(rates), statistics.median(one.processor for one in rounds) / samples
    print(
        f"{load.name:<16} {arm:<28} {median:>9,.0f} samples/s {median * load.bytes_per_sample / 1e9:>6.3f} GB/s"
        f" {cost * 1e6:>9,.1f} µs of processor a sample   ({len(rates)} rounds, {rates[0]:,.0f} to {rates[-1]:,.0f})",
        flush=True,
    )


def compare(load: Load, python: str | None, repeats: int, rounds: int) -> None:
    """All arms by turns, so that what else the machine does falls on each of them."""
    found: dict[str, list[Round]] = {}
    for _ in range(repeats):
        found.setdefault("penstock, two processes", []).extend(asyncio.run(two_processes(load, rounds)))
        found.setdefault("penstock, three processes", []).extend(asyncio.run(three_processes(load, rounds)))
        for in_flight in (1, 4) if python else ():
            arm = found.setdefault(f"TransferQueue alone, {in_flight} in flight", [])
            arm.extend(peer(python or "", load, rounds, in_flight))
    for arm, seen in found.items():
        row(load, arm, seen)


LOADS = (
    Load("1 kB, 512 each", batch=32, samples=16, payload=0, steps=40, max_lag=3),
    Load("1 kB, 4096 each", batch=256, samples=16, payload=0, steps=8, max_lag=3),
    Load("1 MB, 16 each", batch=16, samples=1, payload=1_000_000, steps=16, max_lag=1),
    Load("8 MB, 4 each", batch=4, samples=1, payload=8_000_000, steps=16, max_lag=1),
)
"""Sample size, and how many are leased at a time (for TransferQueue: put and got at a time)."""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--peer-python", help="a Python that has TransferQueue==0.1.11")
    options.add_argument("--repeats", type=int, default=2)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--loads", type=int, nargs="+", default=range(len(LOADS)), help="places in LOADS; all when not given")
    options.add_argument("--role", choices=["produce", "serve"], help=argparse.SUPPRESS)
    options.add_argument("--load", help=argparse.SUPPRESS)
    options.add_argument("--address", help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.role == "produce":
        asyncio.run(produce(chosen.address, Load(*json.loads(chosen.load))))
    elif chosen.role == "serve":
        asyncio.run(serve(Load(*json.loads(chosen.load))))
    else:
        os.environ["STREAM_TOKEN"] = secrets.token_hex(16)
        if not chosen.peer_python:
            print("without TransferQueue: give --peer-python a Python that has TransferQueue==0.1.11")
        for place in chosen.loads:
            compare(LOADS[place], chosen.peer_python, chosen.repeats, chosen.rounds)


if __name__ == "__main__":
    main()

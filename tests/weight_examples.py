"""Weights to publish, a board in memory, generators that follow it, and processes that open what they are told of."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from penstock.weights.follow import follow


def tensors(value: float = 0.0, seed: int = 0) -> dict[str, Tensor]:
    """A few tensors of different types and odd sizes, all moved by ``value``."""
    rng = torch.Generator().manual_seed(seed)
    made = {
        "embedding": torch.randn(37, 8, generator=rng),
        "half": torch.randn(5, 3, generator=rng).to(torch.bfloat16),
        "norm": torch.randn(7, generator=rng),
        "empty": torch.zeros(0, 4),
        "scalar": torch.tensor(2.0),
    }
    return {name: tensor + value for name, tensor in made.items()}


class Source:
    """Weights that a test changes between publications."""

    def __init__(self, now: Mapping[str, Tensor] | None = None) -> None:
        self.now = dict(now if now is not None else tensors())

    def __call__(self) -> list[tuple[str, Tensor]]:
        return list(self.now.items())


class Board:
    """The newest manifest, and who waits for it."""

    def __init__(self) -> None:
        self.manifests: list[dict[str, Any]] = []
        self.changed = asyncio.Condition()
        self.following: Collection[str] | None = None
        """Who follows, as far as it is known."""

    async def post(self, manifest: dict[str, Any]) -> Collection[str] | None:
        async with self.changed:
            self.manifests.append(json.loads(json.dumps(manifest)))
            self.changed.notify_all()
        return self.following

    async def newest(self, learner_epoch: int, version: int) -> dict[str, Any]:
        def newer() -> bool:
            return bool(self.manifests) and self.order() > (learner_epoch, version)

        async with self.changed:
            await self.changed.wait_for(newer)
            return self.manifests[-1]

    def order(self) -> tuple[int, int]:
        return self.manifests[-1]["learner_epoch"], self.manifests[-1]["version"]


Weights = Callable[[int], Mapping[str, Tensor]]


class Channel:
    """A publisher with its source and board, and a subscriber; ``at`` gives the weights of a version, where they change."""

    def __init__(self, folder: Path, publisher: Any, subscriber: Any, at: Weights | None = None, **options: Any) -> None:
        self.folder, self.at = folder, at
        self.source, self.board = Source(at and at(0)), Board()
        self.publisher, self.subscriber = publisher(self.source, folder, self.board.post, **options), subscriber(folder)

    @property
    def manifest(self) -> dict[str, Any]:
        """What was announced last."""
        return self.board.manifests[-1]

    def publish(self, *versions: int) -> None:
        async def all_of_them() -> None:
            for version in versions:
                self.source.now = dict(self.at(version)) if self.at else self.source.now
                await self.publisher.publish(version)

        asyncio.run(all_of_them())

    def open(self, **changes: Any) -> Any:
        """What the subscriber makes of the last announcement, or of a changed one."""
        return self.subscriber.open(self.manifest | changes)

    def tensors(self) -> dict[str, Tensor]:
        return dict(self.open().tensors)

    def close(self) -> None:
        self.publisher.close()


class Reports(list[dict[str, Any]]):
    """What ``follow`` reported."""

    def __call__(self, what: str, **fields: Any) -> None:
        self.append({"what": what, **fields})

    @property
    def told(self) -> list[tuple[str, int]]:
        return [(entry["what"].removeprefix("weights "), entry["version"]) for entry in self]


async def until(ready: Callable[[], bool], seconds: float = 120.0) -> None:
    """Let other tasks run until ``ready``."""

    async def turns() -> None:
        while not ready():
            await asyncio.sleep(0.001)

    await asyncio.wait_for(turns(), seconds)


@asynccontextmanager
async def following(generator: Any, board: Board, subscriber: Any, kv: Any = "keep") -> AsyncIterator[Reports]:
    """A generator follows the board; gives what is reported."""
    reports = Reports()
    task = asyncio.create_task(follow(generator, board.newest, subscriber, kv, reports))
    yield reports
    task.cancel()


def assert_equal_tensors(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """The same names, shapes, types and bytes."""
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name


class Child:
    """A process that answers one JSON line with another; it ends with the test at the latest."""

    def __init__(self, code: str, *words: str) -> None:
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def tell(self, value: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(value) + "\n")
        self.process.stdin.flush()

    def hear(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the process ended with code {self.process.wait(timeout=60)}"
        return json.loads(line)

    def ask(self, value: Any) -> Any:
        self.tell(value)
        return self.hear()

    def end(self) -> None:
        self.process.kill()
        self.process.wait(timeout=60)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


OPENING = """
import json, sys
from penstock.weights.channels import channel
from penstock.core.errors import WeightError
print(json.dumps("ready"), flush=True)
subscribers = {}
for line in sys.stdin:
    manifest = json.loads(line)
    try:
        kind = manifest["kind"]
        subscriber = subscribers.setdefault(kind, channel(kind).subscriber(sys.argv[1], sys.argv[2]))
        update = subscriber.open(manifest)
        answer = {"version": update.version, "sums": {name: float(t.double().sum()) for name, t in update.tensors}}
    except WeightError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)
"""
"""Opens every manifest it is told of: words are the folder and the subscriber's own name."""


def sums(values: Mapping[str, Tensor]) -> dict[str, float]:
    """What a process of :data:`OPENING` answers for these tensors."""
    return {name: float(tensor.double().sum()) for name, tensor in values.items()}

"""What a worker of a foreign engine receives, and what the generator's process makes of what all of them say."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from weight_examples import Board, Reports, Source, assert_equal_tensors, tensors, until

from penstock.core.errors import WeightError
from penstock.weights.folder import PREFIX
from penstock.weights.handover import ARRIVED, REFUSED, SUPERSEDED, UNDER_WAY, Handover, Passed
from penstock.weights.image import Superseded, sums_of
from penstock.weights.inbox import Inbox
from penstock.weights.process_group import ProcessGroupPublisher

MEMBER = """
import json, sys
from pathlib import Path
from penstock.weights.inbox import Inbox
inbox = Inbox()
inbox.join(Path(sys.argv[1]), sys.argv[2])
print(json.dumps("ready"), flush=True)
for line in sys.stdin:
    said = json.loads(line)
    if said == "told":
        answer = inbox.told()
    elif said == "take":
        answer = {name: float(tensor.double().sum()) for name, tensor in inbox.take().tensors}
    else:
        answer = inbox.receive(said)
    print(json.dumps(answer), flush=True)
"""
"""A worker: words are the channel's folder and its own name."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / f"{PREFIX}run"


class Learner:
    """A publisher with its source, board and reports."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.source, self.board, self.reports = Source(), Board(), Reports()
        options = {"seconds": 20.0, "report": self.reports} | options
        self.publisher = ProcessGroupPublisher(self.source, folder, self.board.post, **options)

    async def publish(self, version: int) -> dict[str, Any]:
        """Publish weights of this version's own; gives the manifest once it is posted."""
        self.source.now = tensors(float(version))
        count = len(self.board.manifests)
        await self.publisher.publish(version)
        await until(lambda: len(self.board.manifests) > count)
        return self.board.manifests[-1]


async def settled(told: Callable[[], Any]) -> Any:
    """What is told once nothing is under way."""
    until_then = time.monotonic() + 60
    while (state := await asyncio.to_thread(told))[0] == UNDER_WAY:
        assert time.monotonic() < until_then
        await asyncio.sleep(0.01)
    return state


def test_a_member_receives_beside_its_work_and_keeps_its_group(folder: Path) -> None:
    async def two_rounds() -> None:
        learner, inbox = Learner(folder), Inbox()
        inbox.join(folder, "generator-0/worker-0")
        for version in (1, 2):
            inbox.receive(await learner.publish(version), lambda found: len(found))
            assert await settled(inbox.told) == (ARRIVED, "")
            received = inbox.take()
            assert_equal_tensors(dict(received.tensors), tensors(float(version)))
            assert list(received.sums) == sums_of(tensors(float(version)).items)
            assert received.prepared == len(tensors())
        learner.publisher.close()

    asyncio.run(two_rounds())


@pytest.mark.slow
def test_workers_in_processes_take_part_in_one_round(children: Any, folder: Path) -> None:
    async def two_workers() -> tuple[list[Any], list[str]]:
        learner = Learner(folder, generators=2)
        workers = [children(MEMBER, folder, f"generator-0/worker-{number}") for number in range(2)]
        for worker in workers:
            assert await asyncio.to_thread(worker.hear) == "ready"
        manifest = await learner.publish(1)
        for worker in workers:
            worker.ask(manifest)
        for worker in workers:
            assert await settled(lambda worker=worker: worker.ask("told")) == [ARRIVED, ""]
        taken = [worker.ask("take") for worker in workers]
        assert learner.publisher._group is not None
        members = learner.publisher._group.members
        learner.publisher.close()
        return taken, members

    taken, members = asyncio.run(two_workers())
    assert taken == [{name: float(tensor.double().sum()) for name, tensor in tensors(1.0).items()}] * 2
    assert members == ["generator-0/worker-0", "generator-0/worker-1"]


def test_a_worker_that_never_comes_delays_one_round_by_its_deadline(folder: Path) -> None:
    async def alone() -> list[float]:
        learner, inbox = Learner(folder, generators=2, seconds=2.0), Inbox()
        inbox.join(folder, "generator-0/worker-0")
        expected = []
        for version in (1, 2):
            inbox.receive(await learner.publish(version))
            assert await settled(inbox.told) == (ARRIVED, "")
            expected.append(learner.publisher.expected)
        learner.publisher.close()
        return expected

    assert asyncio.run(alone()) == [2, 1], "from the second round on, nobody waits for it"


def test_a_closed_round_is_superseded_and_leaves_nothing_to_take(folder: Path) -> None:
    async def late() -> None:
        learner, inbox = Learner(folder), Inbox()
        inbox.join(folder, "generator-0/worker-0")
        first = await learner.publish(1)
        await learner.publish(2)
        inbox.receive(first)
        state, reason = await settled(inbox.told)
        learner.publisher.close()
        assert state == SUPERSEDED
        assert "closed" in reason
        with pytest.raises(WeightError, match="no weights to take"):
            inbox.take()

    asyncio.run(late())


@pytest.mark.parametrize("problem", ["checksum", "not finite"])
def test_a_refused_image_is_told_and_not_raised(folder: Path, problem: str) -> None:
    async def broken() -> tuple[str, str]:
        learner, inbox = Learner(folder), Inbox()
        inbox.join(folder, "generator-0/worker-0")
        manifest = await learner.publish(1)
        if problem == "checksum":
            manifest["buckets"][0]["checksum"] = "0" * 16
        else:
            learner.source.now = {"norm": torch.tensor([1.0, float("nan")])}
            learner.publisher.snapshots = type(learner.publisher.snapshots)(learner.source)
            await learner.publisher.publish(2)
            await until(lambda: learner.board.order() == (0, 2))
            manifest = learner.board.manifests[-1]
        inbox.receive(manifest)
        told: tuple[str, str] = await settled(inbox.told)
        learner.publisher.close()
        return told

    state, reason = asyncio.run(broken())
    assert state == REFUSED
    assert problem in reason


def test_a_worker_that_has_not_joined_refuses_a_round() -> None:
    inbox = Inbox()
    inbox.receive({"kind": "process group"})
    assert inbox.told() == (REFUSED, "this worker has not joined the channel's process group")


def test_while_a_round_is_under_way_another_is_refused(folder: Path) -> None:
    async def twice() -> tuple[str, str]:
        learner, inbox = Learner(folder, generators=2, seconds=2.0), Inbox()
        inbox.join(folder, "generator-0/worker-0")
        manifest = await learner.publish(1)
        inbox.receive(manifest)
        inbox.receive(manifest)
        told = inbox.told()
        assert inbox._thread is not None
        await asyncio.to_thread(inbox._thread.join, 30)
        assert inbox.told() == told, "what came too late changes nothing"
        learner.publisher.close()
        return told

    assert asyncio.run(twice()) == (REFUSED, "an earlier update is still on its way")


def test_an_image_that_is_handed_over_is_there_at_once(tmp_path: Path) -> None:
    inbox = Inbox()
    inbox.receive(Handover(tmp_path).write((0, 1), tensors(1.0)))
    assert inbox.told() == (ARRIVED, "")
    assert_equal_tensors(dict(inbox.take().tensors), tensors(1.0))


def test_what_is_dropped_cannot_be_taken(tmp_path: Path) -> None:
    inbox = Inbox()
    inbox.receive(Handover(tmp_path).write((0, 1), tensors()))
    inbox.drop()
    with pytest.raises(WeightError, match="nothing was sent"):
        inbox.take()


def test_a_manifest_that_is_passed_on_has_names_shapes_and_types_but_no_values(folder: Path) -> None:
    async def one() -> Any:
        learner = Learner(folder)
        manifest = await learner.publish(3)
        learner.publisher.close()
        return Passed().open(manifest), manifest

    update, manifest = asyncio.run(one())
    assert (update.version, update.manifest) == (3, manifest)
    for (name, tensor), (wanted, value) in zip(update.tensors, tensors().items(), strict=True):
        assert (name, tensor.shape, tensor.dtype, tensor.is_meta) == (wanted, value.shape, value.dtype, True)


def test_all_workers_must_have_an_update() -> None:
    assert Handover.settled([[ARRIVED, ""], [ARRIVED, ""]], 7)
    assert not Handover.settled([[ARRIVED, ""], [UNDER_WAY, ""]], 7)
    assert not Handover.settled([[REFUSED, "damaged"], [UNDER_WAY, ""]], 7), "what is under way is waited for"
    with pytest.raises(WeightError, match="weight update 7 refused by worker 1 of 2: damaged"):
        Handover.settled([[SUPERSEDED, "late"], [REFUSED, "damaged"]], 7)
    with pytest.raises(Superseded, match="worker 1 of 2"):
        Handover.settled([[ARRIVED, ""], [SUPERSEDED, "late"]], 7)

"""Weights through a process group: who takes part, who is left behind, and that a dead member holds up nobody for long."""

import asyncio
import gc
import json
import os
import signal
import stat
import time

import pytest

from penstock.core.errors import StreamError, Superseded, WeightError
from penstock.weights import process_group
from penstock.weights.process_group import ProcessGroupPublisher, ProcessGroupSubscriber
from weight_examples import OPENING, Board, Reports, Source, assert_equal_tensors, sums, tensors, until

SECONDS = 2.0


class Learner:
    """A publisher with its source, board and reports."""

    def __init__(self, folder, **options):
        self.folder, self.source, self.board, self.reports = folder, Source(), Board(), Reports()
        options = {"seconds": SECONDS, "report": self.reports} | options
        self.publisher = ProcessGroupPublisher(self.source, folder, self.board.post, **options)

    async def publish(self, version):
        """Publish weights of this version's own; gives the manifest once it is posted."""
        self.source.now = tensors(float(version))
        count = len(self.board.manifests)
        await self.publisher.publish(version)
        await until(lambda: len(self.board.manifests) > count)
        return self.board.manifests[-1]

    async def received(self, name="a", manifest=None):
        """What a member gets of an announcement, by default the last."""
        return await asyncio.to_thread(ProcessGroupSubscriber(self.folder, name).open, manifest or self.board.manifests[-1])


@pytest.fixture
def play(folder):
    """``play(scene, **options)``: what ``scene(learner)`` gives; the learner leaves afterwards."""

    def run(scene, **options):
        async def whole():
            learner = Learner(folder, **options)
            try:
                return await scene(learner)
            finally:
                learner.publisher.close()

        return asyncio.run(whole())

    return run


def answer(version):
    return {"version": version, "sums": sums(tensors(float(version)))}


async def hear(child):
    return await asyncio.to_thread(child.hear)


async def ready(*members):
    assert [await hear(member) for member in members] == ["ready"] * len(members)


async def tell(manifest, *members):
    """Their answers to an announcement."""
    for member in members:
        member.tell(manifest)
    return [await hear(member) for member in members]


def test_publishing_waits_for_nobody_and_only_the_newest_is_kept(play):
    async def alone(learner):
        for version in range(1, 6):
            learner.source.now = tensors(float(version))
            await learner.publisher.publish(version)
        await until(lambda: bool(learner.board.manifests) and learner.board.order() == (0, 5))
        return await learner.received()

    update = play(alone)
    assert (update.version, update.owned) == (5, True)
    assert_equal_tensors(dict(update.tensors), tensors(5.0))


def test_an_old_round_is_superseded(play, folder):
    async def late(learner):
        first = await learner.publish(1)
        await learner.publish(2)
        with pytest.raises(Superseded):
            await learner.received("a", first)

    play(late)
    assert not folder.exists()


async def reach(learner, version, names):
    """Publish a version that members with these names receive."""
    await learner.publish(version)
    await asyncio.gather(*map(learner.received, names))


@pytest.mark.parametrize(
    ("members", "left", "expected"),
    [
        (["one", "two"], ["one"], 1),
        (["one", "two"], ["one", "two", "three"], 2),
        (["one/worker-0", "one/worker-1", "two/worker-0", "two/worker-1"], ["two"], 2),
        (["one"], [], 1),
    ],
)
def test_nobody_waits_for_a_member_whose_generator_is_known_to_have_left(play, members, left, expected):
    async def two_rounds(learner):
        await reach(learner, 1, members)
        # Long enough for a busy machine to bring one member in, short of the time the others are waited for above.
        learner.board.following, learner.publisher.seconds = left, 4 * SECONDS
        await reach(learner, 2, members[:1])
        return learner.publisher.expected

    assert play(two_rounds, generators=len(members), seconds=60.0) == expected


@pytest.mark.parametrize("announcing", ["has failed", "is refused later", "never ends"])
def test_a_learner_that_leaves_while_it_announces_weights_leaves_no_error_behind(announcing, folder):
    heard = []

    async def leave():
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: heard.append(context["message"]))
        publisher, asked = Learner(folder).publisher, asyncio.Event()

        async def post(manifest):
            asked.set()
            await asyncio.sleep({"has failed": 0.0, "is refused later": 0.02, "never ends": 60.0}[announcing])
            raise StreamError("the stage is over")

        publisher.post = post
        await publisher.publish(1)
        await asked.wait()
        await until(lambda: publisher._sender.done() or announcing != "has failed")
        publisher.close()
        await asyncio.sleep(0.05)
        assert publisher._sender.done()

    asyncio.run(leave())
    gc.collect()
    assert heard == []
    assert not folder.exists()


def test_a_member_that_leaves_while_it_is_waited_for_is_waited_for_no_longer(play):
    members, left = ["one", "two"], asyncio.Event()

    async def departure(among):
        assert among == members[: len(among)]
        await left.wait()
        left.clear()
        return members[:1]

    async def two_rounds(learner):
        await reach(learner, 1, members)
        learner.board.following = members
        await learner.publish(2)
        asyncio.get_running_loop().call_later(0.2, left.set)
        # not the minute that a member may take to come
        return await asyncio.wait_for(learner.received("one"), 30.0)

    assert play(two_rounds, generators=2, seconds=60.0, departure=departure).version == 2


def test_a_round_that_ends_by_itself_while_it_is_woken_keeps_its_store_until_then(folder, monkeypatch):
    def slowly(store, name, held):
        count = store.add("arrivals", 1)
        time.sleep(1.5)  # longer than the round waits
        store.set(f"here/{count}", json.dumps([name, held]))

    monkeypatch.setattr(process_group, "arrive", slowly)

    async def close():
        learner = Learner(folder, seconds=0.1)
        await learner.publish(1)
        await until(lambda: learner.publisher._serving)
        learner.publisher.close()
        await until(lambda: not folder.exists())
        return learner.publisher._sender

    assert asyncio.run(close()) is not None


def test_processes_take_part_and_a_late_one_gets_a_pass_of_its_own(children, play, folder):
    async def three(learner):
        *members, late = (children(OPENING, folder, name) for name in ("a", "b", "late"))
        await ready(*members, late)
        for version in (1, 2, 3):
            manifest = await learner.publish(version)
            assert await tell(manifest, *members) == [answer(version)] * 2
            assert await tell(manifest, late) == [answer(version)]
        return learner.reports

    assert play(three, generators=2) == []


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP])
def test_a_dead_or_stopped_member_delays_one_round_and_no_more(sign, children, play, folder):
    async def two(learner):
        well, ill = (children(OPENING, folder, name) for name in ("well", "ill"))
        await ready(well, ill)
        assert await tell(await learner.publish(1), well, ill) == [answer(1)] * 2
        os.kill(ill.process.pid, sign)
        for version in (2, 3, 4):
            assert await tell(await learner.publish(version), well) == [answer(version)]
        assert learner.publisher.expected == 1
        return learner.reports

    assert play(two, generators=2) == []


HALF = (
    """
import os, signal, sys
from penstock.weights import process_group
def half(self, image_I):
    os.kill(os.getpid(), signal.SIGKILL)
process_group.Group.broadcast = half
"""
    + OPENING
)


def test_a_member_that_dies_in_the_middle_of_a_broadcast_breaks_the_group_and_the_others_get_a_new_one(children, play, folder):
    large = {"large": tensors()["norm"].repeat(3 << 20)}

    async def two(learner):
        learner.source.now = large
        well, dies = children(OPENING, folder, "well"), children(HALF, folder, "dies")
        await ready(well, dies)
        await learner.publisher.publish(1)
        await until(lambda: len(learner.board.manifests) > 0)
        for member in (well, dies):
            member.tell(learner.board.manifests[-1])
        return await hear(well), learner.reports

    found, reports = play(two, generators=2)
    assert found == {"version": 1, "sums": sums(large)}
    assert [entry["members"] for entry in reports] == [["dies", "well"]]


def test_a_member_that_was_restarted_under_its_name_joins_again(children, play, folder):
    async def restarted(learner):
        for version in (1, 2):
            member = children(OPENING, folder, "a")
            await ready(member)
            assert await tell(await learner.publish(version), member) == [answer(version)]
            member.end()
        return learner.reports

    assert play(restarted) == []


def test_a_subscriber_whose_publisher_died_gives_up_at_its_deadline(play):
    async def orphaned(learner):
        await learner.publish(1)
        learner.publisher._deliver = lambda *_: set()
        with pytest.raises(WeightError, match="the learner, or another generator of its group, is gone"):
            await learner.received()

    play(orphaned, seconds=0.2)


def test_that_nobody_came_is_reported(play):
    async def lonely(learner):
        await learner.publish(1)
        await until(lambda: len(learner.reports) > 0)
        return learner.reports[0]["reason"]

    assert play(lonely, seconds=0.1) == "nobody came in 0 s"


def test_stores_are_for_the_eyes_of_their_user(play, folder):
    async def one(learner):
        await learner.publish(1)
        return folder.stat().st_mode

    assert stat.S_IMODE(play(one)) == 0o700

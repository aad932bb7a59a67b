"""Weight updates that must not be loaded: refused with the reason in the run's log, and the old weights stay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from runs import Start, assert_each_trained_once, weights

SPOILED = """
import struct
from penstock.weights.snapshot import checksum, table_checksum
from penstock.weights import shared_memory
from torch import frombuffer, uint8

def another(publisher, version, learner_epoch):
    publisher.learner_epoch = learner_epoch
    return publisher._write(version)

def wrong_checksum(publisher, manifest):
    manifest["buckets"][0]["checksum"] = "0" * 16

def wrong_shape(publisher, manifest):
    place = next(place for place in manifest["tensors"] if len(place["shape"]) == 2 and len(set(place["shape"])) == 2)
    place["shape"].reverse()

def not_a_number(publisher, manifest):
    buffer, place = publisher.buffers[-1], manifest["tensors"][3]
    at = shared_memory._DATA + place["offset"]
    buffer.map[at : at + 4] = struct.pack("<f", float("nan"))
    image_I = frombuffer(buffer.map, dtype=uint8, count=buffer.length, offset=shared_memory._DATA)
    first = manifest["buckets"][0]
    first["checksum"] = checksum(image_I[: first["bytes"]])

def outside(publisher, manifest):
    manifest["tensors"][-1]["offset"] = 1 << 40

def without_a_name(publisher, manifest):
    manifest["tensors"].pop()

def elsewhere(publisher, manifest):
    manifest["file"] = "/etc/passwd"

def publishing(function, publisher, version):
    async def publish():
        own = publisher.learner_epoch
        for number, spoil in enumerate(spoils if version == 2 else ()):
            manifest = another(publisher, version, own + number)
            spoil(publisher, manifest)
            manifest["table"] = table_checksum(manifest)
            await publisher.post(manifest)
            await asyncio.sleep(0.7)  # so that it is looked at before the next one takes its place
        publisher.learner_epoch = own + len(spoils)
        await function(publisher, version)
    return publish()

if name == "learner":
    wrap("penstock.weights.shared_memory:SharedMemoryPublisher.publish", publishing)
"""


@pytest.mark.slow
def test_updates_that_are_wrong_are_refused_and_the_run_goes_on(start: Start, undisturbed: Callable[..., Path]) -> None:
    kinds = "spoils = (wrong_checksum, wrong_shape, not_a_number, outside, without_a_name, elsewhere)\n"
    run = start("letters", "--steps", "6", in_roles=SPOILED.replace("def publishing", kinds + "def publishing"))
    assert run.wait() == 0, run.everything()
    refused = [note["reason"] for note in run.notes("weights refused")]
    expected = ("checksum", "shape", "not finite", "does not fit its place", "is missing", "/etc/passwd")
    assert len(refused) == len(expected), refused
    for reason, part in zip(refused, expected, strict=True):
        assert part in reason
    assert all(note["role"] == "generator-0" for note in run.notes("weights refused"))
    assert_each_trained_once(run.folder, 6)
    assert weights(run.run) == weights(undisturbed("letters", "--steps", "6"))
    run.assert_clean()


@pytest.mark.slow
def test_updates_that_are_always_wrong_end_the_run_with_the_reason(start: Start) -> None:
    always = """
import penstock.weights.follow
penstock.weights.follow.QUICKEST_LOAD = 1.0

def spoiled(function, learner, manifest):
    if manifest["version"] >= 2:
        manifest["buckets"][0]["checksum"] = "0" * 16
    return function(learner, manifest)

if name == "learner":
    wrap("penstock.runtime.remote:RemoteLearner.announce", spoiled)
"""
    run = start("letters", in_roles=always)
    run.assert_refused("generator-0", "before it was ready", "weight update 2 (learner_epoch 1) refused: the checksum")
    assert "s for weights of version 2" in (run.run / "logs" / "generator-0.log").read_text()

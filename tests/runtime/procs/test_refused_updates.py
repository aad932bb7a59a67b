"""Weight updates that must not be loaded: refused with the reason in the run's log, and the old weights stay."""

from __future__ import annotations

from runs import Start, Undisturbed

SPOILED = """
from penstock.weights.snapshot import table_checksum

def wrong_checksum(manifest):
    manifest["buckets"][0]["checksum"] = "0" * 16

def wrong_shape(manifest):
    place = next(place for place in manifest["tensors"] if len(place["shape"]) == 2 and len(set(place["shape"])) == 2)
    place["shape"].reverse()

def publishing(function, publisher, version):
    async def publish():
        for spoil in (wrong_checksum, wrong_shape) if version == 2 else ():
            manifest = publisher._write(version)
            spoil(manifest)
            manifest["table"] = table_checksum(manifest)
            await publisher.post(manifest)
            await asyncio.sleep(0.7)  # so that it is looked at before the next one takes its place
            publisher.learner_epoch += 1
        await function(publisher, version)
    return publish()

if name == "learner":
    wrap("penstock.weights.shared_memory:SharedMemoryPublisher.publish", publishing)
"""


def test_updates_that_are_wrong_are_refused_and_the_run_goes_on(start: Start, undisturbed: Undisturbed) -> None:
    """One whose bytes are wrong, and one that would not fit the model; tests/weights has all that may be wrong with one."""
    run = start("letters", "--steps", "6", in_roles=SPOILED)
    run.assert_ends(undisturbed("letters", "--steps", "6"), 6)
    refused = run.notes("weights refused")
    assert [note["role"] for note in refused] == ["generator-0"] * 2
    assert "checksum" in refused[0]["reason"]
    assert "shape" in refused[1]["reason"]


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

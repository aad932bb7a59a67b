"""Weights through shared memory: what arrives, who waits for whom, and what stays behind."""

import os
import signal
import struct

import pytest
import torch

from penstock.core.errors import Superseded, WeightError
from penstock.core.files import lock
from penstock.weights import shared_memory
from penstock.weights.folder import OWNER, PREFIX, OwnedFolder, clear_leftovers, shared_folder
from penstock.weights.shared_memory import SharedMemoryPublisher, SharedMemorySubscriber
from penstock.weights.snapshot import table_checksum
from weight_examples import OPENING, Board, Channel, Source, assert_equal_tensors, sums, tensors


@pytest.fixture
def channel(folder):
    made = Channel(folder, SharedMemoryPublisher, SharedMemorySubscriber)
    yield made
    made.close()


def test_what_was_published_arrives_byte_for_byte(channel):
    channel.publish(1)
    update = channel.open()
    assert (update.version, update.learner_epoch, update.owned) == (1, 0, True)
    assert_equal_tensors(dict(update.tensors), channel.source.now)


def test_a_manifest_is_plain_json_and_says_what_travels(channel):
    channel.publish(7)
    manifest = channel.manifest
    assert (manifest["kind"], manifest["version"], manifest["learner_epoch"]) == ("shared memory", 7, 0)
    assert manifest["tensors"][0] == {"name": "embedding", "dtype": "float32", "shape": [37, 8], "offset": 0, "bytes": 1184}
    assert [tensor["dtype"] for tensor in manifest["tensors"]] == ["float32", "bfloat16", "float32", "float32", "float32"]
    assert sum(bucket["bytes"] for bucket in manifest["buckets"]) == manifest["bytes"]


def test_floats_travel_as_bfloat16_where_asked(folder):
    channel = Channel(folder, SharedMemoryPublisher, SharedMemorySubscriber, dtype="bfloat16")
    channel.publish(1)
    assert_equal_tensors(channel.tensors(), {name: tensor.to(torch.bfloat16) for name, tensor in tensors().items()})
    channel.close()


def test_a_version_that_was_opened_is_not_touched_by_the_next(channel):
    channel.publish(1)
    first = channel.tensors()
    channel.source.now = tensors(1.0)
    channel.publish(2, 3, 4, 5)
    assert_equal_tensors(first, tensors())
    assert_equal_tensors(channel.tensors(), channel.source.now)


def test_buffers_are_used_again_and_stay_few(channel, folder):
    for version in range(1, 12):
        channel.publish(version)
        channel.open()
    assert len({manifest["file"] for manifest in channel.board.manifests}) == 2
    assert len(list(folder.glob("*.weights"))) == 2


def test_a_reader_that_never_lets_go_does_not_hold_up_the_publisher(channel, folder):
    channel.publish(1)
    with open(channel.manifest["file"], "rb") as held:
        assert lock(held.fileno(), shared=True)
        before = held.read()
        for version in range(2, 20):
            channel.source.now = tensors(float(version))
            channel.publish(version)
            assert channel.open().version == version
        held.seek(0)
        assert held.read() == before
    assert len(list(folder.glob("*.weights"))) <= shared_memory.BUFFERS


def test_many_held_buffers_are_unlinked_and_new_ones_made(channel, folder):
    held = []
    for version in range(1, 10):
        channel.publish(version)
        held.append(open(channel.manifest["file"], "rb"))  # noqa: SIM115
        assert lock(held[-1].fileno(), shared=True)
    assert len(list(folder.glob("*.weights"))) == shared_memory.BUFFERS
    assert channel.open().version == 9
    for file in held:
        file.close()


def test_an_old_manifest_is_superseded_once_its_buffer_is_used_again(channel):
    channel.publish(1, 2, 3, 4)
    with pytest.raises(Superseded):
        channel.subscriber.open(channel.board.manifests[0])


def test_a_buffer_that_is_being_written_is_superseded(channel):
    channel.publish(1, 2)
    assert channel.publisher.buffers[0].free()
    with pytest.raises(Superseded, match="being written"):
        channel.subscriber.open(channel.board.manifests[0])


def test_a_flipped_bit_is_refused_and_named(channel):
    channel.publish(1)
    with open(channel.manifest["file"], "r+b") as file:
        file.seek(shared_memory._DATA + 100)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 4]))
    with pytest.raises(WeightError, match=r'checksum of bytes 0 to .* \("embedding" … "scalar"\) does not match'):
        channel.open()


def test_a_file_that_was_cut_short_is_refused(channel):
    channel.publish(1)
    os.truncate(channel.manifest["file"], shared_memory._DATA + 50)
    with pytest.raises(WeightError, match="is cut short by"):
        channel.open()


def test_a_manifest_that_points_elsewhere_is_refused(channel, tmp_path):
    channel.publish(1)
    with pytest.raises(WeightError, match="is not in"):
        channel.open(file=str(tmp_path / "other.weights"))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda m: m.pop("tensors"),
        lambda m: m["tensors"][0].pop("shape"),
        lambda m: m["tensors"][0].update(dtype="float7"),
        lambda m: m["tensors"][0].update(offset=1 << 40),
        lambda m: m["tensors"][0].update(offset=-64),
        lambda m: m["tensors"][0].update(shape=[37, 9]),
        lambda m: m["tensors"][0].update(name="another"),
        lambda m: m.pop("table"),
        lambda m: m["buckets"].clear(),
        lambda m: m.update(bytes=1 << 50),
        lambda m: m.update(version="new"),
        lambda m: m.update(kind="disk"),
    ],
)
def test_a_malformed_manifest_is_refused(channel, spoil):
    channel.publish(1)
    spoil(channel.manifest)
    with pytest.raises(WeightError, match=r"malformed|came to a subscriber"):
        channel.open()


def test_weights_that_change_their_names_are_refused_and_the_channel_goes_on(channel):
    channel.publish(1)
    channel.source.now = {f"other {name}": tensor for name, tensor in tensors().items()}
    with pytest.raises(WeightError, match='"other embedding" stands for "embedding"'):
        channel.publish(2)
    channel.source.now = tensors(3.0)
    channel.publish(3)
    assert_equal_tensors(channel.tensors(), channel.source.now)


def test_too_little_room_says_what_to_do(channel, monkeypatch):

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(WeightError, match="No space left on device; enlarge the shared memory"):
        channel.publish(1)


def test_a_machine_without_shared_memory_says_what_to_do(tmp_path):
    with pytest.raises(WeightError, match="use the channel disk"):
        shared_folder("run", tmp_path / "nowhere")


def test_a_folder_has_one_living_owner(folder):
    owner = OwnedFolder(folder)
    with pytest.raises(WeightError, match="another process publishes weights here"):
        OwnedFolder(folder)
    assert clear_leftovers(folder.parent) == []
    owner.close()
    OwnedFolder(folder).close()


def test_folders_without_an_owner_file_are_nobodys_to_clear(tmp_path):
    (tmp_path / f"{PREFIX}foreign").mkdir()
    assert clear_leftovers(tmp_path) == []


PUBLISHING = """
import asyncio, json, os, signal, sys
from pathlib import Path
from weight_examples import Source, tensors
from penstock.weights import shared_memory, snapshot

async def main():
    source, wait = Source(), asyncio.get_running_loop().run_in_executor
    async def post(manifest):
        print(json.dumps(manifest), flush=True)
    publisher = shared_memory.SharedMemoryPublisher(source, Path(sys.argv[1]), post, int(sys.argv[2]))
    while line := await wait(None, sys.stdin.readline):
        asked = json.loads(line)
        source.now = tensors(float(asked["version"]))
        if asked.get("die"):
            write = snapshot.Layout.write
            def half(self, weights, target):
                write(self, weights, target)
                os.kill(os.getpid(), signal.SIGKILL)
            snapshot.Layout.write = half
        await publisher.publish(asked["version"])
asyncio.run(main())
"""


def test_a_publisher_killed_in_mid_write_is_never_loaded_and_its_successor_goes_on(children, folder):
    publisher = children(PUBLISHING, folder, 0)
    subscriber = SharedMemorySubscriber(folder)
    manifests = [publisher.ask({"version": version}) for version in (1, 2, 3)]
    assert_equal_tensors(dict(subscriber.open(manifests[-1]).tensors), tensors(3.0))
    publisher.tell({"version": 4, "die": True})
    assert publisher.process.wait(timeout=120) == -signal.SIGKILL
    half_written = [file for file in folder.glob("*.weights") if file.read_bytes()[:8] != b"penstock"]
    assert len(half_written) == 1
    forged = next(m for m in manifests if m["file"] == str(half_written[0])) | {"version": 4, "serial": 4}
    forged["table"] = table_checksum(forged)
    with pytest.raises(WeightError, match="holds no finished weights"):
        subscriber.open(forged)
    assert_equal_tensors(dict(subscriber.open(manifests[-1]).tensors), tensors(3.0))

    successor = children(PUBLISHING, folder, 1)
    again = successor.ask({"version": 3})
    assert (again["learner_epoch"], again["version"]) == (1, 3)
    assert subscriber.open(again).learner_epoch == 1
    with pytest.raises(Superseded, match="is gone"):
        subscriber.open(manifests[-1])


def test_what_a_killed_run_left_is_cleared_by_the_next_start(children, folder):
    publisher = children(PUBLISHING, folder, 0)
    publisher.ask({"version": 1})
    publisher.end()
    assert len(list(folder.glob("*.weights"))) == 1
    other = SharedMemoryPublisher(Source(), folder.with_name(f"{PREFIX}other"), Board().post)
    assert not folder.exists()
    assert (other.folder.path / OWNER).exists()
    other.close()


def test_a_stopped_subscriber_holds_up_neither_the_publisher_nor_the_others(children, channel, folder):
    readers = [children(OPENING, folder, name) for name in ("a", "b", "stopped")]
    assert [reader.hear() for reader in readers] == ["ready"] * 3
    channel.publish(1)
    assert [reader.ask(channel.manifest)["version"] for reader in readers] == [1, 1, 1]
    stopped = readers[2]
    os.kill(stopped.process.pid, signal.SIGSTOP)
    for version in range(2, 7):
        channel.source.now = tensors(float(version))
        channel.publish(version)
        stopped.tell(channel.manifest)
        for reader in readers[:2]:
            assert reader.ask(channel.manifest) == {"version": version, "sums": sums(channel.source.now)}
    os.kill(stopped.process.pid, signal.SIGCONT)
    answers = [stopped.hear() for _ in range(5)]
    assert answers[-1]["version"] == 6
    assert all("version" in answer or "update" in answer["error"] for answer in answers)


def test_the_header_tells_the_learner_epoch_apart(channel):
    channel.publish(1)
    later = channel.manifest | {"learner_epoch": 1}
    with pytest.raises(Superseded):
        channel.open(learner_epoch=1, table=table_checksum(later))
    assert struct.calcsize(shared_memory._HEADER.format) <= shared_memory._DATA

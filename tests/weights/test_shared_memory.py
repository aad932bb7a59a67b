"""Weights through shared memory: what arrives, who waits for whom, and what stays behind."""

import asyncio
import os
import signal
import struct

import pytest
import torch
from weight_examples import OPENING, Board, Source, assert_equal_tensors, sums, tensors

from penstock.core.errors import Superseded, WeightError
from penstock.core.files import lock
from penstock.weights import shared_memory
from penstock.weights.folder import OWNER, PREFIX, OwnedFolder, clear_leftovers, shared_folder
from penstock.weights.shared_memory import SharedMemoryPublisher, SharedMemorySubscriber
from penstock.weights.snapshot import table_checksum


@pytest.fixture
def folder(tmp_path):
    return tmp_path / f"{PREFIX}run"


@pytest.fixture
def channel(folder):
    """A publisher with its source and board, and a subscriber."""
    source, board = Source(), Board()
    publisher = SharedMemoryPublisher(source, folder, board.post)
    yield source, board, publisher, SharedMemorySubscriber(folder)
    publisher.close()


def publish(publisher, *versions):
    async def all_of_them():
        for version in versions:
            await publisher.publish(version)

    asyncio.run(all_of_them())


def test_what_was_published_arrives_byte_for_byte(channel):
    source, board, publisher, subscriber = channel
    publish(publisher, 1)
    update = subscriber.open(board.manifests[-1])
    assert (update.version, update.learner_epoch, update.owned) == (1, 0, True)
    assert_equal_tensors(dict(update.tensors), source.now)


def test_a_manifest_is_plain_json_and_says_what_travels(channel):
    _, board, publisher, _ = channel
    publish(publisher, 7)
    manifest = board.manifests[-1]
    assert (manifest["kind"], manifest["version"], manifest["learner_epoch"]) == ("shared memory", 7, 0)
    assert manifest["tensors"][0] == {"name": "embedding", "dtype": "float32", "shape": [37, 8], "offset": 0, "bytes": 1184}
    assert [tensor["dtype"] for tensor in manifest["tensors"]] == ["float32", "bfloat16", "float32", "float32", "float32"]
    assert sum(bucket["bytes"] for bucket in manifest["buckets"]) == manifest["bytes"]


def test_floats_travel_as_bfloat16_where_asked(folder):
    board, source = Board(), Source()
    publisher = SharedMemoryPublisher(source, folder, board.post, dtype="bfloat16")
    publish(publisher, 1)
    update = SharedMemorySubscriber(folder).open(board.manifests[-1])
    assert_equal_tensors(dict(update.tensors), {name: tensor.to(torch.bfloat16) for name, tensor in source.now.items()})
    publisher.close()


def test_a_version_that_was_opened_is_not_touched_by_the_next(channel):
    source, board, publisher, subscriber = channel
    publish(publisher, 1)
    first, expected = subscriber.open(board.manifests[-1]), tensors()
    source.now = tensors(1.0)
    publish(publisher, 2, 3, 4, 5)
    assert_equal_tensors(dict(first.tensors), expected)
    assert_equal_tensors(dict(subscriber.open(board.manifests[-1]).tensors), source.now)


def test_buffers_are_used_again_and_stay_few(channel, folder):
    _, board, publisher, subscriber = channel
    for version in range(1, 12):
        publish(publisher, version)
        subscriber.open(board.manifests[-1])
    assert len({manifest["file"] for manifest in board.manifests}) == 2
    assert len(list(folder.glob("*.weights"))) == 2


def test_a_reader_that_never_lets_go_does_not_hold_up_the_publisher(channel, folder):
    source, board, publisher, subscriber = channel
    publish(publisher, 1)
    with open(board.manifests[-1]["file"], "rb") as held:
        assert lock(held.fileno(), shared=True)
        before = held.read()
        for version in range(2, 20):
            source.now = tensors(float(version))
            publish(publisher, version)
            assert subscriber.open(board.manifests[-1]).version == version
        held.seek(0)
        assert held.read() == before
    assert len(list(folder.glob("*.weights"))) <= shared_memory.BUFFERS


def test_many_held_buffers_are_unlinked_and_new_ones_made(channel, folder):
    _, board, publisher, subscriber = channel
    held = []
    for version in range(1, 10):
        publish(publisher, version)
        held.append(open(board.manifests[-1]["file"], "rb"))  # noqa: SIM115
        assert lock(held[-1].fileno(), shared=True)
    assert len(list(folder.glob("*.weights"))) == shared_memory.BUFFERS
    assert subscriber.open(board.manifests[-1]).version == 9
    for file in held:
        file.close()


def test_an_old_manifest_is_superseded_once_its_buffer_is_used_again(channel):
    _, board, publisher, subscriber = channel
    publish(publisher, 1, 2, 3, 4)
    with pytest.raises(Superseded):
        subscriber.open(board.manifests[0])


def test_a_buffer_that_is_being_written_is_superseded(channel):
    _, board, publisher, subscriber = channel
    publish(publisher, 1, 2)
    assert publisher.buffers[0].free()
    with pytest.raises(Superseded, match="being written"):
        subscriber.open(board.manifests[0])


def test_a_flipped_bit_is_refused_and_named(channel):
    _, board, publisher, subscriber = channel
    publish(publisher, 1)
    with open(board.manifests[-1]["file"], "r+b") as file:
        file.seek(shared_memory._DATA + 100)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 4]))
    with pytest.raises(WeightError, match=r'checksum of bytes 0 to .* \("embedding" … "scalar"\) does not match'):
        subscriber.open(board.manifests[-1])


def test_a_file_that_was_cut_short_is_refused(channel):
    _, board, publisher, subscriber = channel
    publish(publisher, 1)
    os.truncate(board.manifests[-1]["file"], shared_memory._DATA + 50)
    with pytest.raises(WeightError, match="is cut short by"):
        subscriber.open(board.manifests[-1])


def test_a_manifest_that_points_elsewhere_is_refused(channel, tmp_path):
    _, board, publisher, subscriber = channel
    publish(publisher, 1)
    with pytest.raises(WeightError, match="is not in"):
        subscriber.open(board.manifests[-1] | {"file": str(tmp_path / "other.weights")})


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
    _, board, publisher, subscriber = channel
    publish(publisher, 1)
    manifest = board.manifests[-1]
    spoil(manifest)
    with pytest.raises(WeightError, match=r"malformed|came to a subscriber"):
        subscriber.open(manifest)


def test_weights_that_change_their_names_are_refused_and_the_channel_goes_on(channel):
    source, board, publisher, subscriber = channel
    publish(publisher, 1)
    source.now = {f"other {name}": tensor for name, tensor in tensors().items()}
    with pytest.raises(WeightError, match='"other embedding" stands for "embedding"'):
        publish(publisher, 2)
    source.now = tensors(3.0)
    publish(publisher, 3)
    assert_equal_tensors(dict(subscriber.open(board.manifests[-1]).tensors), source.now)


def test_too_little_room_says_what_to_do(channel, monkeypatch):
    _, _, publisher, _ = channel

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(WeightError, match="No space left on device; enlarge the shared memory"):
        publish(publisher, 1)


def test_a_machine_without_shared_memory_says_what_to_do(tmp_path):
    with pytest.raises(WeightError, match="use the channel disk"):
        shared_folder("run", tmp_path / "nowhere")


def test_closing_leaves_nothing_behind(folder):
    publisher = SharedMemoryPublisher(Source(), folder, Board().post)
    publish(publisher, 1, 2)
    publisher.close()
    assert list(folder.parent.iterdir()) == []


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


@pytest.mark.slow
def test_a_stopped_subscriber_holds_up_neither_the_publisher_nor_the_others(children, channel, folder):
    source, board, publisher, _ = channel
    readers = [children(OPENING, folder, name) for name in ("a", "b", "stopped")]
    assert [reader.hear() for reader in readers] == ["ready"] * 3
    publish(publisher, 1)
    assert [reader.ask(board.manifests[-1])["version"] for reader in readers] == [1, 1, 1]
    stopped = readers[2]
    os.kill(stopped.process.pid, signal.SIGSTOP)
    for version in range(2, 7):
        source.now = tensors(float(version))
        publish(publisher, version)
        stopped.tell(board.manifests[-1])
        for reader in readers[:2]:
            assert reader.ask(board.manifests[-1]) == {"version": version, "sums": sums(source.now)}
    os.kill(stopped.process.pid, signal.SIGCONT)
    answers = [stopped.hear() for _ in range(5)]
    assert answers[-1]["version"] == 6
    assert all("version" in answer or "update" in answer["error"] for answer in answers)


def test_the_header_tells_the_learner_epoch_apart(channel):
    _, board, publisher, subscriber = channel
    publish(publisher, 1)
    later = board.manifests[-1] | {"learner_epoch": 1}
    with pytest.raises(Superseded):
        subscriber.open(later | {"table": table_checksum(later)})
    assert struct.calcsize(shared_memory._HEADER.format) <= shared_memory._DATA

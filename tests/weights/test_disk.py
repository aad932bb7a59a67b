"""Weights through files: full ones and differences, read from wherever a subscriber is."""

import resource
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from penstock.core.errors import Superseded, WeightError
from penstock.weights import disk
from penstock.weights.disk import DiskPublisher, DiskSubscriber
from weight_examples import Board, Channel, Source, assert_equal_tensors, tensors


@pytest.fixture
def channel(folder):
    """One of bfloat16."""
    made = Channel(folder, DiskPublisher, DiskSubscriber, large, dtype="bfloat16")
    yield made
    made.close()


def large(version, seed=0):
    """Weights of which a thousandth changes from version to version."""
    weights = torch.randn(100, 400, generator=torch.Generator().manual_seed(seed))
    weights.view(-1)[::1000] += float(version)
    return {"layer": weights, "norm": torch.full((9,), float(version))}


def expected(version):
    return {name: tensor.to(torch.bfloat16) for name, tensor in large(version).items()}


def opened(subscriber, manifest):
    return dict(subscriber.open(manifest).tensors)


def test_a_full_file_is_readable_by_any_program(channel):
    channel.publish(1)
    (link,) = channel.manifest["chain"]
    assert link["whole"]
    assert load_file(link["file"]).keys() == {"layer", "norm"}
    assert torch.equal(load_file(link["file"])["layer"], expected(1)["layer"])


def test_every_version_arrives_and_only_its_difference_is_read(channel):
    sizes = []
    for version in range(1, 6):
        channel.publish(version)
        assert_equal_tensors(channel.tensors(), expected(version))
        sizes.append(channel.subscriber.bytes_read)
    assert all(10 * size < sizes[0] for size in sizes[1:])


def test_who_missed_versions_reads_what_is_between(channel):
    channel.publish(1)
    channel.tensors()
    channel.publish(2, 3, 4)
    assert_equal_tensors(channel.tensors(), expected(4))
    assert channel.subscriber.bytes_read == sum(link["bytes"] for link in channel.manifest["chain"][1:])


def test_who_begins_anew_reads_the_full_file_and_the_differences(channel, folder):
    channel.publish(1, 2, 3)
    assert [link["whole"] for link in channel.manifest["chain"]] == [True, False, False]
    assert_equal_tensors(opened(DiskSubscriber(folder), channel.manifest), expected(3))


def test_chains_end_and_old_files_go(channel, folder, monkeypatch):
    monkeypatch.setattr(disk, "FULL_EVERY", 3)
    channel.publish(*range(1, 12))
    assert [len(manifest["chain"]) for manifest in channel.board.manifests] == [1, 2, 3] * 3 + [1, 2]
    assert len(list(folder.glob("*.safetensors"))) <= 6
    assert_equal_tensors(channel.tensors(), expected(11))
    with pytest.raises(Superseded, match="is gone"):
        channel.subscriber.open(channel.board.manifests[0])


def test_an_update_that_was_opened_is_not_touched_by_the_next(channel):
    channel.publish(1)
    first = channel.tensors()
    channel.publish(2)
    channel.tensors()
    assert_equal_tensors(first, expected(1))


def test_weights_that_changed_everywhere_go_as_a_full_file(channel):
    channel.publish(1)
    channel.at = lambda version: large(0, seed=5)
    channel.publish(2)
    assert [link["whole"] for link in channel.manifest["chain"]] == [True]
    assert torch.equal(channel.tensors()["layer"], channel.source.now["layer"].to(torch.bfloat16))


def test_float32_masters_arrive_byte_for_byte(folder):
    channel = Channel(folder, DiskPublisher, DiskSubscriber, lambda version: tensors(float(version)))
    for version in (1, 2):
        channel.publish(version)
        assert_equal_tensors(channel.tensors(), tensors(float(version)))
    channel.close()


def test_a_base_that_was_changed_behind_the_subscribers_back_is_read_anew(channel):
    channel.publish(1)
    channel.tensors()["layer"].zero_()
    channel.publish(2)
    assert_equal_tensors(channel.tensors(), expected(2))
    assert channel.subscriber.bytes_read == sum(link["bytes"] for link in channel.manifest["chain"])


def test_a_cut_file_is_refused_and_what_was_held_stays(channel):
    channel.publish(1)
    channel.tensors()
    channel.publish(2)
    file = channel.manifest["chain"][-1]["file"]
    whole = open(file, "rb").read()  # noqa: SIM115
    open(file, "wb").write(whole[:-5])  # noqa: SIM115
    with pytest.raises(WeightError, match="cannot be read"):
        channel.open()
    channel.publish(3)
    with pytest.raises(WeightError, match="cannot be read"):
        channel.open()
    open(file, "wb").write(whole)  # noqa: SIM115
    assert_equal_tensors(channel.tensors(), expected(3))


def test_a_file_of_other_weights_is_refused_by_its_checksum(channel):
    channel.publish(1)
    save_file(expected(2), channel.manifest["chain"][0]["file"])
    with pytest.raises(WeightError, match="the checksum of bytes"):
        channel.open()


@pytest.mark.parametrize("lacking", ["layer", "norm"])
def test_a_full_file_without_a_tensor_is_refused(channel, lacking):
    channel.publish(1)
    some = {name: tensor for name, tensor in expected(1).items() if name != lacking}
    save_file(some, channel.manifest["chain"][0]["file"])
    with pytest.raises(WeightError, match=f'"{lacking}" is not in its full file'):
        channel.open()


def test_a_chain_that_leads_elsewhere_is_refused(channel, tmp_path):
    channel.publish(1, 2)
    chain = channel.manifest["chain"]
    with pytest.raises(WeightError, match="does not lead to its checksums"):
        channel.open(chain=chain[:1])
    with pytest.raises(WeightError, match="is not in"):
        channel.open(chain=[chain[0] | {"file": str(tmp_path / "other.safetensors")}])


def test_a_link_in_the_folder_is_not_followed(channel, tmp_path):
    """The file that it leads to is as good as the announced one, and is refused all the same."""
    channel.publish(1)
    file = Path(channel.manifest["chain"][0]["file"])
    file.rename(tmp_path / "elsewhere.safetensors")
    file.symlink_to(tmp_path / "elsewhere.safetensors")
    with pytest.raises(WeightError, match="is not in"):
        channel.open()


def test_a_full_disk_says_so_and_the_channel_goes_on(channel, folder):
    """No file may grow beyond what is allowed to this process, which fails like a disk without room."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        with pytest.raises(WeightError, match="cannot be written"):
            channel.publish(1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert list(folder.glob("*.unfinished")) == []
    channel.publish(2)
    assert_equal_tensors(channel.tensors(), expected(2))


DYING = """
import asyncio, json, os, signal, sys
from pathlib import Path
from weight_examples import Source
from penstock.weights import disk
def half(tensors, path, metadata=None):
    Path(path).write_bytes(b"half of a file")
    os.kill(os.getpid(), signal.SIGKILL)
async def post(manifest):
    print(json.dumps(manifest), flush=True)
    disk.save_file = half
publisher = disk.DiskPublisher(Source(), Path(sys.argv[1]), post)
async def main():
    await publisher.publish(1)
    await publisher.publish(2)
asyncio.run(main())
"""


def test_a_publisher_killed_in_mid_write_leaves_the_last_version_readable(children, folder):
    publisher = children(DYING, folder)
    manifest = publisher.hear()
    assert publisher.process.wait(timeout=120) == -signal.SIGKILL
    assert len(list(folder.glob("*.unfinished"))) == 1
    assert_equal_tensors(opened(DiskSubscriber(folder), manifest), tensors())
    successor = DiskPublisher(Source(), folder, Board().post, learner_epoch=1)
    assert list(folder.glob("*.unfinished")) == []
    with pytest.raises(Superseded):
        DiskSubscriber(folder).open(manifest)
    successor.close()

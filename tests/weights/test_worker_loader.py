"""The last stretch of weights into the processes of a foreign engine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from penstock.core.errors import WeightError
from penstock.weights.snapshot import sums_of
from penstock.weights.worker_loader import ReceiveBuffer, WorkerLoader, read


def tensors() -> dict[str, torch.Tensor]:
    return {"b": torch.arange(6.0).view(2, 3), "a": torch.ones(5, dtype=torch.bfloat16)}


def test_what_is_taken_is_what_was_passed(tmp_path: Path) -> None:
    taken, sums = read(WorkerLoader(tmp_path).write((1, 7), tensors()))
    assert [name for name, _ in taken] == ["b", "a"]
    for (_, tensor), expected in zip(taken, tensors().values(), strict=True):
        assert tensor.dtype == expected.dtype
        assert torch.equal(tensor, expected)
    assert list(sums) == sums_of(tensors().items)


def test_what_was_read_stays_when_the_file_goes(tmp_path: Path) -> None:
    loader = WorkerLoader(tmp_path)
    taken, _ = read(loader.write((0, 1), tensors()))
    loader.clear()
    assert list(tmp_path.iterdir()) == []
    assert torch.equal(taken[0][1], tensors()["b"])


def test_a_damaged_image_is_refused(tmp_path: Path) -> None:
    loader = WorkerLoader(tmp_path)
    manifest = loader.write((0, 1), tensors())
    with loader.path.open("r+b") as file:
        file.write(b"\x01")
    with pytest.raises(WeightError, match="checksum"):
        read(manifest)


@pytest.mark.parametrize("problem", ["gone", "short"])
def test_an_image_that_is_not_all_there_is_refused(tmp_path: Path, problem: str) -> None:
    loader = WorkerLoader(tmp_path)
    manifest = loader.write((0, 1), tensors())
    if problem == "gone":
        loader.clear()
    else:
        loader.path.write_bytes(b"")
    with pytest.raises(WeightError, match="is gone" if problem == "gone" else "cannot be read"):
        read(manifest)


def test_what_a_worker_received_is_taken_once(tmp_path: Path) -> None:
    buffer = ReceiveBuffer()
    buffer.receive(WorkerLoader(tmp_path).write((0, 1), tensors()), len)
    assert buffer.refusal == ""
    received = buffer.take()
    assert [name for name, _ in received.tensors] == ["b", "a"]
    assert (list(received.sums), received.prepared) == (sums_of(tensors().items), 2)
    with pytest.raises(WeightError, match="nothing was sent"):
        buffer.take()


def test_a_worker_that_refuses_says_why_and_raises_nothing(tmp_path: Path) -> None:
    loader, buffer = WorkerLoader(tmp_path), ReceiveBuffer()
    manifest = loader.write((0, 1), tensors())
    buffer.receive(manifest, lambda found: 1 / 0)
    assert buffer.refusal == "ZeroDivisionError: division by zero"
    loader.clear()
    buffer.receive(manifest)
    assert "is gone" in buffer.refusal
    with pytest.raises(WeightError, match=r"there are no weights to take: .*is gone"):
        buffer.take()


def test_workers_share_the_pages_of_one_file(tmp_path: Path) -> None:
    """A snapshot is mapped, not copied: what the file says after it was read is what the tensors say."""
    loader = WorkerLoader(tmp_path)
    found, _ = read(loader.write((0, 1), tensors()))
    with loader.path.open("r+b") as file:
        file.write(torch.tensor([7.0]).numpy().tobytes())
    assert found[0][1][0, 0] == 7.0

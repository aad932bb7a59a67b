"""The last stretch of weights into the processes of a foreign engine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from penstock.core.errors import WeightError
from penstock.weights.handover import Handover, take
from penstock.weights.image import sums_of


def tensors() -> dict[str, torch.Tensor]:
    return {"b": torch.arange(6.0).view(2, 3), "a": torch.ones(5, dtype=torch.bfloat16)}


def test_what_is_taken_is_what_was_handed_over(tmp_path: Path) -> None:
    taken, sums = take(Handover(tmp_path).write((1, 7), tensors()))
    assert [name for name, _ in taken] == ["b", "a"]
    for (_, tensor), expected in zip(taken, tensors().values(), strict=True):
        assert tensor.dtype == expected.dtype
        assert torch.equal(tensor, expected)
    assert list(sums) == sums_of(tensors().items)


def test_what_was_taken_stays_when_the_file_goes(tmp_path: Path) -> None:
    handover = Handover(tmp_path)
    taken, _ = take(handover.write((0, 1), tensors()))
    handover.clear()
    assert list(tmp_path.iterdir()) == []
    assert torch.equal(taken[0][1], tensors()["b"])


def test_a_damaged_image_is_refused(tmp_path: Path) -> None:
    handover = Handover(tmp_path)
    manifest = handover.write((0, 1), tensors())
    with handover.path.open("r+b") as file:
        file.write(b"\x01")
    with pytest.raises(WeightError, match="checksum"):
        take(manifest)


@pytest.mark.parametrize("problem", ["gone", "short"])
def test_an_image_that_is_not_all_there_is_refused(tmp_path: Path, problem: str) -> None:
    handover = Handover(tmp_path)
    manifest = handover.write((0, 1), tensors())
    if problem == "gone":
        handover.clear()
    else:
        handover.path.write_bytes(b"")
    with pytest.raises(WeightError, match="cannot be read"):
        take(manifest)

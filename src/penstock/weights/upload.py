"""Weights in one piece: a manifest and the whole snapshot, for a generator that shares neither memory nor a folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from penstock.core.errors import WeightError
from penstock.core.types import WeightUpdate
from penstock.weights.snapshot import Announced, Snapshots, empty_snapshot, manifest_of

KIND = "snapshot"


def pack(update: WeightUpdate) -> tuple[dict[str, Any], memoryview]:
    """The manifest of an update that has tensors, and its snapshot ``[bytes]``."""
    tensors = list(update.tensors or ())
    snapshots = Snapshots(lambda: tensors)
    bytes_I = snapshots.take()
    return manifest_of(KIND, (update.learner_epoch, update.version), snapshots.layout, bytes_I), bytes_I.numpy().data


def unpack(manifest: Mapping[str, Any], snapshot: bytearray) -> WeightUpdate:
    """The update in a snapshot, verified; the bytes are the update's from here on.

    Raises:
        WeightError: the manifest is malformed, bytes are missing, or a checksum does not match.
    """
    announced = Announced.read(manifest, KIND)
    if len(snapshot) != announced.layout.bytes:
        raise WeightError(f"{announced.name} refused: its snapshot has {len(snapshot)} bytes, not {announced.layout.bytes}")
    return announced.update(torch.frombuffer(snapshot, dtype=torch.uint8) if snapshot else empty_snapshot(0))

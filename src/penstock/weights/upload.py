"""Weights in one piece: a manifest and the whole image, for a generator that shares neither memory nor a folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from penstock.core.errors import WeightError
from penstock.core.types import WeightUpdate
from penstock.weights.image import Announced, Layout, empty_image, manifest_of

KIND = "image"


def pack(update: WeightUpdate) -> tuple[dict[str, Any], memoryview]:
    """The manifest of an update that has tensors, and its image ``[bytes]``."""
    tensors = list(update.tensors)
    layout = Layout.of(tensors)
    image_I = empty_image(layout.bytes)
    layout.write(tensors, image_I)
    return manifest_of(KIND, (update.incarnation, update.version), layout, image_I), image_I.numpy().data


def unpack(manifest: Mapping[str, Any], image: bytearray) -> WeightUpdate:
    """The update in an image, verified; the bytes are the update's from here on.

    Raises:
        WeightError: the manifest is malformed, bytes are missing, or a checksum does not match.
    """
    announced = Announced.read(manifest, KIND)
    if len(image) != announced.layout.bytes:
        raise WeightError(f"{announced.name} refused: its image has {len(image)} bytes, not {announced.layout.bytes}")
    return announced.update(torch.frombuffer(image, dtype=torch.uint8) if image else empty_image(0))

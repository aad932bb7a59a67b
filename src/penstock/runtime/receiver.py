"""Where the weights of a served model come from: a channel, or the body of a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.core.errors import WeightError
from penstock.core.types import WeightUpdate
from penstock.models.language_model import LanguageModel
from penstock.weights.channels import channel
from penstock.weights.ends import Subscriber
from penstock.weights.snapshot import Layout, sums_of, unpack


class ModelReceiver:
    """Receives weights for one model, which is only looked at."""

    def __init__(self, model: LanguageModel) -> None:
        self.model = model
        # Twice: weights may travel as float64.
        self.image_bytes = 2 * Layout.of(model.policy_weights()).bytes + (1 << 16)
        self._subscriber: Subscriber | None = None

    def group(self, kind: str, folder: str, name: str) -> None:
        self._subscriber = channel(kind).subscriber(folder, name)

    def open(self, manifest: Mapping[str, Any]) -> WeightUpdate:
        if self._subscriber is None:
            raise WeightError("a manifest came before its channel; say which one first, with POST /weights/group")
        return self._subscriber.open(manifest)

    def unpack(self, manifest: Mapping[str, Any], image: bytearray) -> WeightUpdate:
        return unpack(manifest, image)

    def sums(self) -> list[str]:
        weights = [(name, tensor.detach()) for name, tensor in self.model.policy_weights()]
        return sums_of(lambda: weights)

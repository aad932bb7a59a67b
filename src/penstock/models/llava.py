"""How LLaVA (arXiv:2310.03744) reads pictures: each is made to fit one size, its patches are tokens at positions like any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import CLIPImageProcessorPil

from penstock.config.media import Vision
from penstock.core.blobs import Picture
from penstock.core.errors import ModelError
from penstock.models.media import Medium, loaded
from penstock.models.qwen_vl import noise_of
from penstock.models.text import Text

TYPES = ("llava",)


class Llava:
    """Implements :class:`penstock.models.media.Processor`. Raises ModelError where pictures are to be of another size than the
    tower's, or the tower is not CLIP's."""

    kinds = ("image",)
    mrope = mutual = False
    files: Any = CLIPImageProcessorPil
    """transformers' class of the processor."""

    def __init__(self, processor: Any, vision: Vision, config: Any) -> None:
        if vision.pixels:
            side = config.vision_config.image_size
            raise ModelError(f"a {config.model_type} reads pictures of {side} pixels a side; leave vision.pixels=0")
        self.processor, self.config = processor, config
        self.pads: Mapping[str, int] = {"image": config.image_token_id}
        self.forbidden = frozenset(self.pads.values())
        self.parts = self._parts()

    def _parts(self) -> int:
        """How many tokens show a part of a picture."""
        tower = self.config.vision_config
        if tower.model_type != "clip_vision_model":
            raise ModelError(f'a LLaVA with a tower of type "{tower.model_type}" is not supported; CLIP\'s is')
        return int((tower.image_size // tower.patch_size) ** 2) + (self.config.vision_feature_select_strategy == "full")

    @classmethod
    def load(cls, path: str, vision: Vision, config: Any, **place: Any) -> Llava:
        """Of a model folder or hub name. Raises ModelError where it says nothing of pictures."""
        return cls(loaded(cls.files, path, place), vision, config)

    @property
    def settings(self) -> str:
        return str(self.processor.to_json_string())

    def read(self, medium: Picture, text: Text) -> Medium:
        made = self.processor(images=[medium], return_tensors="np", input_data_format="channels_last")
        values = torch.from_numpy(np.ascontiguousarray(made["pixel_values"], np.float32))
        return Medium({"pixel_values": values}, (self.pads["image"],) * self.parts, self.parts)

    def towers(self, network: Any) -> Sequence[nn.Module]:
        return [network.model.vision_tower, network.model.multi_modal_projector]

    def decoder(self, network: Any) -> Any:
        return network.model.language_model

    def features(self, network: Any, media: Sequence[Medium]) -> list[Tensor]:
        values = torch.cat([medium.inputs["pixel_values"] for medium in media]).to(network.device, network.dtype)
        return list(network.model.get_image_features(values, return_dict=True).pooler_output)

    def arguments(self, media: Sequence[Medium], tokens_BT: Tensor) -> dict[str, Any]:
        return {"pixel_values": torch.cat([medium.inputs["pixel_values"] for medium in media])} if media else {}

    def examples(self) -> list[Any]:
        return [noise_of(1, int(self.config.vision_config.image_size))[0]]

    def save(self, folder: Path) -> None:
        self.processor.save_pretrained(folder)

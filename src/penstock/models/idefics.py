"""How Idefics3 (arXiv:2408.12637) and SmolVLM (arXiv:2504.05299) read pictures: cut into tiles, each as many tokens, and the
whole made small after them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from penstock.config.media import Vision
from penstock.core.blobs import Picture
from penstock.core.errors import ModelError
from penstock.models.media import Medium, loaded
from penstock.models.qwen_vl import noise_of
from penstock.models.text import Text

FILES = {"idefics3": Idefics3ImageProcessorPil, "smolvlm": SmolVLMImageProcessorPil}
TYPES = tuple(FILES)
BORDER, PART, WHOLE = "<fake_token_around_image>", "<image>", "<global-img>"
"""What is written around tiles, for each part of one, and before the whole picture."""


class Idefics:
    """Implements :class:`penstock.models.media.Processor`. ``vision.pixels`` bound a side: it is their root, in whole tiles."""

    kinds = ("image",)
    mrope = mutual = False

    def __init__(self, processor: Any, vision: Vision, config: Any) -> None:
        self.processor, self.config = processor, config
        tower, tile = config.vision_config, int(processor.max_image_size["longest_edge"])
        if vision.pixels:
            processor.size = {"longest_edge": max(1, math.isqrt(vision.pixels) // tile) * tile}
        self.pads: Mapping[str, int] = {"image": config.image_token_id}
        self.forbidden = frozenset(self.pads.values())
        self.parts = (tower.image_size // tower.patch_size) ** 2 // config.scale_factor**2
        if tile != tower.image_size:
            raise ModelError(f"tiles of {tile} pixels a side for a tower of {tower.image_size} are not supported")

    @staticmethod
    def load(path: str, vision: Vision, config: Any, **place: Any) -> Idefics:
        """Of a model folder or hub name. Raises ModelError where it says nothing of pictures."""
        return Idefics(loaded(FILES[config.model_type], path, place), vision, config)

    @property
    def settings(self) -> str:
        return str(self.processor.to_json_string())

    def read(self, medium: Picture, text: Text) -> Medium:
        """Tiles row after row, each after its place, then the whole. Raises ValueError where the tokenizer lacks the marks."""
        made = self.processor(images=[medium], return_tensors="np", input_data_format="channels_last", return_row_col_info=True)
        values = torch.from_numpy(np.ascontiguousarray(made["pixel_values"][0], np.float32))
        seen = torch.from_numpy(np.ascontiguousarray(made["pixel_attention_mask"][0]))
        (rows,), (columns,) = made["rows"][0], made["cols"][0]
        tile, written = PART * self.parts, ""
        for row in range(rows):
            written += "".join(f"{BORDER}<row_{row + 1}_col_{column + 1}>{tile}" for column in range(columns)) + "\n"
        written += ("\n" if rows else "") + f"{BORDER}{WHOLE}{tile}{BORDER}"
        tokens, parts = text.encode(written), len(values) * self.parts
        if tokens.count(self.pads["image"]) != parts:
            raise ValueError(f"the tokenizer does not write {PART} as the token {self.pads['image']} of the model")
        return Medium({"pixel_values": values, "pixel_attention_mask": seen}, tuple(tokens), parts)

    def towers(self, network: Any) -> Sequence[nn.Module]:
        return [network.model.vision_model, network.model.connector]

    def decoder(self, network: Any) -> Any:
        return network.model.text_model

    def features(self, network: Any, media: Sequence[Medium]) -> list[Tensor]:
        """Each tile as a picture of its own; those of a medium together."""
        names = ("pixel_values", "pixel_attention_mask")
        values, seen = (torch.cat([medium.inputs[name] for medium in media])[:, None].to(network.device) for name in names)
        made = network.model.get_image_features(values, seen, return_dict=True).pooler_output
        return list(torch.cat(list(made)).split([medium.parts for medium in media]))

    def arguments(self, media: Sequence[Medium], tokens_BT: Tensor) -> dict[str, Any]:
        return {name: torch.cat([medium.inputs[name] for medium in media])[None] for name in (media[0].inputs if media else ())}

    def examples(self) -> list[Any]:
        """A picture as large as a tile."""
        return [noise_of(1, int(self.config.vision_config.image_size))[0]]

    def save(self, folder: Path) -> None:
        self.processor.save_pretrained(folder)

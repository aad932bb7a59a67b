"""How Gemma 3 (arXiv:2503.19786) reads pictures: as many tokens for each, which attend to one another in both directions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

from penstock.config.media import Vision
from penstock.core.blobs import Picture
from penstock.core.errors import ModelError
from penstock.models.llava import Llava
from penstock.models.media import Medium
from penstock.models.text import Text

TYPES = ("gemma3",)


class Gemma(Llava):
    """Implements :class:`penstock.models.media.Processor`. Raises ModelError where pictures are to be of another size than the
    tower's, or cut into crops ("pan and scan")."""

    mrope, mutual = False, True
    files = Gemma3ImageProcessorPil

    def __init__(self, processor: Any, vision: Vision, config: Any) -> None:
        side = config.vision_config.image_size
        if vision.pixels:
            raise ModelError(f"a Gemma 3 reads pictures of {side} pixels a side; leave vision.pixels=0")
        if processor.do_pan_and_scan:
            raise ModelError("do_pan_and_scan cuts pictures into crops, which is not supported; set it to false in the folder")
        self.processor, self.config = processor, config
        self.pads: Mapping[str, int] = {"image": config.image_token_id}
        self.forbidden = frozenset(self.pads.values())
        self.parts = int(config.mm_tokens_per_image)

    def read(self, medium: Picture, text: Text) -> Medium:
        found = super().read(medium, text)
        tokens = (self.config.boi_token_index, *found.tokens, self.config.eoi_token_index)
        return found._replace(tokens=tokens, around="\n\n")

    def arguments(self, media: Sequence[Medium], tokens_BT: Tensor) -> dict[str, Any]:
        return super().arguments(media, tokens_BT) | {"token_type_ids": (tokens_BT == self.pads["image"]).int()}

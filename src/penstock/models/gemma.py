"""How Gemma 3 (arXiv:2503.19786) reads pictures: as many tokens for each, which attend to one another in both directions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

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

    def _parts(self) -> int:
        if self.processor.do_pan_and_scan:
            raise ModelError("do_pan_and_scan cuts pictures into crops, which is not supported; set it to false in the folder")
        return int(self.config.mm_tokens_per_image)

    def read(self, medium: Picture, text: Text) -> Medium:
        found = super().read(medium, text)
        tokens = (self.config.boi_token_index, *found.tokens, self.config.eoi_token_index)
        return found._replace(tokens=tokens, around="\n\n")

    def arguments(self, media: Sequence[Medium], tokens_BT: Tensor) -> dict[str, Any]:
        return super().arguments(media, tokens_BT) | {"token_type_ids": (tokens_BT == self.pads["image"]).int()}

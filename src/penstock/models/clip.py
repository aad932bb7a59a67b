"""CLIP (arXiv:2103.00020) from a folder or hub name: pictures and texts as vectors of one space, never trained here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional
from transformers import CLIPImageProcessorPil, CLIPModel

from penstock.core.blobs import Picture
from penstock.core.errors import ModelError, first_line
from penstock.models.attention import quiet_transformers
from penstock.models.files import NO_CODE, load_text


class Clip:
    """Compares pictures with texts. Raises ModelError where the folder or hub name holds no CLIP with its processors."""

    def __init__(self, path: str, device: Any = "cpu") -> None:
        self.text = load_text(path).tokenizer
        try:
            with quiet_transformers():
                self.processor: Any = CLIPImageProcessorPil.from_pretrained(path, **NO_CODE)
                self.model: Any = CLIPModel.from_pretrained(path, use_safetensors=True, **NO_CODE).eval().to(device)
        except Exception as error:
            raise ModelError(f"{path}: no CLIP can be loaded from here: {first_line(error)}") from error

    @torch.no_grad()
    def alike(self, pictures: Sequence[Picture], texts: Sequence[str]) -> list[float]:
        """The cosine of each picture and its text, of which the end beyond the model's context is not read."""
        longest = self.model.config.text_config.max_position_embeddings
        tokens = self.text(list(texts), padding=True, truncation=True, max_length=longest, return_tensors="pt")
        given = {name: tokens[name].to(self.model.device) for name in ("input_ids", "attention_mask")}
        text_BD = functional.normalize(self.model.get_text_features(**given, return_dict=True).pooler_output, dim=-1)
        return [float(cosine) for cosine in (self._images(pictures) * text_BD).sum(-1)]

    @torch.no_grad()
    def headed(self, pictures: Sequence[Picture], file: str) -> list[float]:
        """What the linear layer in a file of safetensors (``weight`` ``[1, D]``, ``bias`` ``[1]``) makes of the normalised
        embedding of each picture. Raises ModelError where there is no such layer."""
        try:
            head = load_file(Path(file).expanduser(), str(self.model.device))
            score_B1 = functional.linear(self._images(pictures), head["weight"].float(), head["bias"].float())
            return [float(score) for (score,) in score_B1]
        except (OSError, SafetensorError, KeyError, RuntimeError, ValueError) as error:
            raise ModelError(f"{file}: no linear layer weight [1, D], bias [1] for this CLIP: {error}") from error

    def _images(self, pictures: Sequence[Picture]) -> Tensor:
        made = self.processor(images=list(pictures), return_tensors="pt", input_data_format="channels_last")
        found = self.model.get_image_features(made["pixel_values"].to(self.model.device), return_dict=True)
        return functional.normalize(found.pooler_output, dim=-1)

"""Texts to points: the mean of a model's last hidden states, of an encoder or of any decoder whose folder is at hand."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedTokenizerFast

from penstock.core.errors import ModelError, first_line
from penstock.models.attention import quiet_transformers
from penstock.models.files import NO_CODE, _check_folder, _says_generic

LONGEST = 512
"""Tokens of a text that are read, where the model's context is not shorter."""
TOGETHER = 16
"""Texts in one forward pass."""


class ModelEmbedder:
    """The model in a folder as a function of texts; fulfils the Embedder protocol of ``product/search.py``.

    A decoder's states lie close together whatever the texts say, so what counts as near differs from model to model.
    """

    def __init__(self, path: str) -> None:
        """
        Raises:
            ModelError: no such folder, pickled weights, no tokenizer, or a model that cannot be loaded.
        """
        self.folder = Path(path)
        if not self.folder.is_dir():
            raise ModelError(f"{self.folder.absolute()}: no such folder")
        _check_folder(self.folder)
        try:
            with quiet_transformers():
                config = AutoConfig.from_pretrained(path, **NO_CODE)
                tokenizers: Any = PreTrainedTokenizerFast if _says_generic(path) else AutoTokenizer
                self._tokenizer = tokenizers.from_pretrained(path, **NO_CODE)
                safely: Any = {"use_safetensors": True, **NO_CODE}
                network: Any = AutoModel.from_pretrained(path, config=config, dtype=torch.float32, **safely)
        except Exception as error:
            raise ModelError(f"{path}: cannot be loaded to embed texts: {first_line(error)}") from error
        self._network = (network.get_encoder() if config.is_encoder_decoder else network).eval().requires_grad_(False)
        self._longest = min(LONGEST, getattr(config, "max_position_embeddings", None) or LONGEST)

    @cached_property
    def name(self) -> str:
        """Of what is in the folder, so that points of another model are never taken for this one's."""
        total = hashlib.sha256()
        for file in sorted(self.folder.iterdir()):
            if file.suffix in (".safetensors", ".json", ".model", ".txt"):
                total.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
        return f"model-{total.hexdigest()[:32]}"

    @torch.no_grad()
    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """``[N, D]``, each row of length 1; rows of zeros for texts without a token.

        Raises:
            ModelError: a hidden state is not finite.
        """
        parts = [self._points(texts[start : start + TOGETHER]) for start in range(0, len(texts), TOGETHER)]
        return torch.cat(parts).numpy() if parts else np.zeros((0, self._network.config.hidden_size), np.float32)

    def _points(self, texts: Sequence[str]) -> torch.Tensor:
        tokens = [self._tokenizer.encode(text)[: self._longest] for text in texts]
        width = max(1, *map(len, tokens))
        # What is beyond a text's end is masked twice: nothing attends to it, and it is not in the mean.
        tokens_BT = torch.tensor([row + [0] * (width - len(row)) for row in tokens])
        read_BT = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in tokens])
        hidden_BTD = self._network(input_ids=tokens_BT, attention_mask=read_BT).last_hidden_state
        weight_BT1 = read_BT.unsqueeze(-1).to(hidden_BTD.dtype)
        # Rows without a token are all mask, which some attentions turn into NaN; their sum is of nothing.
        total_BD = torch.where(weight_BT1 > 0, hidden_BTD, 0).sum(1)
        if not torch.isfinite(total_BD).all():
            raise ModelError(f"{self.folder}: a hidden state is not finite; is it a damaged model?")
        return total_BD / total_BD.norm(dim=1, keepdim=True).clamp_min(1e-12)

"""Model folders that differ in their weights alone."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.pt", "*.pth")


def write_like(source: Path, tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Write tensors as a model folder whose configuration and tokenizer are those of ``source``; readable by its user alone."""
    folder.mkdir(mode=0o700, parents=True)
    for file in source.iterdir():
        if file.is_file() and not any(file.match(pattern) for pattern in WEIGHTS):
            shutil.copyfile(file, folder / file.name)
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(plain, folder / "model.safetensors", metadata={"format": "pt"})

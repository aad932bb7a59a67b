"""Model folders: replaced whole, or like another in all but the weights."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.pt", "*.pth")


@contextlib.contextmanager
def replaced_folder(path: Path) -> Iterator[Path]:
    """A new folder that takes the place of ``path`` when the block ends well.

    Raises:
        OSError: it cannot be made or renamed.
    """
    temporary, old = path.with_name(f".{path.name}.writing"), path.with_name(f".{path.name}.old")
    for left in (temporary, old):
        shutil.rmtree(left, ignore_errors=True)
    temporary.mkdir(parents=True)
    yield temporary
    if path.exists():
        os.rename(path, old)
    os.rename(temporary, path)
    shutil.rmtree(old, ignore_errors=True)


def write_like(source: Path, tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Write tensors as a model folder whose configuration and tokenizer are those of ``source``; readable by its user alone."""
    folder.mkdir(mode=0o700, parents=True)
    for file in source.iterdir():
        if file.is_file() and not any(file.match(pattern) for pattern in WEIGHTS):
            shutil.copyfile(file, folder / file.name)
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(plain, folder / "model.safetensors", metadata={"format": "pt"})

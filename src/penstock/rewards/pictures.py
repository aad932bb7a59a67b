"""Rewards of pictures that a diffusion policy made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.algos.denoising import picture_of
from penstock.data.pictures import file_of

if TYPE_CHECKING:
    from penstock.core.types import Sample


def compressible(sample: Sample, columns: Mapping[str, Any], *, quality: int = 95) -> float:
    """Minus the bytes of the picture as a JPEG (DDPO: Black et al. 2023, arXiv 2305.13301, 5.1; with ``weight=-1`` it is the
    paper's incompressibility). The header counts too, and is the same for all pictures."""
    return -float(len(file_of(picture_of(sample), "the reward compressible", "JPEG", quality=quality)))

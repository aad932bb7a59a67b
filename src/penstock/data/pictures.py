"""Pictures as files. The only file that imports PIL."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import DataError

SMALLEST = 96
"""Pixels that a picture has along its shorter side at least, so that people see something."""


def png(picture: NDArray[np.uint8]) -> bytes:
    """A picture ``[H, W, 1 or 3]`` as a PNG; a small one is enlarged by a whole number.

    Raises:
        DataError: Pillow is not installed, or the picture has another number of channels.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError(f"pictures of samples need Pillow ({error}); run: pip install penstock[media]") from error
    if picture.ndim != 3 or picture.shape[2] not in (1, 3):
        raise DataError(f"a picture of shape {picture.shape} cannot be shown; give [height, width, 1 or 3]")
    times = -(-SMALLEST // min(picture.shape[:2]))
    larger: Any = np.repeat(np.repeat(picture, times, 0), times, 1)
    found = io.BytesIO()
    Image.fromarray(larger[..., 0] if larger.shape[2] == 1 else larger).save(found, "PNG")
    return found.getvalue()

"""Arrays of the host on a device, without waiting for what the device is doing."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def uploaded(array: Any, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """An array as a tensor of a device. On CUDA it goes through pinned memory: from any other, a copy waits for all that the
    device has been given."""
    tensor = torch.as_tensor(np.ascontiguousarray(array), dtype=dtype)
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)

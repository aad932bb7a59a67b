"""Times and noise for pictures to be learned from, as a function of a row's key: the same however a batch is split."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

KEY = "noise_key"
"""The field of a row that its times and noise follow from; rows with the same key have the same."""


def times_and_noise(
    key_B: NDArray[np.float32], row_A: NDArray[np.int32], shape: Sequence[int], stream: torch.Generator | None
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """For each action of each row a time, spread evenly from 0 to 1 over the row, and noise: ``[A]`` and ``[A, *shape]``.

    They follow from the row's key and from the state of a random stream, which is left as it is; without one, from the
    key alone.
    """
    now = b"" if stream is None else hashlib.blake2b(stream.get_state().numpy().tobytes()).digest()
    times, noise = [], []
    for key, count in zip(key_B.tolist(), np.bincount(row_A, minlength=len(key_B)).tolist(), strict=True):
        digest = hashlib.blake2b(now + struct.pack("<d", key), digest_size=16).digest()
        draw = np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
        times.append((np.arange(count) + draw.random(count)) / count)
        noise.append(draw.standard_normal((count, *shape), np.float32))
    return np.concatenate(times).astype(np.float32), np.concatenate(noise)

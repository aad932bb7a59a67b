"""Seeds that follow from a run's own."""

from __future__ import annotations

import numpy as np


def seed_of(run_seed: int, *names: str) -> int:
    """A 31-bit seed that is a pure function of the run's seed and what it is for."""
    words = [run_seed % 2**32, *(byte for name in names for byte in name.encode())]
    return int(np.random.SeedSequence(words).generate_state(1)[0]) & 0x7FFFFFFF

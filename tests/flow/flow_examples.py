"""Groups of a known age, without tokens that matter."""

from __future__ import annotations

import numpy as np

from penstock.core.types import Group, Prompt, PromptKey, Sample, SampleKey


def group(ordinal: int, version: int = 0) -> Group:
    """A scored group of one sample, whose one action was drawn by ``version``."""
    key = PromptKey("test", 0, ordinal)
    columns = np.array([20, 21], np.int32), np.array([False, True]), np.zeros(2, np.float32), np.array([-1, version], np.int32)
    return Group(Prompt(key, ""), (Sample(SampleKey(key, 0), *columns, "stop").scored(1.0),))

"""A run collects garbage as it ends: what was imported before is not looked at each time."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(scope="module", autouse=True)
def _frozen() -> None:
    gc.freeze()

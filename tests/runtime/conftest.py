"""What tests of runs share: objects that outlive them are not searched again and again, and a hub with its peers."""

from __future__ import annotations

import gc

import pytest
from hub_scenes import Peers


@pytest.fixture(scope="module", autouse=True)
def _collections_that_look_at_new_objects_only() -> None:
    """A run ends with a collection of waste, which takes a second among all that is imported here, and none after this."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def peers() -> Peers:
    return Peers()

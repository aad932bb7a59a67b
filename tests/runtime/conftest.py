"""What tests of runs share: a hub with its peers."""

from __future__ import annotations

import pytest
from hub_scenes import Peers


@pytest.fixture
def peers() -> Peers:
    return Peers()

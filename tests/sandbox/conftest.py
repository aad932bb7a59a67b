"""The jails of this machine: each test of ``jail`` runs on every one that can exist for this user."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from jails import KINDS, Running, running

from penstock.sandbox import SandboxError

WANTED = os.environ.get("PENSTOCK_JAILS", "").split()
"""Jails that must exist here, for whoever starts these tests as another user."""


@pytest.fixture(scope="module", params=KINDS)
def jail(request: pytest.FixtureRequest) -> Iterator[Running]:
    try:
        made = running(request.param)
    except SandboxError as error:
        if request.param in WANTED:
            raise
        pytest.skip(f"no such jail here: {error}")
    yield made
    made.close()

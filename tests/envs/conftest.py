"""The threads that plain functions of environments run in."""

import pytest

from penstock.sandbox.threads import Threads


@pytest.fixture
def threads():
    made = Threads("environment", 4)
    yield made
    made.close()

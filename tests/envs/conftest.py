"""The threads that plain functions of environments run in."""

import threading

import pytest

from penstock.sandbox.threads import Threads


@pytest.fixture
def threads():
    made = Threads("environment", 4)
    yield made
    made.close()


@pytest.fixture
def release():
    """An event for functions that hang, set when their test is over."""
    made = threading.Event()
    yield made
    made.set()

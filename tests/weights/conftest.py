"""Where weights are published, and processes that end with their test."""

import pytest

from penstock.weights.folder import PREFIX
from weight_examples import Child


@pytest.fixture
def folder(tmp_path):
    return tmp_path / f"{PREFIX}run"


@pytest.fixture
def children():
    """Starts processes, and ends them with the test."""
    started = []

    def start(code, *words):
        started.append(Child(code, *map(str, words)))
        return started[-1]

    yield start
    for child in started:
        child.end()

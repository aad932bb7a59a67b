"""Processes that end with their test."""

import pytest
from weight_examples import Child


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

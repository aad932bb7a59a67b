"""Models of either kind for the engines' tests."""

import pytest

import tiny_t5


@pytest.fixture
def made(tiny, text):
    """``made(architecture)``: a decoder or an encoder-decoder of the test's own."""
    return lambda architecture: (
        tiny_t5.build(text, architecture) if architecture in tiny_t5.ARCHITECTURES else tiny(architecture)
    )

"""Encoder-decoders besides the models that all tests have."""

import pytest

import tiny_t5


@pytest.fixture
def tiny(tiny, text):
    """``tiny(architecture="qwen2")``: a model of the test's own, also of "t5"."""
    return lambda architecture="qwen2": tiny_t5.build(text) if architecture == "t5" else tiny(architecture)

"""What all tests share: one thread, a time until which they may begin, a tokenizer and models that are built in no time."""

from __future__ import annotations

import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import settings

import tiny_models
import vllm_engine
from penstock.models.language_model import LanguageModel
from penstock.models.text import Text, train_tokenizer
from penstock.observe import machine

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
settings.register_profile("penstock", deadline=None, derandomize=True)
settings.load_profile("penstock")
machine.EVERY = 86_400.0  # what the machine does is no part of what tests compare


def pytest_runtest_setup(item: pytest.Item) -> None:
    """CI names a time: the tests that have not begun by then are skipped and counted, so that what has run has a result."""
    if time.time() > float(os.environ.get("TESTS_BEGIN_UNTIL", "inf")):
        pytest.skip("not begun: the time for these tests was over")


@pytest.fixture(scope="session", autouse=True)
def _vllm() -> Iterator[None]:
    """The engine that tests of vLLM share ends with the session."""
    yield
    vllm_engine.end()


@pytest.fixture(scope="session")
def text() -> Text:
    """A tokenizer of 300 pieces."""
    return train_tokenizer(tiny_models.CORPUS, 300)


@pytest.fixture(scope="session")
def built(text: Text) -> dict[str, LanguageModel]:
    """One peaked random model of every architecture; shared, so never to be changed."""
    return {name: tiny_models.build(name, text) for name in tiny_models.ARCHITECTURES}


@pytest.fixture
def tiny(built: dict[str, LanguageModel]) -> Callable[..., LanguageModel]:
    """``tiny(architecture="qwen2")``: a model of the test's own, which it may train."""
    return lambda architecture="qwen2": copy.deepcopy(built[architecture])

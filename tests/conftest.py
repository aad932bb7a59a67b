"""What all tests share: tiers by cost, one thread, a tokenizer and models that are built in no time."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import asyncio
import copy
import gc
import inspect
import socketserver
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch

import tiny_models
import vllm_engine
import warm
from penstock.models.language_model import LanguageModel
from penstock.models.text import Text, train_tokenizer
from penstock.observe import machine
from penstock.web import app as web_app
from tiers import pytest_addoption, pytest_configure

__all__ = ["pytest_addoption", "pytest_configure"]

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
if find_spec("vllm") is None:  # its engine starts processes of its own kind
    warm.begin(at_once="PYTEST_XDIST_WORKER" in os.environ)
machine.EVERY = 86_400.0  # what the machine does is no part of what tests compare


def hurry() -> None:
    """Servers that a test starts in this process end within hundredths of a second.

    They would look every 0.1 s (uvicorn, twice) or 0.5 s (the standard library's) whether they should, and ours would read on
    for a second after a refusal.
    """
    socketserver.BaseServer.serve_forever.__defaults__ = (0.01,)
    web_app.LINGER = 0.1
    if find_spec("uvicorn") is not None:
        from uvicorn import server

        server.asyncio = SimpleNamespace(**vars(asyncio))
        server.asyncio.sleep = lambda seconds: asyncio.sleep(seconds / 10)


hurry()


@pytest.fixture(scope="module", autouse=True)
def _collections_that_look_at_new_objects_only() -> None:
    """A run collects garbage as it begins and ends, which takes a second among all that is imported by then."""
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine runs on a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}))
    return True


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that the test starts execute Python anew, for tests of what that does."""
    monkeypatch.setitem(warm.HERE, "cold", True)


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

"""Encoder-decoders beside the models that all tests have; a test that is a coroutine runs on a loop of its own."""

import asyncio
import inspect

import pytest

import tiny_t5


@pytest.fixture
def tiny(tiny, text):
    """``tiny(architecture="qwen2")``: a model of the test's own, also of "t5"."""
    return lambda architecture="qwen2": tiny_t5.build(text) if architecture == "t5" else tiny(architecture)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}))
    return True

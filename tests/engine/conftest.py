"""Models of either kind for the engines' tests, which may be coroutines."""

import asyncio
import inspect

import pytest

import tiny_t5


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """A test that is a coroutine runs on a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}))
    return True


@pytest.fixture
def made(tiny, text):
    """``made(architecture)``: a decoder or an encoder-decoder of the test's own."""
    return lambda architecture: (
        tiny_t5.build(text, architecture) if architecture in tiny_t5.ARCHITECTURES else tiny(architecture)
    )

"""A server over a tiny model on loopback, inside the test's event loop; and what processes of a server read."""

import asyncio
import inspect
from contextlib import asynccontextmanager

import pytest

import tiny_models
from penstock.models.files import save_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory, text):
    """A folder with ``model-of-tests`` and the file ``token``."""
    from serving import TOKEN

    made = tmp_path_factory.mktemp("served")
    save_model(tiny_models.build("qwen2", text), made / "model-of-tests")
    (made / "token").touch(0o600)
    (made / "token").write_text(TOKEN + "\n")
    return made


@pytest.fixture(scope="module")
def words(folder):
    """How to serve it."""
    return str(folder / "model-of-tests"), "--port", "0", "--token-file", str(folder / "token")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """A test that is a coroutine runs on a loop of its own, for two minutes at most."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**given), 120))
    return True


@pytest.fixture
def serve(tiny):
    """``async with serve(access=None, headers=None, **limits) as (client, service)``: a server over a tiny model; the client
    sends the tests' token unless ``headers`` says otherwise."""
    import httpx  # not at the top: tests of other engines beside these run where it is not installed

    from serving import BEARER, service_of, serving

    @asynccontextmanager
    async def over(access=None, headers=None, **limits):
        service = service_of(tiny(), **limits)
        usual = BEARER if headers is None else headers
        async with (
            serving(service, access) as url,
            httpx.AsyncClient(base_url=url, headers=usual, timeout=30, trust_env=False, verify=False) as client,
        ):
            yield client, service

    return over

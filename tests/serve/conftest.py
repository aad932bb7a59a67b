"""A server over a tiny model on loopback, inside the test's event loop."""

import asyncio

import pytest


@pytest.fixture
def ask(tiny):
    """``ask(scenario, access=None, headers=None, **limits)``: the result of an async scenario over (client, service); the
    client sends the tests' token unless ``headers`` says otherwise."""
    import httpx  # not at the top: tests of other engines beside these run where it is not installed

    from serving import BEARER, service_of, serving

    def run(scenario, access=None, headers=None, **limits):
        async def over():
            service = service_of(tiny(), **limits)
            usual = BEARER if headers is None else headers
            async with (
                serving(service, access) as url,
                httpx.AsyncClient(base_url=url, headers=usual, timeout=30, trust_env=False, verify=False) as client,
            ):
                return await asyncio.wait_for(scenario(client, service), 60)

        return asyncio.run(over())

    return run

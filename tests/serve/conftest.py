"""A server over a tiny model on loopback, inside the test's event loop."""

import asyncio

import httpx
import pytest

from serving import BEARER, service_of, serving


@pytest.fixture
def ask(tiny):
    """``ask(scenario, access=None, headers=BEARER, **limits)``: the result of an async scenario over (client, service)."""

    def run(scenario, access=None, headers=BEARER, **limits):
        async def over():
            service = service_of(tiny(), **limits)
            async with (
                serving(service, access) as url,
                httpx.AsyncClient(base_url=url, headers=headers, timeout=30, trust_env=False, verify=False) as client,
            ):
                return await asyncio.wait_for(scenario(client, service), 60)

        return asyncio.run(over())

    return run

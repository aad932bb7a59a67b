"""The live page's server over a folder of runs, asked in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from live_examples import small_run
from penstock.ui.live.app import Access, app_of

TOKEN = "token-of-the-tests"


@pytest.fixture
def asked(tmp_path: Path) -> Callable[..., httpx.Response]:
    """``asked(path, method="GET", token=False, local=True, store=None, headers={}, root=tmp_path, **options)``: one answer."""

    def ask(path: str, method: str = "GET", *, token: bool = False, local: bool = True, store: Any = None,
            headers: dict[str, str] | None = None, root: Path = tmp_path, **options: Any) -> httpx.Response:  # fmt: skip
        app = app_of(root, Access(TOKEN, local), store)
        given = {"x-penstock-token": TOKEN} if token else {}

        async def over() -> httpx.Response:
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8901") as client:
                return await client.request(method, path, headers=given | (headers or {}), **options)

        return asyncio.run(over())

    return ask


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run ``small``, for tests that only read it."""
    return small_run(tmp_path_factory.mktemp("runs")).parent


@pytest.fixture
def told(asked: Callable[..., httpx.Response], small: Path) -> Callable[..., httpx.Response]:
    """As ``asked``, over the folder that tests share."""
    return partial(asked, root=small)

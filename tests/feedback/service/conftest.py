"""A desk for all tests; a service with an empty store for each."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

for needed in ("sqlalchemy", "starlette", "uvicorn", "httpx", "argon2", "nh3", "markdown_it"):
    pytest.importorskip(needed, reason="needs the extras feedback and serve")

from feedback_examples import HandClock  # noqa: E402
from served import Desk, Service  # noqa: E402

from penstock.feedback.policy import QueuePolicy  # noqa: E402
from penstock.feedback.store import Store  # noqa: E402


@pytest.fixture(scope="session")
def desk() -> Iterator[Desk]:
    made = Desk()
    yield made
    made.close()


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with nothing in it, copied for each test: migrations take longer than most tests."""
    path = tmp_path_factory.mktemp("empty") / "feedback.db"
    Store.open(path).close()
    return path


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def serve(desk: Desk, empty_store: Path, tmp_path: Path, clock: HandClock) -> Iterator[Callable[..., Service]]:
    """``serve(policy=None, **settings)``: a service over an empty store, on the hand clock."""
    made: list[Service] = []

    def start(policy: QueuePolicy | None = None, **settings: Any) -> Service:
        place = tmp_path / "feedback.db"
        shutil.copy(empty_store, place)
        made.append(Service(desk, Store.open(place, policy or QueuePolicy(gold_share=0, repeat_share=0), clock), **settings))
        return made[-1]

    yield start
    for service in made:
        service.app.close()
        service.store.close()


@pytest.fixture
def service(serve: Callable[..., Service]) -> Service:
    return serve()

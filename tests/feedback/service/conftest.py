"""A desk for all tests; a service with an empty store for each."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

for needed in ("sqlalchemy", "starlette", "uvicorn", "httpx", "argon2", "nh3", "markdown_it"):
    pytest.importorskip(needed, reason="needs the extras feedback and serve")

import httpx  # noqa: E402
from feedback_examples import PLAIN, HandClock, pair  # noqa: E402
from served import Desk, Person, Service  # noqa: E402

from penstock.cli.main import main  # noqa: E402
from penstock.feedback.policy import QueuePolicy  # noqa: E402
from penstock.feedback.store import Store  # noqa: E402


@pytest.fixture(scope="session")
def desk() -> Iterator[Desk]:
    made = Desk()
    yield made
    made.close()


@pytest.fixture
def serve(desk: Desk, empty_store: Path, tmp_path: Path, clock: HandClock) -> Iterator[Callable[..., Service]]:
    """``serve(policy=None, **settings)``: a service over an empty store, on the hand clock."""
    made: list[Service] = []

    def start(policy: QueuePolicy | None = None, **settings: Any) -> Service:
        place = tmp_path / "feedback.db"
        shutil.copy(empty_store, place)
        made.append(Service(desk, Store.open(place, policy or PLAIN, clock), **settings))
        return made[-1]

    yield start
    for service in made:
        service.app.close()
        service.store.close()


@pytest.fixture
def admin(service: Service) -> Person:
    return service.person("root", "admin")


@pytest.fixture
def client(service: Service) -> Iterator[httpx.Client]:
    """A browser that has been nowhere yet."""
    with service.client() as made:
        yield made


@pytest.fixture
def person(service: Service) -> Person:
    return service.person("ann")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """``run(*words)``: exit code, output and errors of ``penstock feedback``."""

    def command(*words: object) -> tuple[int, str, str]:
        exit_code = main(["feedback", *map(str, words)])
        said = capsys.readouterr()
        return exit_code, said.out, said.err

    return command


@pytest.fixture
def ann(service: Service) -> Person:
    """Somebody who is asked to compare a pair."""
    service.store.ask([pair()])
    return service.person("ann")


@pytest.fixture
def shown(ann: Person) -> dict[str, Any]:
    """The pair as it is on Ann's screen."""
    task = ann.next()
    assert task is not None
    return task


@pytest.fixture
def service(serve: Callable[..., Service]) -> Service:
    return serve()

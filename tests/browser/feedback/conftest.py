"""A service on a store of the test's own, and tasks to ask."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from feedback_service import PASSWORD, Service

from penstock.feedback.records import Item, Response, Task


@pytest.fixture(scope="session")
def hashed() -> str:
    """The password's hash, with little work: signing in is not what these tests measure."""
    pytest.importorskip("argon2", reason="argon2-cffi is not installed: pip install penstock[feedback]")
    from penstock.feedback.service.accounts import Passwords

    return Passwords(passes=1, memory_kib=8, lanes=1).made(PASSWORD)


@pytest.fixture
def service(tmp_path: Path, hashed: str) -> Iterator[Service]:
    """A service that is not started yet, on an empty store with the people of ``ROLES``."""
    made = Service(tmp_path / "feedback.db", hashed)
    yield made
    made.end()
    made.store.close()


@pytest.fixture
def pair() -> Callable[..., Task]:
    """``pair("x", left, right)``: two answers to a question of that name."""

    def make(name: str, first: str = "", second: str = "", **fields: Any) -> Task:
        responses = (Response(first or f"First answer to {name}."), Response(second or f"Second answer to {name}."))
        return Task(item=Item(prompt=f"Question {name}?", responses=responses), **{"overlap": 2, **fields})

    return make


@pytest.fixture
def many() -> Callable[..., Task]:
    """``many("x", 4, form="ranking")``: answers of a longer form than two beside each other."""

    def make(name: str, count: int, **fields: Any) -> Task:
        responses = tuple(Response(f"Answer number {i + 1} to {name}.") for i in range(count))
        return Task(item=Item(prompt=f"Question {name}?", responses=responses), **{"overlap": 2, **fields})

    return make

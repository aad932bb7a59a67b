from __future__ import annotations

from collections.abc import Iterator

import pytest

from s3_server import S3Server


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A running S3 server that this process's fsspec reaches as s3://runs."""
    server = S3Server()
    server.start()
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    yield server
    server.stop()

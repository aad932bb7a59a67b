"""An object store that speaks S3, as a process of its own on the loopback: moto's server."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from contextlib import closing

import s3fs


def free_port() -> int:
    with closing(socket.socket()) as asked:
        asked.bind(("127.0.0.1", 0))
        return int(asked.getsockname()[1])


class S3Server:
    """``environment`` is what a process needs to reach it; the bucket ``runs`` is there."""

    def __init__(self) -> None:
        self.port = free_port()
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": "test-key",
            "AWS_SECRET_ACCESS_KEY": "test-secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_MAX_ATTEMPTS": "1",
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, **more: str) -> None:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, env={**os.environ, **more}, **quiet)  # type: ignore[call-overload]
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                break
            except OSError:
                assert time.monotonic() < deadline, "moto's server does not come up"
                time.sleep(0.05)
        files = self.files()
        if not files.exists("runs"):
            files.mkdir("runs")

    def files(self) -> s3fs.S3FileSystem:
        """The store's content, as a test looks at it."""
        names = {"key": "AWS_ACCESS_KEY_ID", "secret": "AWS_SECRET_ACCESS_KEY", "endpoint_url": "AWS_ENDPOINT_URL"}
        return s3fs.S3FileSystem(
            **{name: self.environment[variable] for name, variable in names.items()},
            use_listings_cache=False,
            skip_instance_cache=True,
        )

    def stop(self) -> None:
        """End it; what it held is gone, as it holds all in memory."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait(timeout=60)
            self.process = None

"""Our HTTP server and a server that answers as SGLang does, on loopback inside a test's own event loop."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import uvicorn

from penstock.engine.encoder_decoder import embedded_generator
from penstock.models.language_model import LanguageModel
from penstock.runtime.receiver import ModelReceiver
from penstock.serve.guard import Access
from penstock.serve.server import server_of
from penstock.serve.service import Limits, Service
from penstock.web.server import listen

TOKEN = "a token of the tests, of some length".replace(" ", "-")
BEARER = {"Authorization": f"Bearer {TOKEN}"}


def service_of(model: LanguageModel, slots: int = 4, **limits: Any) -> Service:
    """A tiny model as a service called ``tiny``."""
    return Service(
        name="tiny",
        engine=embedded_generator(model, max_running=slots),
        text=model.text,
        context=model.context,
        vocabulary=model.network.get_input_embeddings().num_embeddings,
        limits=replace(Limits(), **limits),
        receiver=ModelReceiver(model),
    )


@asynccontextmanager
async def running(server: uvicorn.Server) -> AsyncIterator[str]:
    """A server that runs while the block does; gives its address."""
    with listen("127.0.0.1", 0) as listening:
        task = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task


@asynccontextmanager
async def serving(service: Service, access: Access | None = None) -> AsyncIterator[str]:
    """Our server, with the tests' token unless ``access`` says otherwise."""
    async with running(server_of(service, access or Access(token=TOKEN))) as url:
        yield url


class Process:
    """``penstock serve`` in a process of its own, once it serves."""

    def __init__(self, *words: str) -> None:
        code = "import sys; from penstock.cli.main import main; sys.exit(main())"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, "serve", *words], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        self.line = self.process.stdout.readline()
        assert self.line, self.process.stderr.read()
        self.url = self.line.split()[3].removesuffix("/v1")

    def end(self, number: int = signal.SIGINT) -> int:
        """Send a signal; gives the exit code. It is gone afterwards in any case."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(20)
        finally:
            self.process.kill()
            self.process.wait(10)
            self.stderr = self.process.stderr.read()
            for pipe in (self.process.stdout, self.process.stderr):
                pipe.close()

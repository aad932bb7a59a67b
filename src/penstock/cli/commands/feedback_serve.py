"""``penstock feedback serve``: the pages on which people judge."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from penstock.cli.command import address, called
from penstock.cli.commands.feedback import StoreCommand, opened
from penstock.core.errors import SpecError
from penstock.feedback.policy import QueuePolicy


@dataclass(kw_only=True)
class Serve(StoreCommand):
    """Serve the pages on which people judge.

    Beyond this machine it needs https, by its own certificate or a proxy's. Ctrl-C (or SIGTERM) once lets answers in progress
    end for 5 seconds; twice stops at once.
    """

    NEEDS = ("feedback", "starlette", "uvicorn", "sqlalchemy", "alembic", "argon2", "nh3", "markdown_it")

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 8900
    """Port to listen on; 0 takes a free one."""
    behind_https: bool = False
    """A proxy in front speaks https."""
    certificate: Annotated[str, called("FILE")] = ""
    """The server's own certificate, with --key."""
    key: Annotated[str, called("FILE")] = ""
    """The private key of --certificate."""
    guideline: Annotated[Path | None, called("FILE.md")] = None
    """What annotators are asked to go by (default: a short general text)."""
    guideline_version: str = "1"
    """Its version, kept with every vote."""
    policy: tyro.conf.OmitArgPrefixes[QueuePolicy] = field(default_factory=QueuePolicy)
    metrics_token_file: Annotated[str, called("FILE")] = ""
    """A file with the token with which Prometheus reads /metrics (default: administrators alone do)."""
    embedder: Annotated[str, called("hashed|FOLDER")] = "hashed"
    """How products' corrections are found (docs/feedback_product.md): by hashed words (default) or a model's hidden states."""
    least: float = 0.3
    """Least similarity of a correction that is shown."""
    control: float = 0.2
    """Share of requests that get no corrections."""

    def run(self) -> None:
        """Serve until a signal."""
        from penstock.feedback.service.app import FeedbackApp
        from penstock.feedback.service.context import GUIDELINE, Context, Settings
        from penstock.feedback.service.server import Transport, run
        from penstock.product.forms import embedder_of
        from penstock.product.routes import ProductRoutes
        from penstock.product.search import Retrieval
        from penstock.web.guard import read_secret
        from penstock.web.server import listen

        transport = Transport(self.host, self.behind_https, self.certificate, self.key)
        settings = Settings(
            local=transport.local,
            https=transport.https,
            forwarded=transport.behind_https,
            guideline_version=self.guideline_version,
            guideline=read(self.guideline or GUIDELINE),
            metrics_token=read_secret(self.metrics_token_file) if self.metrics_token_file else "",
        )
        retrieval = Retrieval(least=self.least, control=self.control)
        with opened(self.store, self.policy) as store, listen(self.host, self.port) as listening:
            scheme = "https" if transport.certificate else "http"
            line = f"serving {self.store} at {scheme}://{address(listening)} · Ctrl-C ends"
            context = Context(store, settings)
            product = ProductRoutes(context, embedder_of(self.embedder, Path.cwd()), retrieval)
            run(FeedbackApp(context, product.routes()), transport, listening, lambda: print(line, flush=True))


def read(guideline: Path) -> str:
    """The Markdown text of a guideline. Raises SpecError."""
    try:
        return guideline.read_text(encoding="utf-8")
    except OSError as error:
        raise SpecError(f"--guideline {guideline}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"--guideline {guideline}: no UTF-8 text") from error

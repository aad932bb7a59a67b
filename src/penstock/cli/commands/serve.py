"""``penstock serve MODEL``: the embedded engine behind an OpenAI-compatible API, with the routes of weight updates."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional

from penstock.cli.command import Command, Device, Dtype, address, called
from penstock.cli.commands.generate import model_path
from penstock.config.spec import require
from penstock.core.errors import SpecError

if TYPE_CHECKING:
    from penstock.serve.service import Service
    from penstock.serve.sessions import SessionRoutes


@dataclass(kw_only=True)
class Serve(Command):
    """Put a model behind an OpenAI-compatible API.

    Clients of OpenAI's API use http://HOST:PORT/v1. Ctrl-C (or SIGTERM) once lets answers in progress end for 5 seconds;
    twice stops at once.
    """

    NEEDS = ("serve", "starlette", "uvicorn")

    model: Positional[Annotated[str, called("MODEL")]]
    """A model folder (runs/NAME/model), a run folder such as runs/NAME, or a hub name."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 8000
    """Port to listen on; 0 takes a free one."""
    max_running: int = 64
    """Samples that are decoded at once."""
    cache_gb: float = 0.0
    """Gigabytes that the cache may take; 0: half of a GPU's free memory, 4 on a processor."""
    queue: int = 256
    """Samples that may wait for their turn; more are refused with status 429."""
    token_file: Annotated[str, called("FILE")] = ""
    """Clients with the token in this file may also change weights, pause, abort. Without it: this machine only, no changes."""
    key_file: Annotated[str, called("FILE")] = ""
    """A client that sends the key in this file may generate."""
    behind_https: bool = False
    """A proxy in front, perhaps on this machine, speaks https; needs --token-file."""
    media: Literal["none", "vision", "hearing"] = "none"
    """Chats may have images (vision) or sounds (hearing), where the model reads them."""
    fetch: Annotated[str, called("HOST,…")] = ""
    """Fetch images that chats name by an address at one of these hosts; else they must be in the request itself."""
    capture: Literal["no", "hermes", "llama", "mistral", "json"] = "no"
    """Programs may open sessions, whose calls come back as a sample; the format is that of the model's tool calls."""
    history: Literal["refuse", "split", "mask"] = "refuse"
    """Of --capture: what is done where the chat template rewrites earlier turns."""
    name: Annotated[str, called("NAME")] = ""
    """What the API calls the model (default: the folder's name)."""
    device: Device = "auto"
    dtype: Dtype = "float32"
    """Arithmetic of the model: bfloat16 for GPUs; mixed for processors that multiply bfloat16 faster."""

    def __post_init__(self) -> None:
        numbers = {"port": self.port, "queue": self.queue, "cache-gb": self.cache_gb, "max-running": self.max_running}
        for name, value in numbers.items():
            require(value >= (low := int(name == "max-running")), f"--{name} {value}; at least {low}")
        require(self.history == "refuse" or self.capture != "no", "--history is of captured programs; give --capture")
        require(not self.fetch or self.media == "vision", "--fetch is of images; give --media vision")

    def run(self) -> None:
        """Serve until a signal."""
        from penstock.serve.guard import Access
        from penstock.serve.server import run as serve
        from penstock.web.guard import read_secret
        from penstock.web.server import listen, warn_of_the_clear

        files = {"token": self.token_file, "key": self.key_file}
        known = {kind: read_secret(file) for kind, file in files.items() if file}
        access = Access(self.host, known.get("token", ""), known.get("key", ""), self.behind_https)
        if access.key and not access.token:
            raise SpecError("--key-file without --token-file; give both, or the token alone")
        warn_of_the_clear(self.host, self.behind_https)
        path = model_path(self.model)
        with listen(self.host, self.port) as listening:
            service = service_of(path, self.name or _name(self.model), self)
            rights = "weights and pauses need the token" if access.token else "weights cannot be changed (no --token-file)"
            print(f"serving {service.name} at http://{address(listening)}/v1 · {rights} · Ctrl-C ends", flush=True)
            serve(service, access, listening, None if self.capture == "no" else self._sessions(service))

    def _sessions(self, service: Service) -> SessionRoutes:
        from penstock.core.types import Sampling
        from penstock.runtime.capturing import Capturing
        from penstock.serve.sessions import SessionRoutes

        sampling = Sampling(max_new_tokens=service.context)
        seconds = service.limits.request_seconds
        capturing = Capturing(service.engine, service.text, sampling, calls=self.capture, history=self.history, seconds=seconds)
        return SessionRoutes(service, capturing.open)


def service_of(path: str, name: str, command: Serve) -> Service:
    """The model of a folder as a service. Raises ModelError where there is none, DeviceError where there is no such device."""
    from penstock.config.media import READ
    from penstock.engine.encoder_decoder import embedded_generator
    from penstock.models.families import language_model
    from penstock.runtime.receiver import ModelReceiver
    from penstock.serve.media import RequestMedia
    from penstock.serve.service import Limits, Service
    from penstock.train.device import set_up

    read = READ[command.media]
    model = language_model(path, dtype=command.dtype, media=read).to(set_up(command.device, 0))
    return Service(
        name=name,
        engine=embedded_generator(model, max_running=command.max_running, cache_gb=command.cache_gb),
        text=model.text,
        context=model.context,
        vocabulary=model.network.get_input_embeddings().num_embeddings,
        limits=Limits(room=command.max_running + command.queue, body_bytes=(4 if read is None else 32) << 20),
        receiver=ModelReceiver(model),
        media=None if read is None else RequestMedia.of(command.fetch),
    )


def _name(given: str) -> str:
    """A hub name stays; a folder gives its own name, a ``model`` folder that of its run."""
    whole = Path(given).resolve()
    if not whole.exists():
        return given
    return whole.parent.name if whole.name == "model" else whole.name

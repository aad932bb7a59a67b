"""``penstock serve MODEL``: the embedded engine behind an OpenAI-compatible API, with the routes of weight updates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.commands.generate import model_path
from penstock.cli.extras import require
from penstock.cli.recipe import no_more_flags, require_device, take, wants_help
from penstock.core.errors import SpecError

if TYPE_CHECKING:
    from penstock.serve.service import Service

HELP = """usage: penstock serve MODEL [--host 127.0.0.1] [--port 8000] [--slots 64] [--queue 256]
                      [--token-file FILE] [--key-file FILE] [--name NAME] [--device auto|cpu|cuda]

MODEL is a model folder (runs/NAME/model), a run folder, or a hub name. Clients of OpenAI's API use http://HOST:PORT/v1.
  --slots N          samples that are decoded at once
  --queue N          samples that may wait beside them; more are refused with status 429
  --token-file FILE  who sends the token in this file may do everything: also load weights, pause and abort. Without it
                     nothing can be changed, and the server listens on this machine only
  --key-file FILE    who sends the key in this file may generate
  --name NAME        what the API calls the model (default: the folder's name)

Ctrl-C (or SIGTERM) once lets answers under way end for 5 seconds; twice stops at once."""


def run(words: Sequence[str]) -> int:
    """Serve until a signal; gives the exit code."""
    left, own = take(
        words, host="127.0.0.1", port=8000, slots=64, queue=256, token_file="", key_file="", name="", device="auto"
    )
    if wants_help(left):
        print(HELP)
        return 0
    no_more_flags(left, *own, "help")
    if len(left) != 1:
        raise SpecError("serve takes one model: penstock serve runs/NAME")
    for name, low in (("port", 0), ("slots", 1), ("queue", 0)):
        if own[name] < low:
            raise SpecError(f"--{name} {own[name]}; at least {low}")
    require_device(own["device"])
    require("serve", "serve", "starlette", "uvicorn")
    from penstock.serve.guard import Access
    from penstock.serve.server import run as serve
    from penstock.web.guard import read_secret
    from penstock.web.server import listen

    secrets = {kind: read_secret(own[f"{kind}_file"]) for kind in ("token", "key") if own[f"{kind}_file"]}
    access = Access(own["host"], **secrets)
    if access.key and not access.token:
        raise SpecError("--key-file without --token-file; give both, or the token alone")
    path = model_path(left[0])
    with listen(own["host"], own["port"]) as listening:
        service = service_of(path, own["name"] or _name(left[0]), own["device"], own["slots"], own["queue"])
        host, port = listening.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        rights = "weights and pauses need the token" if access.token else "weights cannot be changed (no --token-file)"
        print(f"serving {service.name} at http://{shown}:{port}/v1 · {rights} · Ctrl-C ends", flush=True)
        serve(service, access, listening)
    return 0


def service_of(path: str, name: str, device: str, slots: int, queue: int) -> Service:
    """The model of a folder as a service. Raises ModelError where there is none, DeviceError where there is no such device."""
    from penstock.engine.encoder_decoder import embedded_generator
    from penstock.models.files import load_model
    from penstock.runtime.receiver import ModelReceiver
    from penstock.serve.service import Limits, Service
    from penstock.train.device import set_up

    where = set_up(device, 0)
    model = load_model(path).to(where)
    return Service(
        name=name,
        engine=embedded_generator(model, slots=slots),
        text=model.text,
        context=model.context,
        vocabulary=model.network.get_input_embeddings().num_embeddings,
        limits=Limits(room=slots + queue),
        receiver=ModelReceiver(model),
    )


def _name(given: str) -> str:
    """A hub name stays; a folder gives its own name, a ``model`` folder that of its run."""
    path = Path(given)
    if not path.exists():
        return given
    whole = path.resolve()
    return whole.parent.name if whole.name == "model" else whole.name

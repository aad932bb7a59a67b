"""Which inference engine the generators run: the registered specs that ``roles.engine`` takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

from penstock.config.spec import require, spec


@spec
class Embedded:
    """Penstock's own engine, inside the generator's process (``docs/backends.md``)."""


@spec
class VLLM:
    """vLLM, in an environment of its own; weights reach its workers through their weight-transfer plugin."""

    python: str = ""
    """Python of the environment that has vLLM and Penstock; empty: the one that runs Penstock."""
    tensor_parallel: int = 1
    """Devices that one generator's model is split over."""
    memory: float = 0.9
    """Share of the accelerator's memory that vLLM takes; on a CPU, ``cache_bytes`` decides."""
    cache_bytes: int = 1 << 30
    """Bytes of the KV cache on a CPU."""
    dtype: str = "auto"
    """Arithmetic of the engine; ``auto``: that of the model's weights."""
    adapters: bool = True
    """Where low-rank adapters are trained, send these alone and let vLLM apply them; False: send whole matrices, adapters
    merged."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further engine arguments of vLLM, by its own names."""

    def __post_init__(self) -> None:
        require(self.tensor_parallel >= 1, f"engine.tensor_parallel={self.tensor_parallel}; at least 1")
        require(0 < self.memory <= 1, f"engine.memory={self.memory} is outside (0, 1]")
        require(self.cache_bytes >= 1 << 20, f"engine.cache_bytes={self.cache_bytes}; at least a megabyte")


def _require_server(url: str, timeout: float) -> None:
    require(url.startswith(("http://", "https://")), f"engine.url={url!r}; give http://HOST:PORT")
    require(timeout > 0, f"engine.timeout={timeout}; give a positive number of seconds")


@spec
class SGLang:
    """An SGLang server, over its HTTP API."""

    url: str = "http://127.0.0.1:30000"
    """Where the server listens; one for each generator, separated by commas."""
    key: str = ""
    """Name of the environment variable that holds the server's API key; empty: it asks for none."""
    timeout: float = 600.0
    """Seconds that one request may take."""
    weights: Literal["disk", "process group"] = "disk"
    """How a generator hands weights to its server: by a folder that both see, or by a process group of the two."""

    def __post_init__(self) -> None:
        _require_server(self.url, self.timeout)


@spec
class Served:
    """A server that ``penstock serve`` runs, on this or another machine; it must have been started with a token."""

    url: str = "http://127.0.0.1:8000"
    """Where the server listens; one for each generator, separated by commas."""
    key: str = "PENSTOCK_TOKEN"
    """Name of the environment variable that holds the server's token."""
    timeout: float = 600.0
    """Seconds that a server may be silent while an answer is due."""

    def __post_init__(self) -> None:
        _require_server(self.url, self.timeout)


ENGINES = (Embedded, VLLM, SGLang, Served)
"""What ``roles.engine`` may be."""

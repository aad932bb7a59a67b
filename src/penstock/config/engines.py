"""Which inference engine the generators run: the registered specs that ``roles.engine`` takes."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, ClassVar, Literal

from penstock.config.media import MARKS
from penstock.config.spec import require, spec
from penstock.core.errors import SpecError

_LOOPBACK = re.compile(r"https?://(127\.|localhost\b|\[::1\])")
_QUESTION = "import sys, importlib.util as u; sys.exit(0 if all(map(u.find_spec, ('vllm', 'penstock'))) else 3)"
ASKING = 120.0
"""Seconds in which a Python must say what it can import."""
USUAL_VLLM = Path(".venv-vllm/bin/python")
"""Where ``make vllm`` puts the Python that has vLLM; used where the running one has none."""


class Engine:
    """What generates: what callers ask of its spec, each with a default. ``runtime/engines.py`` opens one."""

    repeats: ClassVar[bool] = False
    """Whether its turns can be replayed."""
    notes_routes: ClassVar[bool] = False
    """Whether it can say which experts of a mixture each token went through."""
    in_process: ClassVar[bool] = False
    """Whether it can run where the learner is."""
    media: ClassVar[tuple[str, ...]] = ()
    """Kinds of media that it is sent."""

    @property
    def rounds(self) -> bool:
        """Whether it may compute in a coarser type than the learner: in bfloat16, or in what nobody knows here."""
        return True

    @property
    def devices(self) -> int:
        """Accelerators that one generator takes."""
        return 1

    @classmethod
    def usual(cls) -> Engine:
        """What ``--generator NAME`` means."""
        return cls()

    def check(self, generators: int) -> None:
        """Refuse what cannot be started, before anything is begun. Raises SpecError."""

    def command(self, usual: Sequence[str]) -> tuple[str, ...]:
        """What starts the process of a generator."""
        return tuple(usual)

    def takes_adapters(self) -> bool:
        """Whether it can apply low-rank adapters to matrices that never change."""
        return False

    def cache_of_ours(self) -> float:
        """``cache_gb`` of the run's embedded generators, which evaluate where another engine draws."""
        return 0.0

    def last_leg(self) -> str:
        """How weights get from the generator to its processes, for ``penstock explain``; empty: there are none."""
        return ""

    def described(self) -> str:
        """In a line of ``penstock explain``."""
        return f"{type(self).__name__}, over HTTP"


@spec
class Embedded(Engine):
    """Penstock's own engine, inside the generator's process (``docs/backends.md``)."""

    repeats: ClassVar[bool] = True
    notes_routes: ClassVar[bool] = True
    in_process: ClassVar[bool] = True
    media: ClassVar[tuple[str, ...]] = tuple(MARKS)

    cache_gb: float = 0.0
    """Gigabytes (10⁹ bytes) that a generator's cache may take; 0: half of a GPU's free memory, 4 on a processor. Sequences
    that do not fit wait, or are preempted and go on later with the tokens that they have."""

    @property
    def rounds(self) -> bool:
        return False

    def __post_init__(self) -> None:
        require(self.cache_gb >= 0, f"Embedded: cache_gb={self.cache_gb} is negative; 0 is the device's usual budget")

    def cache_of_ours(self) -> float:
        return self.cache_gb

    def described(self) -> str:
        return "Penstock's own"


@spec
class VLLM(Engine):
    """vLLM, in an environment of its own; weights reach its workers through their weight-transfer plugin."""

    media: ClassVar[tuple[str, ...]] = ("image", "video")

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

    @property
    def rounds(self) -> bool:
        return self.dtype != "float32"

    @property
    def devices(self) -> int:
        return self.tensor_parallel

    @classmethod
    def usual(cls) -> Engine:
        """In the running Python where that has vLLM, else in the one that ``make vllm`` sets up."""
        path = USUAL_VLLM.absolute()
        return cls(python=str(path) if importlib.util.find_spec("vllm") is None and path.exists() else "")

    def check(self, generators: int) -> None:
        """Its Python must exist, and have vLLM and Penstock."""
        python = self.python or sys.executable
        remedy = f"make vllm sets one up; then --roles.engine.python {USUAL_VLLM}"
        try:
            done = subprocess.run([python, "-c", _QUESTION], capture_output=True, timeout=ASKING)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SpecError(f"roles.engine.python={python} does not run ({error}); {remedy}") from error
        require(not done.returncode, f"{python} has no vLLM with Penstock installed; {remedy}")

    def command(self, usual: Sequence[str]) -> tuple[str, ...]:
        """In its own Python."""
        return (self.python, *usual[1:]) if self.python else tuple(usual)

    def takes_adapters(self) -> bool:
        return self.adapters

    def last_leg(self) -> str:
        return "shared memory to vLLM's workers"

    def described(self) -> str:
        dtype = "the weights' own" if self.dtype == "auto" else self.dtype
        return f"vLLM in {self.python or 'this Python'}, {dtype} arithmetic, with processes of its own for each generator"


class OverHTTP:
    """What engines on servers have in common: one server for each generator."""

    url: str
    key: str
    timeout: float

    def __post_init__(self) -> None:
        require(self.url.startswith(("http://", "https://")), f"engine.url={self.url!r}; give http://HOST:PORT")
        require(self.timeout > 0, f"engine.timeout={self.timeout}; give a positive number of seconds")

    def check(self, generators: int) -> None:
        """There must be a server for each generator, and its token."""
        servers = len([one for one in self.url.split(",") if one.strip()])
        require(
            servers >= generators,
            f"roles.engine.url names {servers} server and there are {generators} generators; name one for each",
        )
        require(
            not self.key or bool(os.environ.get(self.key, "").strip()),
            f"roles.engine.key: set the environment variable {self.key} to the server's token",
        )


@spec
class SGLang(OverHTTP, Engine):
    """An SGLang server, over its HTTP API."""

    url: str = "http://127.0.0.1:30000"
    """Where the server listens; one for each generator, separated by commas."""
    key: str = ""
    """Name of the environment variable that holds the server's API key; empty: it asks for none."""
    timeout: float = 600.0
    """Seconds that one request may take."""
    weights: Literal["disk", "process group"] = "disk"
    """How a generator sends weights to its server: by a folder that both see, or by a process group of the two."""

    def check(self, generators: int) -> None:
        """There must be enough servers, in reach of the process group where that is asked for."""
        super().check(generators)
        far = [url.strip() for url in self.url.split(",") if not _LOOPBACK.match(url.strip())]
        require(
            self.weights != "process group" or not far or bool(os.environ.get("PENSTOCK_HOST")),
            f'roles.engine.weights="process group": {next(iter(far), "")} is another machine, which cannot join a group on '
            "127.0.0.1; set PENSTOCK_HOST to this machine's address",
        )

    def last_leg(self) -> str:
        return {"disk": "a folder to the server", "process group": "a process group to the server's processes"}[self.weights]


@spec
class Served(OverHTTP, Engine):
    """A server that ``penstock serve`` runs, on this or another machine; it must have been started with a token."""

    url: str = "http://127.0.0.1:8000"
    """Where the server listens; one for each generator, separated by commas."""
    key: str = "PENSTOCK_TOKEN"
    """Name of the environment variable that holds the server's token."""
    timeout: float = 600.0
    """Seconds that a server may be silent while an answer is due."""

    def last_leg(self) -> str:
        return "one HTTP upload"

"""What a run needs of its image and of the network, read from its spec, and refused where a cluster would not have it."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import metadata
from typing import Any
from urllib.parse import urlsplit

from penstock.config.run import Run
from penstock.config.spec import plain, require, suggestion
from penstock.core.errors import SpecError
from penstock.deploy.options import IMAGE_EXTRAS, Options
from penstock.observe.monitors import MONITORS

HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+(:[\w.-]+)?")
"""A model's or a data set's name on the hub: one slash, and no file."""
PORTS = {"http": 80, "ws": 80, "https": 443, "wss": 443, "postgresql": 5432}
ADDRESS = re.compile(rf"(?:[a-z_]+:)?((?:{'|'.join(PORTS)})://\S+)")
"""A server's address, alone or after what it is for, as in otlp:http://collector:4318."""
EVERYWHERE = ({"ipBlock": {"cidr": "0.0.0.0/0", "except": ["169.254.169.254/32"]}}, {"ipBlock": {"cidr": "::/0"}})
"""Not where clouds give every pod of a node the node's credentials."""
FOREIGN = {"vllm": "--build-arg PACKAGES=vllm"}
"""Packages that a run may need and that are no extra."""
IMPLIED = {
    "postgres": "feedback", "s3": "storage", "mujoco": "control", "games": "control", "envpool": "control",
    "diffusers": "media", "digits": "media", "qlora": "lora",
}  # fmt: skip
"""Extras that bring another one's packages."""
BY_KIND = {
    "AdamW8bit": "adam8bit", "DeepSpeed": "deepspeed", "LoRA": "lora", "VLLM": "vllm", "SGLang": "serve", "Served": "serve",
    "ServedJudge": "serve", "Ask": "feedback", "Control": "control", "EnvironmentsSpec": "control", "Vision": "media",
    "Hearing": "media", "Pictures": "media",
}  # fmt: skip
"""Extras of the specs that need one."""
BY_VALUE = {
    ("quantize", "nf4"): "qlora", ("function", "math"): "math", ("vectorization", "envpool"): "envpool",
    ("vectorization", "parallel"): "games", ("runtime", "ray"): "ray",
}  # fmt: skip
BY_PREFIX = {
    "hub:": "hub", "gym:": "gym", "reasoning_gym:": "gym", "gymnasium:": "control", "textarena:": "textarena",
    "openenv:": "openenv", "verifiers:": "verifiers", "mcp:": "mcp", "postgresql://": "postgres", "s3://": "s3",
    "feedback:": "feedback", "penstock.recipes.digits:": "digits",
}  # fmt: skip
"""Extras of texts that begin so: data, environments, tools, stores."""


@dataclass(frozen=True)
class Server:
    """A server that a run speaks with."""

    host: str
    port: int

    @property
    def inside(self) -> bool:
        """Whether it is a Service of the cluster, by its name."""
        return ("." not in self.host and ":" not in self.host) or self.host.endswith((".svc", ".svc.cluster.local"))

    @property
    def address(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
        try:
            return ipaddress.ip_address(self.host)
        except ValueError:
            return None

    @property
    def open_by_https(self) -> bool:
        """Whether the rule for HTTPS to anywhere is the one that it needs."""
        return self.port == 443 and not self.inside and self.address is None

    def peers(self) -> list[dict[str, Any]]:
        """Whom a NetworkPolicy has to open its port to. A policy knows no names, so a host outside is everywhere."""
        if self.address:
            return [{"ipBlock": {"cidr": f"{self.address}/{self.address.max_prefixlen}"}}]
        if not self.inside:
            return list(EVERYWHERE)
        if "." not in self.host:
            return [{"podSelector": {}}]
        return [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self.host.split(".")[1]}}}]


def servers(named: Sequence[str]) -> list[Server]:
    """The servers that texts name, each once. Raises SpecError: a pod's own loopback interface, or no address."""
    found = set()
    for text in (part.strip() for one in named for part in one.split(",")):
        if (match := ADDRESS.fullmatch(text)) is None:
            continue
        try:
            url = urlsplit(match[1])
            server = Server(url.hostname or "", url.port or PORTS[url.scheme])
        except ValueError as error:
            raise SpecError(f"{text} is no address: {error}") from error
        where = server.address
        own = server.host in {"", "localhost"} or bool(where and (where.is_loopback or where.is_unspecified))
        require(
            not own,
            f"{text} is the pod itself, where no such server listens; name a host, such as http://NAME.NAMESPACE.svc:PORT",
        )
        require(not (where and where.is_link_local), f"{text} gives away the node's credentials; pods are kept from it")
        found.add(server)
    return sorted(found, key=lambda one: (one.host, one.port))


def check_reach(run: Run, options: Options) -> None:
    """Refuse what the run speaks with and a pod has not. Raises SpecError."""
    for inner in _maps(plain(run)):
        sandbox = str(inner.get("sandbox", ""))
        require(
            not sandbox.startswith(("docker:", "docker+")),
            f"sandbox={sandbox}: a pod has no Docker; use jail, or a remote executor, http://HOST:PORT",
        )
    named = any(pair.startswith("OTEL_EXPORTER_OTLP") for pair in options.env)
    require(
        "otlp" not in run.monitors or named,
        "monitors: otlp alone sends to the pod itself; name the collector: otlp:http://HOST:4318",
    )


def needed_extras(run: Run) -> dict[str, str]:
    """The extras that a run needs, each with what needs it. Pods are always watched by Prometheus."""
    found = {"monitors": "/metrics of its pods"}
    for entry in run.monitors:
        name = entry.partition(":")[0]
        require(
            name in MONITORS, f'monitors: there is no "{name}"{suggestion(name, MONITORS)}; there are {", ".join(MONITORS)}'
        )
        found.setdefault(MONITORS[name][1], f"monitors={entry}")
    for inner in _maps(plain(run)):
        kind = inner.get("kind")
        if isinstance(kind, str) and kind in BY_KIND:
            found.setdefault(BY_KIND[kind], kind)
        if kind == "Denoise" and HUB_NAME.fullmatch(inner["model"]["path"]):
            found.setdefault("diffusers", f"the pipeline {inner['model']['path']}")
        for (name, value), extra in BY_VALUE.items():
            if inner.get(name) == value:
                found.setdefault(extra, f"{name}={value}")
        if str(inner.get("sandbox", "")).startswith("http"):
            found.setdefault("serve", f"sandbox={inner['sandbox']}")
    for text in texts(plain(run)):
        for prefix, extra in BY_PREFIX.items():
            if text.startswith(prefix):
                found.setdefault(extra, text)
    return found


def check_image(run: Run, options: Options) -> None:
    """Refuse an image that lacks what the run needs. Raises SpecError: names the extra and the command that adds it."""
    has = [name.strip() for name in options.extras.split(",")]
    known = {*(metadata("penstock").get_all("Provides-Extra") or ()), *FOREIGN}
    for name in has:
        require(name in known, f'--extras: there is no extra "{name}"{suggestion(name, known)}; the default is {IMAGE_EXTRAS}')
    needed = needed_extras(run)
    missing = sorted(needed.keys() - has - {IMPLIED.get(name, name) for name in has})
    if not missing:
        return
    foreign = "".join(f" {FOREIGN[name]}" for name in missing if name in FOREIGN)
    extras = ",".join(name for name in [*has, *missing] if name not in FOREIGN)
    raise SpecError(
        f"{needed[missing[0]]} needs {', '.join(missing)}, and the image is said to have {options.extras}; docker build "
        f"--build-arg EXTRAS={extras}{foreign} -t {options.image} . and add --extras {','.join([*has, *missing])}"
    )


def _maps(value: Any) -> Iterator[dict[str, Any]]:
    """All maps in plain values."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _maps(inner)


def texts(value: Any) -> list[str]:
    """All texts in plain values."""
    if isinstance(value, dict):
        return [text for inner in value.values() for text in texts(inner)]
    if isinstance(value, list):
        return [text for inner in value for text in texts(inner)]
    return [value] if isinstance(value, str) else []

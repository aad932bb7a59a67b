"""What is to be deployed: a run with its name and options, and what follows from them for every target."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, replace
from functools import cached_property

from penstock.config.run import Run
from penstock.config.spec import plain, require
from penstock.data.resolve import LOCAL
from penstock.deploy.needs import HUB_NAME, Server, servers, texts
from penstock.deploy.options import LONGEST_NAME, Options, require_kubernetes_name
from penstock.deploy.packing import Layout, layout

HOME = "/penstock"
"""Where pods have the runs' volume. Paths of the run's spec are below it."""
SPEC = "/etc/penstock/run.json"
"""The run's spec in a pod."""
RAY_PORT, METRICS_PORT = 6379, 9464
NAMED_FILE = re.compile(r"(.*\.(?:py|jsonl?|jsonl\.gz|parquet|csv|txt))(?::\w+)?$")


@dataclass(frozen=True)
class Job:
    """A run on its way to a cluster."""

    run: Run
    options: Options

    def __post_init__(self) -> None:
        """Raises SpecError where the run lives in this process, or cannot be named."""
        require_kubernetes_name("--name", self.run.name)
        require(len(self.run.name) <= LONGEST_NAME, f"--name {self.run.name}: at most {LONGEST_NAME} characters")
        local = sorted({text for text in texts(plain(self.run)) if text.startswith(LOCAL)})
        require(not local, f"{', '.join(local)} lives in one process; define it in a file or a package that the image has")

    @cached_property
    def layout(self) -> Layout:
        return layout(self.run, self.options)

    @property
    def several(self) -> bool:
        """Whether the run spans nodes, as one Ray cluster."""
        return self.layout.nodes > 1

    @property
    def store(self) -> str:
        """The object store outside of the cluster's volumes that the run is mirrored into; empty: none."""
        store = self.run.checkpoint.store
        return "" if store.startswith("file:") else store

    def spec(self, served: bool) -> str:
        """``run.json``. ``served``: to other machines too, since nobody reaches a pod's loopback interface."""
        monitors = tuple(one for one in self.run.monitors if one.partition(":")[0] != "prometheus")
        run = replace(self.run, monitors=(*monitors, f"prometheus:0.0.0.0:{METRICS_PORT}")) if served else self.run
        return json.dumps(plain(run)) + "\n"

    def command(self, spec: str = SPEC) -> str:
        """The shell command that begins the run or goes on with it, in the folder that all nodes see."""
        return shlex.join(["penstock", "train", spec, "--name", self.run.name, "--runs", "runs", "--or-resume"])

    @property
    def reaches_out(self) -> bool:
        """Whether something of the run comes from, or goes to, outside of the cluster."""
        named = [model for stage in self.run.stages for model in stage.models()]
        named += [stage.data.source.removeprefix("hub:") for stage in self.run.stages if stage.pinned]
        listening = any(one.partition(":")[0] == "wandb" for one in self.run.monitors)
        named_https = any(one.open_by_https for one in self.servers)
        return (
            self.options.https
            or listening
            or named_https
            or bool(self.store)
            or any(HUB_NAME.fullmatch(name) for name in named)
        )

    @property
    def remarks(self) -> list[str]:
        """What else must be there, as comments of the manifest."""
        found = [NAMED_FILE.match(text) for text in texts(plain(self.run))]
        files = ", ".join(sorted({one[1] for one in found if one}))
        locked = (
            "RDMA pins memory: containers need an unlimited memlock (LimitMEMLOCK=infinity of the nodes' container runtime)"
        )
        remarks = [f"The run names files that every node must see: {files}"] if files else []
        return remarks + ([locked] if self.options.rdma else [])

    @cached_property
    def servers(self) -> list[Server]:
        """The servers that the run and its variables name."""
        return servers([*texts(plain(self.run)), *(pair.partition("=")[2] for pair in self.options.env)])

    def start_ray(self, port: int | str, head: str = "") -> str:
        """The shell command that starts the head of the run's Ray cluster, or, given the head's host, a node that joins it."""
        where = f"--address={head}:{port} --block" if head else f"--head --port={port} --include-dashboard=false"
        return f"ray start {where} --num-cpus={self.layout.cpus} --num-gpus={self.layout.gpus} --disable-usage-stats"

"""Clusters and runs under a test's eyes."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from runs import BATCH, RECIPES, Started, weights, whole_lines

STORE = 80 << 20


class Nodes:
    """A cluster whose nodes all are this machine."""

    def __init__(self, head_cores: int = 1) -> None:
        from ray.cluster_utils import Cluster

        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        head = {"num_cpus": head_cores, "object_store_memory": STORE, "include_dashboard": False}
        # Ray asks a node three times, a second apart, before it holds it dead; the default is five times, three seconds apart.
        soon = {"health_check_period_ms": 1000, "health_check_failure_threshold": 3}
        self.cluster = Cluster(initialize_head=True, connect=False, head_node_args={**head, "_system_config": soon})
        self.nodes = [self.cluster.head_node]

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def add(self, cores: int = 1, **resources: float) -> Any:
        node = self.cluster.add_node(num_cpus=cores, object_store_memory=STORE, resources=resources)
        self.nodes.append(node)
        return node

    def of(self, pid: int) -> Any:
        """The node that a role's process is on: its parent is the actor, whose parent is the node's raylet."""
        raylet = parent(parent(pid))
        return next(node for node in self.nodes if raylet == raylet_of(node))

    def kill(self, node: Any) -> None:
        """All processes of the node die at once."""
        raylet = raylet_of(node)
        workers = [pid for pid in pids() if parent(pid) == raylet]
        for pid in (raylet, *workers):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.nodes.remove(node)
        self.cluster.remove_node(node, allow_graceful=False)

    def close(self) -> None:
        self.cluster.shutdown()


class RunOnRay(Started):
    """A run on its way, in ``folder``/runs/run. ``address`` is that of the cluster; empty: one of its own."""

    pause = 0.05

    def __init__(self, folder: Path, recipe: str, *words: str, address: str = "", runtime: str = "ray") -> None:
        named = [f"{RECIPES}:{recipe}", "--name", "run", "--runtime", runtime, *words] if recipe else ["--resume", "runs/run"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "RAY_ADDRESS": address}
        self.begin(folder, [sys.executable, "-m", "penstock.cli.main", "train", *named], environment)

    @property
    def roles(self) -> dict[str, int]:
        """The processes of this run's roles, by name; several of one name would be an error."""
        found: dict[str, int] = {}
        for pid in pids():
            with suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
                if b"penstock.runtime.role" in words and os.readlink(f"/proc/{pid}/cwd") == str(self.folder):
                    found[words[-1].decode()] = pid
        return found

    def wait(self, seconds: float = 240.0) -> int:
        code = super().wait(seconds)
        assert "Traceback" not in self.text, self.everything()
        return code

    def assert_ends(self, whole: Path | None = None, steps: int = 0) -> None:
        self.go()
        assert self.wait() == 0, self.everything()
        if steps:
            batches = self.batches()
            assert len(batches) == steps
            assert sorted(ordinal for batch in batches for ordinal in batch) == list(range(steps * BATCH))
        assert whole is None or weights(self.run) == weights(whole)
        assert self.roles == {}

    def batches(self) -> list[list[int]]:
        """The ordinals of each batch that the learner trained, in order; of one that it trained again, the last time."""
        schedule = self.run / "schedule" / "grpo"
        begun = [line for tape in schedule.glob("generator-*.jsonl") for line in whole_lines(tape) if line[1] == "begin"]
        ordinals = {group: ordinal for _, _, group, ordinal in begun}
        found = {line["version"]: line["groups"] for line in whole_lines(schedule / "leases.jsonl")}
        return [[ordinals[group] for group in found[version]] for version in sorted(found)]

    def takes(self, generator: str, did: str) -> list[Path]:
        """The tapes of a generator's starts, those in which it did something: ``load`` weights, ``begin`` a group."""
        tapes = (self.run / "schedule" / "grpo").glob(f"{generator}.*.jsonl")
        # What a generator did is on its tape once a group of it has left.
        return sorted(tape for tape in tapes if any(line[1] == did for line in whole_lines(tape)))

    def kill_everyone(self) -> None:
        super().kill_everyone()
        self.process.wait(10)
        for pid in self.roles.values():
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)


Start = Callable[..., RunOnRay]
"""What the fixture ``start`` gives."""


def pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]


def parent(pid: int) -> int:
    """The parent of a process; 0 where it is gone or a zombie."""
    with suppress(OSError):
        state, above = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[:2]
        return int(above) if state not in "ZX" else 0
    return 0


def raylet_of(node: Any) -> int:
    return int(node.all_processes["raylet"][0].process.pid)


def command_lines() -> dict[int, str]:
    """The command line of every living process."""
    found = {}
    for pid in pids():
        with suppress(OSError):
            line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if parent(pid):
                found[pid] = line
    return found


def with_word(word: str) -> list[str]:
    """How the command lines of living processes begin that contain a word, such as the folder of a Ray session."""
    return [line[:100] for line in command_lines().values() if word in line]


def own_cluster(driver: int) -> str:
    """The folder's name of the Ray cluster that a process started for itself; empty before. Tests beside may have others."""
    for pid, line in command_lines().items():
        if parent(pid) == driver and (found := re.search(r"penstock-ray-\w+", line)):
            return found[0]
    return ""

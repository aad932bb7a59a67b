"""What the manifests start, started: exactly their commands and variables, on Ray clusters of two nodes on this machine.

Three things differ from a pod: where the volume and the spec are, Ray's port, and the name of the head's host.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from followed import LETTERS, Followed
from strict_schemas import objects

pytest.importorskip("ray")

from penstock.cli.recipe import build
from penstock.deploy.job import HOME, RAY_PORT, SPEC
from penstock.deploy.options import Options

OPTIONS = Options(image="penstock:test", claim="runs", secret="penstock", cpus=2)
TOKEN = "0123456789abcdef" * 4
STEPS = 8
SMALL = ["--object-store-memory=80000000"]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as held:
        return int(held.getsockname()[1])


class Pods(Followed):
    """The pods of a manifest as processes of this machine."""

    def __init__(self, target: Any, folder: Path, steps: int = STEPS) -> None:
        self.name, self.port, self.started = f"run-{free_port()}", free_port(), list[subprocess.Popen]()
        self.home, self.logs, self.run = folder / "volume", folder, folder / "volume" / "runs" / self.name
        self.home.mkdir()
        words = ["--name", self.name, "--runtime", "ray", "--roles.channel", "disk", "--steps", str(steps), "--delay", "0.1"]
        run = build(LETTERS, [*words, "--checkpoint.every", "100"])
        self.objects = {one["kind"]: one for one in self._moved(objects(run, target, OPTIONS), folder)}
        spec = self.objects["ConfigMap"]["data"]["run.json"].replace(":9464", f":{free_port()}").replace("0.0.0.0", "127.0.0.1")
        (folder / "run.json").write_text(spec)

    def _moved(self, made: Any, folder: Path) -> Any:
        text = json.dumps(made).replace(SPEC, str(folder / "run.json"))
        text = re.sub(rf"{HOME}(?=[\"/ ])", str(self.home), text)
        return json.loads(
            re.sub(rf"\b{RAY_PORT}\b", str(self.port), text).replace(f"{self.name}-node-0-0.{self.name}", "127.0.0.1")
        )

    def environment(self, template: dict[str, Any], **more: str) -> dict[str, str]:
        """A container's variables, as a kubelet makes them."""
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        found = {"PATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "200", **more}
        for one in template["spec"]["containers"][0]["env"]:
            source = one.get("valueFrom", {})
            value = TOKEN if "secretKeyRef" in source else "0" if "fieldRef" in source else one["value"]
            found[one["name"]] = re.sub(r"\$\((\w+)\)", lambda match: found[match[1]], value)
        return found

    def start(self, command: list[str], environment: dict[str, str], name: str) -> subprocess.Popen:
        """A process in a group of its own, as a container is."""
        with open(self.logs / f"{name}.log", "ab") as out:
            process = subprocess.Popen(command, cwd=self.home, env=environment, stdout=out, stderr=out, start_new_session=True)
        self.started.append(process)
        return process

    def ended(self, process: subprocess.Popen, seconds: float = 240.0) -> int:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(seconds)
        raise AssertionError(f"{process.args} did not end in {seconds} s\n{self.log}")

    def listens(self) -> bool:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), 1).close()
            return True
        return False

    def assert_finished(self) -> None:
        assert sorted(set(self.steps())) == list(range(1, STEPS + 1))
        assert (self.run / "model").is_dir()

    def close(self) -> None:
        for process in self.started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(15)


@pytest.fixture
def pods(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pods]:
    """The pods of the target that the test names."""
    made = Pods(request.param, tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("pods", ["rayjob"], indirect=True)
def test_the_entrypoint_of_a_rayjob_runs_on_two_nodes_saves_when_its_pods_drain_and_goes_on(pods: Pods) -> None:
    spec = pods.objects["RayJob"]["spec"]
    cluster = spec["rayClusterSpec"]
    (group,) = cluster["workerGroupSpecs"]
    assert group["replicas"] == 1
    head, worker = cluster["headGroupSpec"]["template"], group["template"]
    # What KubeRay makes of the empty rayStartParams, and of the token's Secret.
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "RAY_ADDRESS": f"127.0.0.1:{pods.port}"}
    size = ["--num-cpus=2", "--disable-usage-stats", *SMALL, "--block"]
    pods.start(
        ["ray", "start", "--head", f"--port={pods.port}", "--include-dashboard=false", *size],
        pods.environment(head, **token),
        "head",
    )
    pods.until(pods.listens, "head")
    pods.start(["ray", "start", f"--address=127.0.0.1:{pods.port}", *size], pods.environment(worker, **token), "worker")
    run = pods.start(["bash", "-c", spec["entrypoint"]], pods.environment(head, **token), "run")
    pods.until(lambda: len(pods.steps()) >= 3, "third step")
    stop = worker["spec"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    drain = pods.start(stop, pods.environment(head, **token), "drain")
    assert pods.ended(run) == 130, pods.log
    assert pods.ended(drain) == 0, pods.log
    before = len(pods.steps())
    assert before < STEPS
    assert "everything is saved" in pods.log
    assert pods.ended(pods.start(["bash", "-c", spec["entrypoint"]], pods.environment(head, **token), "run")) == 0, pods.log
    assert pods.resumed() == [f"step {before} of {STEPS}"]
    pods.assert_finished()


@pytest.mark.parametrize("pods", ["jobset"], indirect=True)
def test_the_nodes_of_a_jobset_form_a_cluster_and_all_end_well_with_the_run(pods: Pods) -> None:
    batch = pods.objects["JobSet"]["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert batch["completions"] == 2
    template = batch["template"]
    (container,) = template["spec"]["containers"]
    command = [*container["command"][:-1], container["command"][-1].replace("ray start", f"ray start {SMALL[0]}")]
    stop = container["lifecycle"]["preStop"]["exec"]["command"]

    def start(words: list[str], index: int, name: str) -> subprocess.Popen:
        return pods.start(words, pods.environment(template, JOB_COMPLETION_INDEX=str(index)), name)

    nodes = [start(command, index, f"node-{index}") for index in range(2)]
    pods.until(lambda: len(pods.steps()) >= 2, "second step")
    drain = start(stop, 1, "drain")
    # On this machine both nodes are in one pod, so what drains has the run save; a JobSet would start all pods again.
    assert pods.ended(nodes[0]) == 130, pods.log
    assert pods.ended(drain) == 0, pods.log
    os.killpg(nodes[0].pid, signal.SIGKILL)
    assert pods.ended(nodes[1]) == 1, pods.log
    nodes = [start(command, index, f"node-{index}") for index in range(2)]
    assert pods.ended(nodes[0]) == 0, pods.log
    os.killpg(nodes[0].pid, signal.SIGKILL)  # the end of a pod is the end of all its processes
    assert pods.ended(nodes[1]) == 0, pods.log
    pods.assert_finished()

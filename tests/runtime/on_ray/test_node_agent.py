"""The actor's side and the driver's side of a role, without a cluster."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray.cluster_utils")

from runs_on_ray import parent

from penstock.config.placement import Bundle, Bundles, Resources
from penstock.core.errors import RoleError, SpecError
from penstock.runtime import ray as on_ray
from penstock.runtime.node_agent import NodeAgent
from penstock.runtime.ray import Cluster, RayChild, require_listening
from penstock.runtime.supervisor import Role

ECHO = "import sys, json; said = json.loads(input()); print(said['word'], flush=True); sys.stdin.read()"


class Here:
    """Stands for an actor: the agent is in this process."""

    def __init__(self) -> None:
        self.agent = NodeAgent()
        self.call = self

    def remote(self, verb: str, text: str) -> Any:
        return self.agent.call(verb, text)


def role(folder: Path, name: str = "learner", code: str = ECHO, log: Path | None = None) -> Role:
    bootstrap = {"word": "hello", "folder": str(folder), "base": str(folder), "stage": "" if name == "learner" else "grpo"}
    return Role(name, bootstrap, (sys.executable, "-c", code), log)


def code_of(one: Role) -> int:
    """The exit code of a role that is started and ends by itself."""

    async def main() -> int:
        child = RayChild(one, Here())
        await child.start()
        return await child.wait()

    return asyncio.run(main())


def test_what_a_role_prints_and_how_it_ends_reach_the_driver(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = "import sys; input(); print('out'); print('err', file=sys.stderr); sys.exit(7)"
    assert code_of(role(tmp_path, code=code)) == 7
    said = capsys.readouterr()
    assert (said.out, said.err) == ("out\n", "err\n")


def test_what_a_role_had_started_ends_with_it(tmp_path: Path) -> None:
    code = "import subprocess, sys; input(); print(subprocess.Popen(['sleep', '1000']).pid, flush=True)"
    log = tmp_path / "log"
    assert code_of(role(tmp_path, code=code, log=log)) == 0
    left = int(log.read_text())
    until = time.monotonic() + 10
    while parent(left) and time.monotonic() < until:
        time.sleep(0.01)
    assert parent(left) == 0


def test_a_node_that_does_not_see_the_runs_folder_is_told_of(tmp_path: Path) -> None:
    with pytest.raises(RoleError, match=r"reward-0: node .* does not see .*elsewhere; start in a folder that all nodes share"):
        code_of(role(tmp_path / "elsewhere", name="reward-0"))


def test_a_role_that_is_ended_after_the_driver_left_joins_no_cluster_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined: list[dict[str, Any]] = []
    monkeypatch.setattr("ray.init", lambda **values: joined.append(values))
    RayChild(role(tmp_path), Here()).kill()
    assert joined == []


def test_the_driver_leaves_once_the_ends_that_have_begun_are_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    monkeypatch.setattr("ray.kill", lambda actor, no_restart: told.append("end of the actor"))
    monkeypatch.setattr("ray.shutdown", lambda: told.append("leave"))
    cluster = Cluster(Bundles("PACK", (Bundle({"learner": Resources()}),)))
    cluster._actor = lambda role: Here()  # type: ignore[method-assign]

    async def main() -> int:
        child = await cluster._settled(role(tmp_path))
        child.signal(signal.SIGKILL)
        await cluster.close()
        told.append("left")
        return await child.wait()

    assert asyncio.run(main()) == -signal.SIGKILL
    assert told == ["end of the actor", "leave", "left"]


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere.invalid:6379", "ray://head:10001", "head"])
def test_a_cluster_that_is_not_there_is_one_line(address: str) -> None:
    with pytest.raises(SpecError, match=f"RAY_ADDRESS={address}: "):
        require_listening(address)


def test_no_room_is_one_line_after_the_deadline(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")  # one of its own would set this process's environment up for a token
    monkeypatch.setattr(on_ray, "WAITED", 0.01)
    monkeypatch.setattr(on_ray, "ROOM", 0.01)
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 2.0, "memory": 1e9, "node:1.2.3.4": 1.0})
    notes: list[str] = []
    cluster = Cluster(Bundles("PACK", (Bundle({"learner": Resources(cpus=64)}),)))
    cluster._note = lambda what, **fields: notes.append(what)
    with pytest.raises(SpecError, match=r"no room in 0 s for learner, which takes CPU 64; it has CPU 2$"):
        asyncio.run(cluster._room(asyncio.Event().wait(), "learner, which takes CPU 64"))
    assert notes == ["waiting for room in the cluster"]
    assert "waiting for room in the cluster for learner" in capsys.readouterr().err
